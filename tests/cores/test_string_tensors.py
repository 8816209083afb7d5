"""BYTES tensors: every path encodes and decodes strings in the same way, and no string changes on the way."""

from __future__ import annotations

import json
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from frontend.frontend_builders import CLIENT, CONTROLLER, a_frontend, send_predict
from frontend.oip_requests import binary, error, post
from gpu_worker.worker_builders import (
    HOLDER,
    SELECTOR,
    a_worker,
    an_infer,
    connect_controller,
    deliver,
    only_result,
    operations,
)
from harness.builders import a_spec, a_state, sent
from harness.model_folders import a_folder
from horologe.core.encoding import Signature, encode_inputs
from horologe_cli.commands.serving.predict import read_input
from horologe_cli.output import print_json
from horologe_common.applications import Application
from horologe_common.models import ModelSpec, TensorSpec
from horologe_common.status import InvalidInput, ModelFailed, Status
from horologe_common.string_tensors import (
    MAX_STRINGS,
    as_array,
    check_string_tensor,
    decode_strings,
    decode_text,
    join_strings,
)
from horologe_common.wire import Answer, CallDone, ModelCall, Models, Predict, Query, Ship, Shipped, Submit, Tensor
from horologe_common.wire.frames import decode_array, encode_array
from horologe_frontend.core.application_requests import DeclaredApplications
from horologe_frontend.oip.inference_response import tensor_values
from horologe_gpu_worker.core.lanes import Finished
from horologe_gpu_worker.repository.model_signature import datatype_of
from horologe_gpu_worker.runtimes.onnx.onnx_runtime import OnnxRuntime
from horologe_gpu_worker.runtimes.python.python_runtime import PythonRuntime
from selector.pipeline_desk import PipelineDesk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORDS = [b"cat", b"", b"a\0b", b"\0", b"x\0", "dög".encode(), "😀".encode(), b"n" * 100_000]
"""Plain, empty, with NULs in it, alone and at the end, two and four bytes per character, very long."""
NOT_TEXT = {
    "a byte that starts nothing": b"\xff",
    "Latin-1": "d\xf6g".encode("latin-1"),
    "a cut character": "😀".encode()[:-1],
    "an encoded surrogate": b"\xed\xa0\x80",
    "an overlong NUL": b"\xc0\x80",
    "UTF-16": "cat".encode("utf-16"),
    "beyond Unicode": b"\xf4\x90\x80\x80",
}
TEXT = msgspec.structs.replace(
    a_spec("text", text=True),
    runtime="onnx",
    inputs=(TensorSpec("x", "BYTES", (-1,)),),
    outputs=(TensorSpec("y", "BYTES", (-1,)),),
)
BINARY = msgspec.structs.replace(TEXT, name="binary", runtime="python", text=False)


def a_string_tensor(*items: bytes, name: str = "x") -> tuple[Tensor, bytes]:
    payload = join_strings(items)
    return Tensor(name, "BYTES", (len(items),), len(payload)), payload


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=10), min_size=1))
def test_text_is_utf8(items: list[str]) -> None:
    tensor, payload = encode_array("x", as_array(items))
    array = decode_array(tensor, payload)
    assert [item.decode() for item in array] == items
    assert decode_text("x", array).tolist() == items


