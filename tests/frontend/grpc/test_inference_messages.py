"""Inference requests over gRPC become Predicts, and answers become messages."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.gateway import SPECS
from frontend.grpc_calls import infer_request, set_parameter
from horologe_common.models import ModelSpec
from horologe_common.status import HorologeError, InvalidInput, Late, TooLarge
from horologe_common.string_tensors import join_strings
from horologe_common.wire import Answer, Tensor
from horologe_frontend.grpc.inference_messages import classify_outputs, limit_budget, read_in_steps, write_response
from horologe_frontend.grpc.known_messages import KnownMessages
from horologe_frontend.grpc.messages import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse, parse
from horologe_frontend.http.http_messages import Unsupported
from horologe_frontend.http.steps import run_at_once
from horologe_frontend.oip.predicts import InferenceRequest

BY_NAME = {spec.name: spec for spec in SPECS}
ALL = BY_NAME["all"]
STREAM = msgspec.structs.replace(BY_NAME["echo"], streams=True)


def read(request: Any, spec: ModelSpec | None = None) -> InferenceRequest:
    return run_at_once(read_in_steps(spec or BY_NAME[request.model_name], request))


def typed_request(values: dict[str, tuple[str, Any]], shape: tuple[int, ...] = (2,)) -> Any:
    """Return a request for the model `all`, from the name of an input to the field of its contents and the values."""
    request = ModelInferRequest(model_name="all")
    for name, (field, content) in values.items():
        tensor = request.inputs.add(name=name, datatype=name.removeprefix("in"), shape=shape)
        getattr(tensor.contents, field).extend(content)
    return request


def test_raw_inputs_are_taken_as_they_are() -> None:
    inference = read(infer_request(id="mine", model_version="9", parameters={"slo_ms": 20, "context": "ann"}))
    predict = inference.predict
    assert predict.inputs == (Tensor("in", "FP32", (1, 4), 16),)
    assert bytes(inference.buffers[0]) == np.ones(4, np.float32).tobytes()
    assert (predict.model, predict.version, predict.name, predict.context) == ("echo", "9", "mine", "ann")
    assert predict.budget_ns == 20_000_000


def test_typed_contents_become_the_bytes_of_their_datatype() -> None:
    values = {
        "inBOOL": ("bool_contents", [True, False]),
        "inINT8": ("int_contents", [-128, 127]),
        "inINT64": ("int64_contents", [-(2**63), 2**63 - 1]),
        "inUINT64": ("uint64_contents", [0, 2**64 - 1]),
        "inFP64": ("fp64_contents", [0.5, float("inf")]),
        "inBYTES": ("bytes_contents", [b"", b"\xff\0"]),
    }
    buffers = read(typed_request(values)).buffers
    dtypes = (np.bool_, np.int8, np.int64, np.uint64, np.float64)
    for buffer, dtype, (_, content) in zip(buffers, dtypes, values.values(), strict=False):
        assert bytes(buffer) == np.array(content, dtype).tobytes()
    assert bytes(buffers[-1]) == join_strings([b"", b"\xff\0"])


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40))
def test_typed_and_raw_contents_are_the_same_request(values: list[float]) -> None:
    array = np.array(values, np.float32)
    typed = infer_request("wide", raw=(), shape=(1, len(values)))
    typed.inputs[0].contents.fp32_contents.extend(values)
    raw = infer_request("wide", raw=(array.tobytes(),), shape=(1, len(values)))
    assert [bytes(buffer) for buffer in read(typed).buffers] == [bytes(buffer) for buffer in read(raw).buffers]
    assert read(typed).predict == read(raw).predict


def test_long_typed_contents_are_read_in_steps() -> None:
    count = 100_000
    request = infer_request("wide", raw=(), shape=(1, count))
    request.inputs[0].contents.fp32_contents.extend(range(count))
    steps = read_in_steps(BY_NAME["wide"], request)
    sizes = []
    try:
        while True:
            sizes.append(next(steps))
    except StopIteration as end:
        inference = end.value
    assert len(sizes) > 3
    assert sizes == sorted(sizes)
    assert bytes(inference.buffers[0]) == np.arange(count, dtype=np.float32).tobytes()


def edited(**fields: Any) -> Any:
    return infer_request(**fields)


def with_contents(field: str, values: Any, datatype: str = "FP32", shape: tuple[int, ...] = (1, 4)) -> Any:
    request = infer_request(raw=(), datatype=datatype, shape=shape)
    getattr(request.inputs[0].contents, field).extend(values)
    return request


def both_contents() -> Any:
    request = infer_request()
    request.inputs[0].contents.fp32_contents.append(1)
    return request


def with_output(name: str, **parameters: Any) -> Any:
    request = infer_request()
    output = request.outputs.add(name=name)
    for key, value in parameters.items():
        set_parameter(output.parameters[key], value)
    return request


def with_input_parameter(name: str, value: Any) -> Any:
    request = infer_request()
    set_parameter(request.inputs[0].parameters[name], value)
    return request


def twice(request: Any) -> Any:
    request.inputs.append(request.inputs[0])
    request.raw_input_contents.append(request.raw_input_contents[0])
    return request


@pytest.mark.parametrize(
    ("request_of", "words"),
    [
        (edited(raw=(b"123",)), ("input 'in'", "raw_input_contents", "got 3", "wanted 16", "FP32[1, 4]")),
        (edited(raw=(b"1" * 17,)), ("raw_input_contents", "got 17", "wanted 16")),
        (edited(raw=(b"", b"")), ("raw_input_contents", "got 2", "1 inputs")),
        (edited(datatype="FLOAT"), ("datatype", "'FLOAT'", "FP32")),
        (edited(shape=(-1, 4)), ("shape", "[-1, 4]", "negative")),
        (edited(shape=(2**40, 2**40)), ("shape", "elements")),
        (edited(shape=[1] * 40), ("shape", "40 dimensions")),
        (edited(raw=()), ("contents.fp32_contents", "got 0 values", "wanted 4")),
        (with_contents("fp32_contents", [1, 2, 3]), ("got 3 values", "wanted 4")),
        (with_contents("fp64_contents", [1, 2, 3, 4]), ("got fp64_contents", "wanted fp32_contents")),
        (both_contents(), ("contents", "raw_input_contents", "one of them")),
        (twice(infer_request()), ("input 'in'", "twice")),
        (edited(parameters={"colour": "red"}), ("parameters.colour", "unknown")),
        (edited(parameters={"binary_data_output": False}), ("parameters.binary_data_output", "False", "always raw")),
        (edited(parameters={"triton_enable_empty_final_response": 1}), ("triton_enable_empty_final_response", "got 1")),
        (edited(parameters={"slo_ms": "fast"}), ("parameters.slo_ms", "'fast'", "milliseconds")),
        (edited(parameters={"timeout": -1}), ("parameters.timeout", "-1", "microseconds")),
        (edited(parameters={str(number): 1 for number in range(1025)}), ("parameters: got 1025", "at most 1024")),
        (edited(parameters={"sequence_id": 3}), ("parameters.sequence_id", "sequences are not supported")),
        (with_output("nope"), ("output 'nope'", "unknown", "out")),
        (with_output("out", classification=-1), ("output 'out'", "classification", "-1")),
        (with_output("out", binary_data=False), ("output 'out'", "binary_data", "False", "always raw")),
        (with_input_parameter("binary_data_size", 15), ("input 'in'", "binary_data_size", "got 15", "wanted 16")),
    ],
)
def test_errors_name_the_field_the_value_and_what_was_wanted(request_of: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(request_of)
    assert all(word in caught.value.reason for word in words), caught.value.reason


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["slo_ms", "timeout", "first_item_ms", "gap_ms", "priority"])
def test_a_number_that_is_none_is_refused(name: str, number: float) -> None:
    """JSON has no such numbers, but a message has."""
    with pytest.raises(InvalidInput, match=rf"parameters\.{name}: got {number}, wanted "):
        read(infer_request(parameters={name: number}), STREAM)
    with pytest.raises(InvalidInput, match=rf"classification: got {number}, wanted "):
        read(with_output("out", classification=number))
    with pytest.raises(InvalidInput, match=rf"binary_data_size: got {number}, wanted "):
        read(with_input_parameter("binary_data_size", number))


def test_parameters_about_binary_data_say_what_is_the_case() -> None:
    """KServe's client sends the parameters of HTTP with raw contents."""
    request = with_output("out", binary_data=True)
    set_parameter(request.inputs[0].parameters["binary_data_size"], 16)
    set_parameter(request.parameters["binary_data_output"], True)
    inference = read(request)
    assert (inference.predict.inputs[0].nbytes, inference.predict.outputs) == (16, ("out",))


