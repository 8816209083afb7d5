"""`config.pbtxt`: the schema is the public one, every field has an effect, and nothing but InvalidModel is raised."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

import horologe_gpu_worker.runtimes.python as python_runtime
from harness.triton_repositories import VECTOR
from horologe_common.status import InvalidInput, ModelFailed
from horologe_gpu_worker.repository.manifest import InvalidModel, read_manifest
from horologe_gpu_worker.repository.manifest_fields import TensorEntry
from horologe_gpu_worker.repository.reshaping import Reshaping, check_reshape
from horologe_gpu_worker.repository.triton.config_file import config_document, read_config
from horologe_gpu_worker.repository.triton.findings import ModelFacts, find_effects
from horologe_gpu_worker.repository.triton.python_source import PROVIDED
from horologe_gpu_worker.repository.triton.repository_import import write_toml
from horologe_gpu_worker.repository.triton.schema import config_class
from horologe_gpu_worker.repository.triton.translation import translate_version
from horologe_gpu_worker.repository.version_policy import served_versions
from horologe_gpu_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SNIPPETS = (
    'name: "m"', 'backend: "onnxruntime"', "max_batch_size: 0", "max_batch_size: 5", VECTOR, "dynamic_batching { }",
    "dynamic_batching { preferred_batch_size: [ 3, 9 ] priority_levels: 2 }", "version_policy { all { } }",
    "version_policy { specific { versions: [ 1 ] } }", "instance_group [ { count: 2 } ]", "optimization { }",
    "response_cache { enable: true }", 'metric_tags { key: "a" value: "b" }', "model_warmup { count: 3 }",
    'default_model_filename: "a.onnx"', "sequence_batching { direct { } }", 'parameters { key: "p" }',
)  # fmt: skip


def a_version(tmp_path: Path, config: str, name: str = "m") -> Path:
    folder = tmp_path / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (tmp_path / name / "config.pbtxt").write_text(config)
    return folder


def test_the_schema_is_the_public_one() -> None:
    origin = importlib.util.find_spec("tritonclient")
    assert origin is not None
    assert origin.submodule_search_locations
    path = Path(origin.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("public_model_config", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert shape_of(config_class().DESCRIPTOR) == shape_of(module.ModelConfig.DESCRIPTOR)


def shape_of(message: Any) -> dict[str, Any]:
    """Return the fields of a message: types, and what is in them."""
    return {
        field.name: (
            field.type,
            field.is_repeated,
            field.containing_oneof.name if field.containing_oneof else "",
            shape_of(field.message_type) if field.message_type else None,
            [value.name for value in field.enum_type.values] if field.enum_type else None,
        )
        for field in message.fields
    }


def leaves() -> Iterator[tuple[str, Any]]:
    """Iterate over the path of each field, and a configuration in which it alone is set to another value than 0."""
    config = config_class()
    pending: list[tuple[str, Any, tuple[Any, ...]]] = [("", config.DESCRIPTOR, ())]
    while pending:
        prefix, descriptor, way = pending.pop()
        for field in descriptor.fields:
            path = f"{prefix}{field.name}"
            is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
            if field.message_type is not None and not is_map:
                pending.append((f"{path}.", field.message_type, (*way, field)))
            made = config()
            place = made
            for step in way:
                place = getattr(place, step.name).add() if step.is_repeated else getattr(place, step.name)
                place.SetInParent()
            _set(place, field, is_map)
            yield path, made


def _set(place: Any, field: Any, is_map: bool) -> None:
    if is_map:
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        entry = "k" if key.cpp_type == key.CPPTYPE_STRING else 1
        if value.message_type is not None:
            getattr(place, field.name)[entry].SetInParent()
        else:
            getattr(place, field.name)[entry] = "v"
    elif field.message_type is not None:
        getattr(place, field.name).add() if field.is_repeated else getattr(place, field.name).SetInParent()
    else:
        value = "v" if field.cpp_type == field.CPPTYPE_STRING else 1
        if field.enum_type is not None:
            value = field.enum_type.values[-1].number
        if field.is_repeated:
            getattr(place, field.name).append(value)
        else:
            setattr(place, field.name, value)


CONTAINERS = {"input", "output", "input.reshape", "version_policy", "response_cache", "model_transaction_policy"}
"""Messages that say nothing while they are empty."""


@pytest.mark.parametrize("backend", ["onnxruntime", "pytorch", "python"])
def test_every_field_of_the_schema_has_an_effect(backend: str) -> None:
    for path, config in leaves():
        top = path.partition(".")[0]
        found = list(find_effects(ModelFacts(config, "m", backend)))
        if path not in CONTAINERS:
            assert any(finding.field.startswith(top) for finding in found), path
            assert all(finding.text for finding in found)


def field_of(snippet: str) -> str:
    return snippet.partition(" ")[0].rstrip(":")


@given(st.lists(st.sampled_from(SNIPPETS), unique_by=field_of, max_size=6))
def test_each_field_of_a_configuration_is_in_the_report(
    tmp_path_factory: pytest.TempPathFactory, snippets: list[str]
) -> None:
    folder = a_version(tmp_path_factory.getbasetemp() / "snippets", "\n".join(snippets))
    if {"dynamic_batching", "sequence_batching"} <= {field_of(snippet) for snippet in snippets}:
        with pytest.raises(InvalidModel, match=r"config\.pbtxt: "):
            translate_version(folder)
        return
    translation = translate_version(folder)
    fields = {finding.field.partition(".")[0].partition(" ")[0] for finding in translation.findings}
    assert {field.name for field, _ in translation.config.ListFields()} <= fields


@given(st.one_of(st.text(max_size=60), st.text('{}[]<>:#"\\ \nab1input', max_size=60)))
def test_any_text_is_a_configuration_or_invalid(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.getbasetemp() / "any" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / "config.pbtxt").write_bytes(text.encode(errors="surrogatepass"))
    with contextlib.suppress(InvalidModel):
        read_manifest(folder)


def test_the_document_of_a_configuration_is_that_of_triton(tmp_path: Path) -> None:
    config = (
        VECTOR + 'max_batch_size: 4\nparameters { key: "p" value { string_value: "v" } }\nversion_policy { all { } }'
    )
    document = config_document(read_config(a_version(tmp_path, config).parent / "config.pbtxt"))
    assert document["max_batch_size"] == 4
    assert document["input"][0]["dims"] == [4]
    assert document["input"][0]["data_type"] == "TYPE_FP32"
    assert document["parameters"] == {"p": {"string_value": "v"}}
    assert document["version_policy"] == {"all": {}}
    assert "sequence_batching" not in document


@pytest.mark.parametrize(
    ("config", "manifest"),
    [
        ("max_batch_size: 0", {"batching": "off"}),
        ("", {}),
        (VECTOR, {"batching": "off"}),
        ("max_batch_size: 1", {"batch_sizes": [1]}),
        ("max_batch_size: 6", {"batch_sizes": [1, 2, 4, 6]}),
        ("max_batch_size: 6\ndynamic_batching { preferred_batch_size: [ 5, 6 ] }", {"batch_sizes": [1, 2, 4, 5, 6]}),
    ],
)
def test_rows_of_a_graph(config: str, manifest: dict[str, Any], tmp_path: Path) -> None:
    translated = translate_version(a_version(tmp_path, f'backend: "onnxruntime"\n{config}')).manifest
    assert {key: translated[key] for key in ("batching", "batch_sizes") if key in translated} == manifest


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        ("", ["11"]),
        ("version_policy { latest { num_versions: 2 } }", ["11", "9"]),
        ("version_policy { all { } }", ["1", "11", "9"]),
        ("version_policy { specific { versions: [ 1, 9, 5 ] } }", ["1", "9"]),
        ("unknown: 1", ["1", "11", "9"]),
    ],
)
def test_versions_of_a_triton_model(policy: str, served: list[str], tmp_path: Path) -> None:
    folders = [
        a_version(tmp_path, f'backend: "python"\n{policy}').with_name(name) for name in ("1", "11", "9", "01", "a")
    ]
    assert [folder.name for folder in served_versions(tmp_path / "m", folders)] == served


@pytest.mark.parametrize(
    ("versions", "served"),
    [('"all"', ["1", "2"]), ("{ latest = 1 }", ["2"]), ('["1"]', ["1"]), ('"none"', ["1", "2"])],
)
def test_versions_of_a_model_toml(versions: str, served: list[str], tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.toml").write_text(f"versions = {versions}")
    folders = [tmp_path / "m" / name for name in ("1", "2")]
    assert [folder.name for folder in served_versions(tmp_path / "m", folders)] == served


@pytest.mark.parametrize(
    ("config", "effect", "text"),
    [
        ("max_batch_size: 6 dynamic_batching { preferred_batch_size: [ 5, 9 ] }", "missing", "got 9, wanted 1 to"),
        ("max_batch_size: 0 dynamic_batching { }", "limited", "without effect: `max_batch_size` is 0"),
        ("max_batch_size: -1", "missing", "got -1, wanted at least 0"),
        ('runtime: "model.py"', "missing", "got 'model.py', wanted the backend's own"),
        ('runtime: "libtriton_onnxruntime.so"', "not needed", "the library of the backend"),
        ("input { name: 'x' data_type: TYPE_BF16 dims: 1 }", "missing", "'x': got TYPE_BF16, wanted one of TYPE_BOOL"),
        ("input { name: 'x' data_type: TYPE_INT8 dims: 1 allow_ragged_batch: true }", "missing", "share no batch"),
        ("input { name: 'x' data_type: TYPE_INT8 dims: 1 is_shape_tensor: true }", "missing", "need TensorRT"),
        (
            "parameters { key: 'intra_op_thread_count' value { string_value: '" + "9" * 5000 + "' } }",
            "limited",
            "intra",
        ),
        ("parameters { key: 'intra_op_thread_count' value { string_value: '4' } }", "used", "`threads`"),
        ("model_warmup { inputs { key: 'z' value { dims: 1 } } } input { name: 'x' }", "limited", "'z' is no input"),
        ("model_warmup { inputs { key: 'x' value { random_data: true } } }", "limited", "zeros in place of random"),
        ("default_model_filename: '../m.onnx'", "missing", "got '../m.onnx', wanted a file name"),
    ],
)
def test_effects_that_depend_on_values(config: str, effect: str, text: str, tmp_path: Path) -> None:
    translation = translate_version(a_version(tmp_path, f'backend: "onnxruntime"\n{config}'))
    assert any(finding.effect == effect and text in finding.text for finding in translation.findings)


def test_a_changed_configuration_is_read_again(tmp_path: Path) -> None:
    folder = a_version(tmp_path, 'backend: "onnxruntime"\nmax_batch_size: 2')
    assert read_manifest(folder).batch_sizes == (1, 2)
    a_version(tmp_path, 'backend: "onnxruntime"\nmax_batch_size: 4')
    assert read_manifest(folder).batch_sizes == (1, 2, 4)


def test_torchscript_does_not_run_on_a_device() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")
    from horologe_gpu_worker.runtimes.pytorch.torchscript_runtime import TorchScriptRuntime

    with pytest.raises(InvalidModel, match="TorchScript runs on the CPU"):
        TorchScriptRuntime(WorkerSettings(device="cuda"))


@pytest.mark.parametrize(
    ("names", "arguments", "positions"),
    [
        (["b", "a"], ["a", "b"], {"b": 1, "a": 0}),
        (["x__1", "x__0"], ["a", "b"], {"x__1": 1, "x__0": 0}),
        (["p", "q"], ["a", "b"], {"p": 0, "q": 1}),
        (["b", "q"], ["a", "b"], {"b": 0, "q": 1}),
    ],
)
def test_inputs_of_torchscript_go_by_name_then_index_then_order(
    names: list[str], arguments: list[str], positions: dict[str, int]
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")
    from horologe_gpu_worker.runtimes.pytorch.torchscript_runtime import input_positions

    assert input_positions(names, arguments) == positions


def test_a_policy_that_leaves_no_version_is_invalid(tmp_path: Path) -> None:
    (tmp_path / "model.toml").write_text('versions = ["7"]')
    with pytest.raises(InvalidModel, match="versions: got 7, wanted some of 1"):
        served_versions(tmp_path, [tmp_path / "1"])
    (tmp_path / "model.toml").unlink()
    (tmp_path / "config.pbtxt").write_text("version_policy { specific { } }")
    with pytest.raises(InvalidModel, match="versions: got none, wanted some of 1"):
        served_versions(tmp_path, [tmp_path / "1"])


@given(st.lists(st.integers(1, 4), max_size=4), st.integers(0, 4), st.data())
def test_a_reshape_and_its_inverse_change_nothing(fixed: list[int], rows: int, data: st.DataObject) -> None:
    inner = data.draw(st.permutations(fixed)) if fixed else []
    entry = TensorEntry("x", "FP32", (-1, *fixed), reshape=(-1, *inner))
    check_reshape("x", entry.sizes, entry.inner_sizes)
    array = np.arange(rows * int(np.prod(fixed))).reshape(rows, *fixed)
    inside = Reshaping([entry]).apply({"x": array})
    assert inside["x"].shape == (rows, *inner)
    outside = Reshaping([entry], outward=True).apply(inside)
    np.testing.assert_array_equal(outside["x"], array)


@pytest.mark.parametrize(("outer", "inner"), [((-1, 4), (-1, 5)), ((-1, 4), (4,)), ((4,), (2, -1))])
def test_a_reshape_that_changes_the_number_of_elements_is_invalid(outer: Sequence[int], inner: Sequence[int]) -> None:
    with pytest.raises(InvalidInput, match="reshape: got"):
        check_reshape("x", outer, inner)


def test_a_tensor_of_another_shape_is_not_reshaped() -> None:
    with pytest.raises(ModelFailed, match=r"tensor 'x': shape: got \[3\], wanted \[4\]"):
        Reshaping([TensorEntry("x", "FP32", (4,), reshape=(2, 2))]).apply({"x": np.zeros(3)})


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(-(1 << 60), 1 << 60), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)


@given(st.dictionaries(st.text("ab-_. \"'\n", max_size=4), VALUES, max_size=4))
def test_written_toml_is_read_again(table: dict[str, Any]) -> None:
    assert tomllib.loads(write_toml(table)) == table


def test_the_names_that_models_may_use_are_those_of_the_module() -> None:
    path = Path(python_runtime.__path__[0]) / "importable" / "triton_python_backend_utils.py"
    names = set()
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    assert names - {"refuse", "refusals", "TYPES", "__getattr__"} == PROVIDED


def test_a_configuration_is_written_as_it_was_read(tmp_path: Path) -> None:
    config = read_config(a_version(tmp_path, VECTOR).parent / "config.pbtxt")
    assert text_format.Parse(text_format.MessageToString(config), config_class()()) == config