@pytest.mark.parametrize(
    ("value", "items"),
    [
        (["a\0", "b"], [b"a\0", b"b"]),
        ([b"a\0", b"\0"], [b"a\0", b"\0"]),
        (["d\xf6g", b"\xff"], ["d\xf6g".encode(), b"\xff"]),
        (np.array(["d\xf6g", "b"]), ["d\xf6g".encode(), b"b"]),
        (np.array([b"ab", b"c"]), [b"ab", b"c"]),
        (np.array(["a\0", ""], np.dtypes.StringDType()), [b"a\0", b""]),
        (np.array([bytearray(b"ab"), None], object)[:1], [b"ab"]),
        ("", [b""]),
    ],
)
def test_every_kind_of_string_becomes_the_same_bytes(value: Any, items: list[bytes]) -> None:
    array = as_array(value)
    assert datatype_of(array) == "BYTES"
    tensor, payload = encode_array("x", array)
    assert (tensor.datatype, decode_array(tensor, payload).reshape(-1).tolist()) == ("BYTES", items)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([["a", "b"], ["c", "\ud800"]], ["element [1, 1]", "surrogates"]),
        (["a", "\udcff"], ["element [1]", "surrogates"]),
        (["a", 1], ["element [1]", "int"]),
        (["a", None], ["element [1]", "NoneType"]),
        ([["a"], ["b", "c"]], ["inhomogeneous"]),
        ([["a", 2.5]], ["element [0, 1]", "float"]),
    ],
)
def test_what_is_no_string_is_named_by_the_client(value: Any, words: list[str]) -> None:
    with pytest.raises(InvalidInput, match="input 'x'") as caught:
        encode_inputs(Signature(TEXT), {"x": value})
    assert all(word in caught.value.reason for word in words), caught.value.reason


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"\1\0\0\0a", "got 1 strings, wanted 2"),
        (b"\1\0\0\0a\xff\xff\xff\xffb", "got 10 bytes, wanted 4294967304"),
        (join_strings([b"a", b"b", b"c"]), "got 15 bytes, wanted 10"),
        (b"", "got 0 strings"),
        (b"\0\0\0\0\0\0\0", "got 1 strings"),
    ],
)
def test_bytes_that_are_not_the_strings_of_a_shape(payload: bytes, words: str) -> None:
    for check in (check_string_tensor, decode_strings):
        arguments = (False,) if check is check_string_tensor else ()
        with pytest.raises(InvalidInput, match="input 'x': BYTES") as caught:
            check("input 'x'", (2,), payload, *arguments)
        assert words in caught.value.reason


@pytest.mark.parametrize("kind", NOT_TEXT)
def test_the_frontend_refuses_what_is_not_text_for_the_model(kind: str) -> None:
    for spec, statuses in ((TEXT, [Status.INVALID_INPUT]), (BINARY, [])):
        frontend = a_frontend(spec)
        tensor, payload = a_string_tensor(b"cat", NOT_TEXT[kind])
        send_predict(frontend, Predict(1, spec.name, "", 0, (tensor,)), buffers=[payload])
        answers = sent(frontend, Answer, CLIENT)
        assert [answer.status for answer in answers] == statuses
        assert all("input 'x': BYTES: element [1]: got b'" in answer.reason for answer in answers)
        assert len(sent(frontend, Submit)) == 1 - len(statuses)


@pytest.mark.parametrize("spec", [TEXT, BINARY])
def test_the_frontend_refuses_strings_that_overlap_their_neighbours(spec: ModelSpec) -> None:
    """Otherwise the strings of one client could become those of another one in a batch."""
    frontend = a_frontend(spec)
    send_predict(frontend, Predict(1, spec.name, "", 0, (Tensor("x", "BYTES", (1,), 9),)), buffers=[b"\x01\0\0\0aaaaa"])
    (answer,) = sent(frontend, Answer, CLIENT)
    assert (answer.status, "input 'x': BYTES" in answer.reason) == (Status.INVALID_INPUT, True)


def test_the_number_of_strings_is_limited_for_every_client() -> None:
    frontend = a_frontend(msgspec.structs.replace(TEXT, inputs=(TensorSpec("x", "BYTES", (-1, -1)),)))
    shape = (1, MAX_STRINGS + 1)
    payload = bytes(4 * shape[1])
    send_predict(frontend, Predict(1, "text", "", 0, (Tensor("x", "BYTES", shape, len(payload)),)), buffers=[payload])
    (answer,) = sent(frontend, Answer, CLIENT)
    assert answer.status == Status.TOO_LARGE


def test_an_application_of_a_text_model_takes_text() -> None:
    frontend = a_frontend(TEXT)
    frontend.handle(0, CONTROLLER, Models(0, (a_state(TEXT), a_state(BINARY)), number=2), ())
    declared = DeclaredApplications(frontend.catalogue)
    for models, text in ((("binary", "text"), True), (("binary",), False)):
        assert declared.signature(Application("a", models, 100, task="any")).text is text


def test_equal_text_has_one_cache_key() -> None:
    keys = []
    spec = msgspec.structs.replace(TEXT, cache=True)
    for value in (["d\xf6g"], ["d\xf6g".encode()], np.array(["d\xf6g"]), np.array(["d\xf6g"], object), ["d\xe4g"]):
        frontend = a_frontend(spec)
        tensors, payloads = encode_inputs(Signature(spec), value)
        send_predict(frontend, Predict(1, "text", "", 0, tensors), buffers=payloads)
        (query,) = sent(frontend, Query)
        keys.append(query.input_hash)
    *equal, other = keys
    assert len(set(equal)) == 1
    assert other not in equal


