"""Models of Triton repositories: each answers as in Triton, or says what is missing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from harness.command_line import run_horologe
from harness.model_folders import a_folder, a_python_model, a_pytorch_model, onnx_bytes
from harness.triton_repositories import (
    ADD_SUB,
    FOUR,
    UPPER,
    VECTOR,
    TritonCase,
    a_decoupled_case,
    a_torchscript_case,
    as_lists,
    case_arrays,
    triton_cases,
    write_case,
)
from horologe_common.models import check_request
from horologe_common.status import InvalidInput, ModelFailed, Refused
from horologe_common.wire import Tensor
from horologe_gpu_worker.core.stream_step import Step
from horologe_gpu_worker.repository.modelstore import ModelStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from horologe_common.wire import ModelReport
    from horologe_gpu_worker.runtime import OpenModel


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ModelStore]:
    (tmp_path / "models").mkdir()
    store = ModelStore(tmp_path / "models", tmp_path / "cache", report=lambda line: None)
    yield store
    store.close()


def scan(store: ModelStore, tmp_path: Path, case: TritonCase, name: str = "m") -> list[ModelReport]:
    write_case(tmp_path / "models", name, case)
    return store.scan()


def open_case(store: ModelStore, tmp_path: Path, case: TritonCase) -> OpenModel:
    (report,) = scan(store, tmp_path, case)
    assert report.profile is not None, report.reason
    return store.open(report.spec)


@pytest.mark.parametrize("name", [name for name in triton_cases() if name != "chain"])
def test_a_model_answers_or_says_what_is_missing(name: str, store: ModelStore, tmp_path: Path) -> None:
    case = triton_cases()[name]
    reports = scan(store, tmp_path, case, name)
    assert sorted(report.spec.version for report in reports) == sorted(case.versions)
    for report in reports:
        if case.missing:
            assert report.profile is None
            assert case.missing in report.reason
            assert "config.pbtxt" in report.reason
        else:
            assert report.profile is not None, report.reason
            assert case.note in "".join(report.spec.notes)
            model = store.open(report.spec)
            rows = len(next(iter(case.inputs.values()))) if report.spec.batched else 1
            assert as_lists(model.run(rows, case_arrays(case))) == case.outputs
            model.close()


def test_torchscript_takes_arguments_by_name_and_outputs_by_index(store: ModelStore, tmp_path: Path) -> None:
    case = a_torchscript_case()
    model = open_case(store, tmp_path, case)
    assert as_lists(model.run(1, case_arrays(case))) == case.outputs


def test_a_decoupled_model_yields_its_responses(store: ModelStore, tmp_path: Path) -> None:
    (report,) = scan(store, tmp_path, a_decoupled_case())
    assert report.spec.streams
    assert "decoupled: limited: `stream`: one stream at a time" in "".join(report.spec.notes)
    model = store.open(report.spec)
    items = [model.step(Step("s", 1, 1), {"IN": np.array([7, 8], np.int32)}), model.step(Step("s", 1, 2), {})]
    assert [item["OUT"].tolist() for item, more in items if item is not None and more] == [[7], [8]]
    with pytest.raises(Refused, match="max_open"):
        model.step(Step("s", 2, 1), {"IN": np.array([1], np.int32)})
    assert model.step(Step("s", 1, 3), {}) == (None, False)
    with pytest.raises(ModelFailed, match="IN is negative"):
        model.step(Step("s", 3, 1), {"IN": np.array([-1], np.int32)})
    model.close()


def test_a_decoupled_model_that_sends_no_response_to_made_up_inputs_is_measured(
    store: ModelStore, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    case = a_decoupled_case()
    source = case.files["1/model.py"].replace(b"for value in values:", b"for value in values[values > 0]:")
    (report,) = scan(store, tmp_path, case._replace(files={"1/model.py": source}))
    assert report.profile is not None, report.reason
    assert (report.profile.measured, report.note) == (True, "")
    assert "Traceback" not in capfd.readouterr().err
    model = store.open(report.spec)
    item, more = model.step(Step("s", 1, 1), {"IN": np.array([0, 8], np.int32)})
    assert item is not None
    assert (item["OUT"].tolist(), more) == ([8], True)
    model.close()


def test_an_ensemble_is_not_served_without_an_import(store: ModelStore, tmp_path: Path) -> None:
    (report,) = scan(store, tmp_path, triton_cases()["chain"])
    assert report.reason.endswith("not supported: ensemble_scheduling: `horologe import triton` makes a pipeline of it")


def test_an_error_response_fails_with_its_message(store: ModelStore, tmp_path: Path) -> None:
    model = open_case(store, tmp_path, triton_cases()["add"])
    with pytest.raises(ModelFailed, match="A is negative"):
        model.run(1, {"A": np.full((1, 2), -1, np.float32), "B": np.zeros((1, 2), np.float32)})
    model.close()


def test_an_error_response_fails_no_other_request_of_its_batch(store: ModelStore, tmp_path: Path) -> None:
    case = triton_cases()["add"]
    model = open_case(store, tmp_path, case._replace(config=case.config + "dynamic_batching { }\n"))
    inputs = {"A": np.array([[1, 2], [-1, 0], [3, 4], [3, 4]], np.float32), "B": np.ones((4, 2), np.float32)}
    outputs, failed = model.run_requests(4, inputs, (1, 1, 1))
    assert failed == {1: "model m/1: A is negative"}
    assert outputs["SUM"][[0, 2]].tolist() == [[20, 30], [40, 50]]
    assert model.run_requests(1, {name: array[1:2] for name, array in inputs.items()}, (1,)) == ({}, {0: failed[1]})
    model.close()


def test_outputs_of_variable_dimensions_share_no_batch(store: ModelStore, tmp_path: Path) -> None:
    case = triton_cases()["upper"]
    config = case.config.replace("TYPE_STRING dims: [ 1 ] }\n", "TYPE_STRING dims: [ -1 ] }\n")
    (report,) = scan(store, tmp_path, case._replace(config=config))
    assert not report.spec.batched
    assert "dynamic_batching: limited: requests run alone" in report.spec.notes[0]


def test_a_python_model_without_dynamic_batching_gets_each_request_alone(store: ModelStore, tmp_path: Path) -> None:
    (report,) = scan(store, tmp_path, triton_cases()["add"])
    assert not report.spec.batched
    assert report.spec.max_length == 4
    assert "dynamic_batching: limited: is not set" in report.spec.notes[0]


def test_batch_sizes_are_powers_of_two_and_preferred_ones(store: ModelStore, tmp_path: Path) -> None:
    (report,) = scan(store, tmp_path, triton_cases()["plain"], "plain")
    assert report.spec.batch_sizes == (1, 2, 3, 4, 8)
    assert report.spec.cache
    assert report.spec.labels == (("zero", "", "two", "tr\xeas"),)
    assert report.spec.label_files == ("y_labels.txt",)


def test_outputs_that_the_configuration_leaves_out_are_not_answered(store: ModelStore, tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 4]) for name in "xyz"]
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    graph = helper.make_model(
        helper.make_graph(nodes, "g", ends[:1], ends[1:]), opset_imports=[helper.make_opsetid("", 17)]
    )
    graph.ir_version = 8
    case = TritonCase(
        'backend: "onnxruntime"\nmax_batch_size: 2\n' + VECTOR, {"1/model.onnx": graph.SerializeToString()}
    )
    model = open_case(store, tmp_path, case)
    assert as_lists(model.run(1, {"x": np.array(FOUR, np.float32)})) == {"y": FOUR}


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("        self.request_id = requests[0].request_id()", "request_id: models get no data of a request"),
        ("        pb_utils.MetricFamily(name='m')", "triton_python_backend_utils.MetricFamily"),
        ("        requests[0].get_response_sender()", "get_response_sender: the model is not decoupled"),
        ("        [request.timeout() for request in requests]", "timeout: models get no data of a request"),
    ],
)
def test_a_source_that_uses_what_is_missing_is_not_served(
    source: str, text: str, store: ModelStore, tmp_path: Path
) -> None:
    changed = ADD_SUB.replace("        responses = []", f"{source}\n        responses = []")
    case = triton_cases()["add"]._replace(files={"1/model.py": changed.encode()})
    (report,) = scan(store, tmp_path, case)
    assert text in report.reason
    assert "model.py line 15" in report.reason


@pytest.mark.parametrize("call", ["request.flags()", "request.parameters()", "pb_utils.InferenceRequest(inputs=[])"])
def test_what_no_line_shows_fails_when_it_is_called_even_if_the_model_catches_it(
    call: str, store: ModelStore, tmp_path: Path
) -> None:
    hidden = "getattr(request, " if call.startswith("request") else "getattr(pb_utils, "
    name = call.partition(".")[2].partition("(")[0]
    caught = f"""            try:
                if (pb_utils.get_input_tensor_by_name(request, "A").as_numpy() > 5).any():
                    {hidden}{name!r})()
            except Exception:
                pass