@pytest.mark.parametrize("wanted", [True, False])
def test_an_empty_final_response_may_be_asked_for(wanted: bool) -> None:
    """Of models with one response, that response is the final one. perf_analyzer sends the parameter in every call."""
    read(infer_request(parameters={"triton_enable_empty_final_response": wanted}))


def test_errors_of_typed_contents() -> None:
    with pytest.raises(InvalidInput, match=r"contents.int_contents: INT8: "):
        read(typed_request({"inINT8": ("int_contents", [128, 0])}))
    with pytest.raises(InvalidInput, match=r"FP16 has no typed list: send it in raw_input_contents"):
        read(infer_request("half", raw=(), datatype="FP16", shape=(1, 2)))
    with pytest.raises(InvalidInput, match="wanted FP32"):
        read(with_contents("int_contents", [1, 2, 3, 4], "INT32"))
    with pytest.raises(InvalidInput, match=r"rows, wanted 1 to 8"):
        read(with_contents("fp32_contents", [0] * 400, shape=(100, 4)))


def test_too_many_strings_are_too_large() -> None:
    count = (1 << 17) + 1
    request = infer_request("huge", raw=(b"",), datatype="BYTES", shape=(count,))
    with pytest.raises(TooLarge, match=str(count)):
        read(request)


@pytest.mark.parametrize("where", ["input", "output"])
def test_shared_memory_is_not_supported(where: str) -> None:
    request = infer_request()
    tensor = request.inputs[0] if where == "input" else request.outputs.add(name="out")
    tensor.parameters["shared_memory_region"].string_param = "region"
    with pytest.raises(Unsupported, match="shared memory is not supported"):
        read(request)