@pytest.mark.parametrize("bad", [NOT_TEXT["Latin-1"], None])
def test_one_bad_row_does_not_fail_the_others_of_its_batch(bad: bytes | None) -> None:
    """`None`: strings that do not fill their tensor."""
    worker = a_worker(specs=[TEXT])
    connect_controller(worker)
    infer = an_infer(rows=(1, 1, 1), model="text/1", batch_size=4)
    deliver(worker, 0, "controller/0#1", infer)
    tensor, payload = a_string_tensor(b"cat")
    broken = a_string_tensor(bad)[1] if bad else b"\x09\0\0\0cat"
    items = tuple(
        Shipped(row.input_id, (msgspec.structs.replace(tensor, nbytes=len(text)),))
        for row, text in zip(infer.rows, (payload, broken, payload), strict=True)
    )
    outs = deliver(worker, 1, HOLDER, Ship(1, HOLDER, items), [payload, broken, payload])
    [operation] = operations(outs)
    assert (operation.rows, operation.batch_size) == (2, 2)
    output = a_string_tensor(b"A", b"C", name="y")
    ended = deliver(worker, 2, worker.lanes, Finished(1, "exec", Status.OK, 1, 2, 1, [output]))
    (failed,) = only_result(ended).rows
    assert (failed.id, failed.status, "input 'x': BYTES" in failed.reason) == (1, Status.FAILED, True)
    assert SELECTOR in {out.to for out in ended}


def test_a_call_of_a_pipeline_with_other_bytes_is_refused() -> None:
    desk = PipelineDesk()
    desk.receive(CONTROLLER, Models(0, (a_state(TEXT), a_state(a_spec("m"))), number=2))
    run = desk.query()
    tensor, payload = a_string_tensor(b"cat", b"\xff")
    for call, (number, text) in enumerate(((1, payload), (2, join_strings([b"cat", b"dog"]))), 1):
        header = msgspec.structs.replace(tensor, nbytes=len(text))
        desk.receive("driver/p", ModelCall(run, call, "text", number, (), (header,)), [text])
    (done,) = desk.take(CallDone)
    assert (done.call, done.status) == (1, Status.FAILED)
    assert "stage text: input 'x': BYTES: element [1]" in done.reason
    assert len(desk.take(Submit)) == 1


def test_json_and_binary_requests_carry_the_same_bytes() -> None:
    words = [word.decode() for word in WORDS[:8]]
    shape = [len(words)]
    answer = post({"inputs": [{"name": "in", "datatype": "BYTES", "shape": shape, "data": words}]}, model="text")
    assert json.loads(b"".join((answer.body, *answer.parts)))["outputs"][0]["data"] == words
    blob = join_strings(WORDS)
    header = {"name": "in", "datatype": "BYTES", "shape": shape, "parameters": {"binary_data_size": len(blob)}}
    response = binary({"inputs": [header], "parameters": {"binary_data_output": True}}, blob, model="text")
    assert b"".join((response.body, *response.parts)).endswith(blob)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (["fine", "\ud800"], "UTF-8"),
        (["fine", "a\udfffb"], "UTF-8"),
        (["fine", "\udc00\ud800"], "UTF-8"),
        (["fine", 7], "element [1]: got '7'"),
        (b'["fine", "d\xf6g"]', "input 'in': data: BYTES: element [1]"),
    ],
)
def test_json_that_holds_no_text_is_named(data: Any, words: str) -> None:
    encoded = data if isinstance(data, bytes) else json.dumps(data).encode()
    body = b'{"inputs": [{"name": "in", "datatype": "BYTES", "shape": [2], "data": %s}]}' % encoded
    reason = error(post(body, model="text"))
    assert all(text in reason for text in ("input 'in'", "element [1]", words)), reason


def test_outputs_that_are_not_text_have_no_json_form() -> None:
    tensor, payload = a_string_tensor(b"fine", b"\xff", name="y")
    with pytest.raises(InvalidInput, match=r"output 'y': BYTES: element \[1\].*binary_data"):
        tensor_values(tensor, payload)


