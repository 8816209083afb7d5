"""Mixed traffic: inputs that fit every signature, requests over HTTP, the metric of dynamic models."""

from __future__ import annotations

import json

import numpy as np

from horologe_common.models import ModelSpec, TensorSpec, check_tensor
from horologe_common.string_tensors import join_strings
from horologe_load.mixed_traffic import dynamic_models
from horologe_load.model_inputs import POOL_BYTES, encode_oip, make_pool, random_inputs

TEXT = ModelSpec(
    "text", "1", "onnx", (TensorSpec("tokens", "INT64", (-1, -1)), TensorSpec("mask", "FP32", (-1, -1))), (),
    max_length=32,
)  # fmt: skip
IMAGE = ModelSpec("image", "1", "onnx", (TensorSpec("image", "FP32", (-1, 3, 512, 512)),), ())


def test_inputs_fit_the_signature_and_differ_in_length() -> None:
    rng = np.random.default_rng(1)
    lengths = set()
    for _ in range(50):
        inputs = random_inputs(TEXT, rng)
        for tensor in TEXT.inputs:
            check_tensor(tensor, tensor.datatype, inputs[tensor.name].shape)
        tokens, mask = inputs["tokens"], inputs["mask"]
        assert (tokens.dtype.name, mask.dtype.name) == ("int64", "float32")
        assert tokens.shape == mask.shape
        lengths.add(tokens.shape[1])
    assert min(lengths) <= 8 < 24 <= max(lengths) <= 32


def test_a_pool_of_large_inputs_is_small() -> None:
    inputs = make_pool(IMAGE, np.random.default_rng(1)).inputs
    assert len(inputs) == POOL_BYTES // inputs[0]["image"].nbytes


def test_a_binary_request_carries_the_tensors_behind_its_header() -> None:
    arrays = {"x": np.arange(4, dtype=np.float32).reshape(1, 4)}
    headers, body = encode_oip(arrays, {"x": "FP32"}, binary=True)
    size = int(headers["Inference-Header-Content-Length"])
    (tensor,) = json.loads(body[:size])["inputs"]
    assert tensor["shape"] == [1, 4]
    assert body[size:] == arrays["x"].tobytes()
    assert tensor["parameters"]["binary_data_size"] == len(body) - size
    _, text = encode_oip(arrays, {"x": "FP32"}, binary=False)
    assert json.loads(text)["inputs"][0]["data"] == [0, 1, 2, 3]


def test_string_inputs_are_words_and_are_encoded() -> None:
    spec = ModelSpec("words", "1", "python", (TensorSpec("text", "BYTES", (-1, 2)),), ())
    arrays = make_pool(spec, np.random.default_rng(1)).inputs[0]
    check_tensor(spec.inputs[0], "BYTES", arrays["text"].shape)
    words = arrays["text"].ravel().tolist()
    assert all(isinstance(word, str) and word for word in words)
    headers, body = encode_oip(arrays, {"text": "BYTES"}, binary=True)
    assert body[int(headers["Inference-Header-Content-Length"]) :] == join_strings(word.encode() for word in words)
    _, text = encode_oip(arrays, {"text": "BYTES"}, binary=False)
    assert json.loads(text)["inputs"][0]["data"] == words


def test_a_server_that_reports_no_dynamic_models_is_not_one_without_any() -> None:
    page = 'horologe_model_dynamic{model="a",version="1"} 1.0\nhorologe_model_dynamic{model="b",version="2"} 0.0\n'
    assert dynamic_models(["", page]) == {"a/1": True, "b/2": False}
    assert dynamic_models(["other 1.0\n"]) is None