def test_a_parameter_without_a_value_is_refused() -> None:
    request = infer_request()
    request.parameters["slo_ms"].SetInParent()
    with pytest.raises(InvalidInput, match=r"parameters.slo_ms: got no value"):
        read(request)


@pytest.mark.parametrize(
    ("own_ms", "call_ms", "wanted_ms"), [(0, 20, 20), (0, 80, 50), (10, 80, 10), (70, 80, 70), (70, 30, 30)]
)
def test_the_earlier_deadline_counts(own_ms: int, call_ms: int, wanted_ms: int) -> None:
    """The model has an SLO of 50 ms, which applies if the request has no deadline of its own."""
    inference = read(infer_request(parameters={"slo_ms": own_ms} if own_ms else {}))
    limited = limit_budget(inference, BY_NAME["echo"], call_ms * 1_000_000)
    assert limited.predict.budget_ns == wanted_ms * 1_000_000


def test_a_deadline_that_has_passed_is_late() -> None:
    with pytest.raises(Late):
        limit_budget(read(infer_request()), BY_NAME["echo"], 0)


@given(st.binary(max_size=300), st.integers(0, 200), st.integers(0, 255))
def test_no_message_raises_anything_but_errors_of_the_request(junk: bytes, place: int, value: int) -> None:
    content = bytearray(infer_request(id="a", parameters={"slo_ms": 5, "context": "x"}).SerializeToString())
    content[place % len(content)] = value
    for changed in (junk, bytes(content), bytes(content) + junk):
        with contextlib.suppress(HorologeError, Unsupported):
            read(parse(ModelInferRequest, changed), BY_NAME["echo"])


def an_answer(payload: bytes, shape: tuple[int, ...] = (1, 4)) -> tuple[Answer, list[bytes]]:
    return Answer(1, 0, (Tensor("out", "FP32", shape, len(payload)),), model="echo", version="10"), [payload]