def test_the_command_line_shows_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"y": np.array([b"cat", "d\xf6g".encode(), b"\xff"], object)})
    assert json.loads(capsys.readouterr().out) == {"y": ["cat", "d\xf6g", "\\xff"]}


def onnx_strings(*nodes: Any, output: int = TensorProto.STRING, ml: bool = False) -> bytes:
    ends = [
        helper.make_tensor_value_info("x", TensorProto.STRING, ["rows"]),
        helper.make_tensor_value_info("y", output, ["rows"]),
    ]
    graph = helper.make_graph(list(nodes), "strings", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 17)] + [helper.make_opsetid("ai.onnx.ml", 3)] * ml
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 8
    return bytes(model.SerializeToString())


def run_onnx(folder: Path, items: list[bytes]) -> Any:
    runtime = OnnxRuntime()
    spec = runtime.inspect(folder)
    assert spec.text
    with closing(runtime.open(spec, folder)) as model:
        return model.run(len(items), {"x": as_array(items)})["y"]


def test_onnx_models_get_text_and_return_text(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, "echo", model_onnx=onnx_strings(helper.make_node("Identity", ["x"], ["y"])))
    tensor, payload = encode_array("y", run_onnx(folder, WORDS), "output")
    assert decode_array(tensor, payload).tolist() == WORDS
    with pytest.raises(InvalidInput, match=r"input 'x': BYTES: element \[1\]"):
        run_onnx(folder, [b"cat", b"\xff"])


def test_onnx_models_find_text_in_their_vocabulary(tmp_path: Path) -> None:
    encoder = helper.make_node(
        "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_strings=["cat", "d\xf6g", ""], values_int64s=[1, 2, 3],
        default_int64=-1,
    )  # fmt: skip
    folder = a_folder(tmp_path, "classes", model_onnx=onnx_strings(encoder, output=TensorProto.INT64, ml=True))
    assert run_onnx(folder, [b"cat", "d\xf6g".encode(), b"", b"b'cat'"]).tolist() == [1, 2, 3, -1]


PYTHON = """
batch_sizes = [4]
inputs = [{ name = "x", datatype = "BYTES", shape = [-1] }]
outputs = [{ name = "y", datatype = "BYTES", shape = [-1] }]
"""


@contextmanager
def open_python(folder: Path, answer: str) -> Iterator[Any]:
    source = f"import numpy as np\nclass Model:\n    def predict_batch(self, inputs):\n        {answer}\n"
    path = a_folder(folder, "strings", PYTHON, model_py=source)
    runtime = PythonRuntime()
    with closing(runtime.open(runtime.inspect(path), path)) as model:
        yield model


@pytest.mark.parametrize(
    "answer",
    [
        "inputs['x']",
        "list(inputs['x'])",
        "[item.decode() for item in inputs['x']]",
        "np.array([item.decode() for item in inputs['x']], object)",
        "np.array([item.decode() for item in inputs['x']], np.dtypes.StringDType())",
        "[item if i % 2 else item.decode() for i, item in enumerate(inputs['x'])]",
    ],
)
def test_python_models_return_strings_of_any_kind(answer: str, tmp_path: Path) -> None:
    items = ["d\xf6g".encode(), b"", b"a\0", b"x" * 100_000]
    with open_python(tmp_path, f"return {{'y': {answer}}}") as model:
        assert model.run(4, {"x": as_array(items)})["y"].tolist() == items


def test_a_python_model_that_returns_no_strings_fails_with_the_element(tmp_path: Path) -> None:
    answer = "return {'y': [b'a', b'b', b'c', '\\ud800' if inputs['x'][0] else b'd']}"
    with open_python(tmp_path, answer) as model:
        with pytest.raises(ModelFailed, match=r"output 'y': BYTES: element \[3\]"):
            model.run(4, {"x": np.array([b"x", b"", b"", b""], object)})
        assert model.run(4, {"x": np.array([b"", b"", b"", b""], object)})["y"].tolist() == [b"a", b"b", b"c", b"d"]


def test_the_command_line_reads_text_and_names_what_is_not_utf8(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "input.json"
    path.write_bytes('["d\xf6g"]'.encode())
    assert read_input(str(path)) == ["d\xf6g"]
    path.write_bytes('["d\xf6g"]'.encode("latin-1"))
    with pytest.raises(SystemExit):
        read_input(str(path))
    assert "--input: not JSON: 'utf-8' codec can't decode byte 0xf6" in capsys.readouterr().err