"""
    changed = ADD_SUB.replace("        for request in requests:\n", f"        for request in requests:\n{caught}")
    case = triton_cases()["add"]._replace(files={"1/model.py": changed.encode()})
    model = open_case(store, tmp_path, case)
    assert as_lists(model.run(1, case_arrays(case))) == case.outputs
    with pytest.raises(ModelFailed, match=f"triton_python_backend_utils: .*{name}.* is not supported"):
        model.run(1, {name: array + 9 for name, array in case_arrays(case).items()})
    assert as_lists(model.run(1, case_arrays(case))) == case.outputs
    model.close()


def test_rows_of_a_request_that_runs_alone_are_checked(store: ModelStore, tmp_path: Path) -> None:
    model = open_case(store, tmp_path, triton_cases()["add"])
    for rows in ((1, 2), (5, 5)):
        with pytest.raises(ModelFailed, match="wanted 1 to 4, the same for all"):
            model.run(1, {name: np.ones((count, 2), np.float32) for name, count in zip("AB", rows, strict=True)})
    model.close()


@pytest.mark.parametrize("dims", ["2", "-1"])
def test_the_rows_of_requests_that_run_alone_are_in_the_spec(store: ModelStore, tmp_path: Path, dims: str) -> None:
    case = triton_cases()["add"]
    (report,) = scan(store, tmp_path, case._replace(config=case.config.replace("dims: [ 2 ]", f"dims: [ {dims} ]")))
    spec = report.spec
    assert (spec.batched, spec.max_rows) == (False, 4)

    def tensors(*rows: int) -> tuple[Tensor, ...]:
        return tuple(Tensor(name, "FP32", (count, 2), 8 * count) for name, count in zip("AB", rows, strict=True))

    check_request(spec, tensors(4, 4))
    for rows in ((1, 2), (5, 5)):
        with pytest.raises(InvalidInput, match="4"):
            check_request(spec, tensors(*rows))


def test_a_model_of_triton_may_have_a_model_toml(store: ModelStore, tmp_path: Path) -> None:
    tensors = ["TEXT", "UPPER"]
    entries = [f'{{ name = "{name}", datatype = "BYTES", shape = [-1, 1] }}' for name in tensors]
    manifest = f"batch_sizes = [1, 2]\ninputs = [{entries[0]}]\noutputs = [{entries[1]}]\n"
    a_folder(tmp_path / "models", "m", manifest, model_py=UPPER)
    (report,) = store.scan()
    assert report.profile is not None, report.reason
    model = store.open(report.spec)
    assert as_lists(model.run(1, case_arrays(triton_cases()["upper"]))) == triton_cases()["upper"].outputs
    model.close()


@pytest.mark.parametrize("file", ["net.pt2", "net.py"])
def test_a_model_toml_may_name_the_file(file: str, store: ModelStore, tmp_path: Path) -> None:
    models = tmp_path / "models"
    folder = a_pytorch_model(models) if file.endswith("pt2") else a_python_model(models)
    (folder / f"model{file[3:]}").rename(folder / file)
    with (folder / "model.toml").open("r+") as manifest:
        text = f'file = "{file}"\n' + manifest.read()
        manifest.seek(0)
        manifest.write(text)
    (report,) = store.scan()
    assert report.profile is not None, report.reason
    model = store.open(report.spec)
    assert as_lists(model.run(1, {"x": np.array(FOUR, np.float32)})) == {"y": FOUR}
    model.close()


def test_a_class_model_is_not_reshaped(store: ModelStore, tmp_path: Path) -> None:
    folder = a_python_model(tmp_path / "models")
    with (folder / "model.toml").open("a") as manifest:
        manifest.write("reshape = [-1, 2, 2]\n")
    (report,) = store.scan()
    assert "reshape: got some, wanted none for a class other than TritonPythonModel" in report.reason


def test_a_name_that_is_not_the_folders_is_not_served(store: ModelStore, tmp_path: Path) -> None:
    (report,) = scan(store, tmp_path, triton_cases()["plain"])
    assert "name: got 'plain', wanted 'm', the name of the folder" in report.reason


def test_optional_inputs_need_python(store: ModelStore, tmp_path: Path) -> None:
    first, second = VECTOR.splitlines()
    lines = [first.replace("} ]", "optional: true } ]"), second]
    case = triton_cases()["unbatched"]._replace(config="max_batch_size: 1\n" + "\n".join(lines))
    (report,) = scan(store, tmp_path, case)
    assert report.profile is not None, report.reason
    (note,) = report.spec.notes
    assert "input.optional: limited: x: a request without it is INVALID_INPUT" in note


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "m/l.txt: labels: [Errno 2] No such file"),
        (b"\xff", "m/l.txt: labels: 'utf-8' codec can't decode"),
        (b"label\n" * 12_000, "bytes of names, shapes and labels, wanted at most 65536"),
    ],
)
def test_a_model_without_its_labels_is_not_served(
    content: bytes | None, text: str, store: ModelStore, tmp_path: Path
) -> None:
    files = triton_cases()["unbatched"].files | ({} if content is None else {"l.txt": content})
    config = "max_batch_size: 1\n" + VECTOR.replace('"y"', '"y" label_filename: "l.txt"')
    (report,) = scan(store, tmp_path, TritonCase(config, files))
    assert text in report.reason


def test_an_import_reports_every_model_and_writes_those_that_answer(store: ModelStore, tmp_path: Path) -> None:
    source, target = tmp_path / "triton", tmp_path / "models"
    target.rmdir()
    cases = triton_cases()
    for name, case in cases.items():
        write_case(source, name, case)
    result = run_horologe("import", "triton", str(source), str(target), "--json")
    assert result.exit_code == 1
    models = {model["name"]: model for model in json.loads(result.stdout)["models"]}
    assert models.keys() == cases.keys()
    for name, case in cases.items():
        assert models[name]["served"] == (not case.missing)
        found = [
            f"{entry['field']}: {entry['text']}" for entry in models[name]["findings"] if entry["effect"] == "missing"
        ]
        assert bool(found) == bool(case.missing)
        assert case.missing in "".join(found)
    reports = {report.spec.key: report for report in store.scan()}
    served = {name: case for name, case in cases.items() if not case.missing and name != "chain"}
    assert reports.keys() == {f"{name}/{version}" for name, case in served.items() for version in case.versions}
    for name, case in served.items():
        report = reports[f"{name}/{case.versions[0]}"]
        assert report.profile is not None, report.reason
        assert report.spec.notes == ()
    model = store.open(reports["add/1"].spec)
    assert as_lists(model.run(1, case_arrays(cases["add"]))) == cases["add"].outputs
    model.close()
    again = run_horologe("import", "triton", str(source), str(target))
    assert again.exit_code == 2
    assert "wanted a new or empty folder" in again.stderr


def test_a_report_without_a_target_writes_nothing(tmp_path: Path) -> None:
    write_case(tmp_path / "triton", "plain", triton_cases()["plain"])
    before = sorted(tmp_path.rglob("*"))
    result = run_horologe("import", "triton", str(tmp_path / "triton"))
    assert result.exit_code == 0
    assert "dynamic_batching.max_queue_delay_microseconds  not needed" in result.stdout
    assert "1 of 1 models can be served" in result.stdout
    assert sorted(tmp_path.rglob("*")) == before


def test_a_model_without_a_configuration_is_imported(tmp_path: Path) -> None:
    a_folder(tmp_path / "triton", "m", model_onnx=onnx_bytes())
    result = run_horologe("import", "triton", str(tmp_path / "triton"), str(tmp_path / "out"))
    assert result.exit_code == 0
    assert (tmp_path / "out" / "m" / "model.toml").read_text().startswith('runtime = "onnx"')


def ensemble(*steps: tuple[str, str, str]) -> str:
    """Return an ensemble's configuration. A step is a model, the tensor it takes, and the tensor it makes."""
    texts = [
        f'{{ model_name: "{model}" model_version: -1 input_map {{ key: "x" value: "{taken}" }} '
        f'output_map {{ key: "y" value: "{made}" }} }}'
        for model, taken, made in steps
    ]
    tensors = VECTOR.replace('"x"', '"IN"').replace('"y"', '"OUT"')
    return f'platform: "ensemble"\n{tensors}ensemble_scheduling {{ step [ {", ".join(texts)} ] }}'