def test_a_response_holds_raw_outputs() -> None:
    inference = read(infer_request(id="mine"))
    answer, buffers = an_answer(b"abcd" * 4)
    for _ in range(2):  # the second one is made of the head of the first one
        content = write_response(inference.predict, inference.form, answer, buffers)
        response = ModelInferResponse.FromString(content)
        assert (response.id, response.model_name, response.model_version) == ("mine", "echo", "10")
        assert list(response.outputs[0].shape) == [1, 4]
        assert list(response.raw_output_contents) == [b"abcd" * 4]
        buffers = [b"abcd" * 4]
    answer, buffers = an_answer(b"x" * 32, (2, 4))
    other = ModelInferResponse.FromString(write_response(inference.predict, inference.form, answer, buffers))
    assert list(other.outputs[0].shape) == [2, 4]


def test_a_response_in_a_stream_is_the_final_one() -> None:
    inference = read(infer_request(id="mine"))
    answer, buffers = an_answer(bytes(16))
    content = write_response(inference.predict, inference.form, answer, buffers, in_stream=True)
    response = ModelStreamInferResponse.FromString(content)
    assert response.error_message == ""
    assert response.infer_response.id == "mine"
    assert response.infer_response.parameters["triton_final_response"].bool_param
    assert list(response.infer_response.raw_output_contents) == [bytes(16)]


def test_classes_are_strings() -> None:
    inference = read(with_output("out", classification=2))
    answer, buffers = an_answer(np.array([[0.5, 4, 3, 1]], np.float32).tobytes())
    classified, contents = run_at_once(classify_outputs(inference.form, answer, buffers, {"out": ("a", "b")}))
    response = ModelInferResponse.FromString(write_response(inference.predict, inference.form, classified, contents))
    assert response.outputs[0].datatype == "BYTES"
    assert list(response.outputs[0].shape) == [1, 2]
    assert response.raw_output_contents[0] == join_strings([b"4.000000:1:b", b"3.000000:2"])


def test_a_known_message_is_read_like_a_new_one() -> None:
    known = KnownMessages()
    first, second = (infer_request(raw=(bytes([fill]) * 16,), id="a") for fill in (1, 2))
    assert known.find_template(first.SerializeToString()) is None
    known.add(first.SerializeToString(), first, BY_NAME["echo"], read(first))
    content = second.SerializeToString()
    template = known.find_template(content)
    assert template is not None
    inference = template.read(content)
    assert inference is not None
    assert inference.predict == read(second).predict
    assert [bytes(buffer) for buffer in inference.buffers] == [bytes([2]) * 16]


@pytest.mark.parametrize("change", ["id", "shape", "length", "appended", "cut"])
def test_a_message_that_differs_is_not_known(change: str) -> None:
    known = KnownMessages()
    first = infer_request(id="a")
    known.add(first.SerializeToString(), first, BY_NAME["echo"], read(first))
    other = infer_request(id="b" if change == "id" else "a", shape=(4, 1) if change == "shape" else (1, 4))
    if change == "length":
        other = infer_request(id="a", raw=(bytes(12),))
    content = other.SerializeToString()
    if change == "appended":
        content += b"\x3a\0"
    if change == "cut":
        content = content[:-1]
    assert known.find_template(content) is None


def test_the_lengths_of_several_inputs_are_compared() -> None:
    def request_of(sizes: tuple[int, int]) -> Any:
        request = ModelInferRequest(model_name="all")
        for index, size in enumerate(sizes):
            request.inputs.add(name=f"i{index}", datatype="UINT8", shape=(4,))
            request.raw_input_contents.append(bytes(size))
        return request

    known, first = KnownMessages(), request_of((4, 4))
    known.add(first.SerializeToString(), first, ALL, read(first))
    content = first.SerializeToString()
    template = known.find_template(content)
    assert template is not None
    assert template.read(content) is not None
    at = len(content) - 6
    assert template.read(content[:at] + b"\x3a\x05" + content[at + 2 :]) is None