@pytest.mark.parametrize(
    ("steps", "missing"),
    [
        ([("plain", "IN", "OUT")], ""),
        ([("plain", "IN", "a"), ("plain", "IN", "b"), ("plain", "b", "OUT")], ""),
        ([("absent", "IN", "OUT")], "model 'absent' is not served"),
        ([("plain", "a", "b"), ("plain", "b", "a"), ("plain", "IN", "OUT")], "step 1 needs a result of its own"),
        ([("plain", "nothing", "OUT")], "step 1 needs nothing, which no step before it makes"),
        ([("plain", "IN", "OUT"), ("plain", "IN", "OUT")], "tensor 'OUT' is made more than once"),
        ([("plain", "IN", "a")], "'OUT' is made by no step"),
    ],
)
def test_an_ensemble_becomes_a_pipeline_or_says_why_not(
    steps: list[tuple[str, str, str]], missing: str, tmp_path: Path
) -> None:
    write_case(tmp_path / "triton", "plain", triton_cases()["plain"])
    write_case(tmp_path / "triton", "e", TritonCase(ensemble(*steps), {"1/.keep": b""}))
    result = run_horologe("import", "triton", str(tmp_path / "triton"), str(tmp_path / "out"))
    assert (result.exit_code == 1) == bool(missing), result.stdout
    assert missing in result.stdout
    assert (tmp_path / "out" / "pipelines" / "e.py").is_file() == (not missing)
