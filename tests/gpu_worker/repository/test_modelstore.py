"""Model store: servable models, and errors that name the fault without affecting other models."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from harness.model_folders import (
    ECHO,
    SIGNATURE,
    a_folder,
    a_python_model,
    an_emulated_model,
    an_onnx_model,
    onnx_bytes,
)
from horologe_common.clock import ms, s
from horologe_common.status import Refused, UnknownModel
from horologe_gpu_worker.repository.content import ContentHashes
from horologe_gpu_worker.repository.manifest import InvalidModel
from horologe_gpu_worker.repository.modelstore import ModelStore
from horologe_gpu_worker.runtimes import RUNTIMES
from horologe_gpu_worker.runtimes.emulated import EmulatedRuntime

if TYPE_CHECKING:
    from horologe_common.models import ModelSpec
    from horologe_gpu_worker.runtime import DeviceConfig, Runtime


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def store(repository: Path, tmp_path: Path) -> ModelStore:
    return ModelStore(repository, tmp_path / "cache", report=lambda line: None)


def reason_for(store: ModelStore, name: str = "m") -> str:
    (report,) = store.scan_model(name)
    assert report.profile is None
    return report.reason


def test_finds_every_version_of_every_runtime_and_opens_them(store: ModelStore, repository: Path) -> None:
    an_onnx_model(repository)
    a_folder(repository, "graph", version="2", model_onnx=onnx_bytes())
    a_python_model(repository)
    an_emulated_model(repository)
    (repository / "README.md").write_text("not a model")
    (repository / ".git").mkdir()
    (repository / "__pycache__").mkdir()
    reports = store.scan()
    assert [report.reason for report in reports] == [""] * 4
    assert [report.spec.key for report in reports] == ["code/1", "graph/1", "graph/2", "pretend/1"]
    for report in reports:
        assert report.profile is not None
        assert set(report.profile.exec_ns) == set(report.spec.batch_sizes)
        assert store.spec(report.spec.key) == report.spec
        assert report.spec.content_hash
        model = store.open(report.spec)
        assert model.run(1, {"x": np.ones((1, 4), np.float32)})["y"].tolist() == [[1] * 4]
        model.close()


def test_a_scan_opens_only_content_that_has_changed(
    store: ModelStore, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspected: list[Path] = []
    inspect = EmulatedRuntime.inspect

    def count(self: EmulatedRuntime, folder: Path) -> ModelSpec:
        inspected.append(folder)
        return inspect(self, folder)

    monkeypatch.setattr(EmulatedRuntime, "inspect", count)
    an_emulated_model(repository, "m")
    first = store.scan_model("m")
    assert [store.scan_model("m") for _ in range(3)] == [first] * 3
    assert len(inspected) == 1
    (repository / "m" / "1" / "model.toml").write_text(
        (repository / "m" / "1" / "model.toml").read_text() + "\n# changed\n"
    )
    assert store.scan_model("m") != first
    assert len(inspected) == 2


def test_settings_come_from_the_versions_manifest_or_else_the_models(store: ModelStore, repository: Path) -> None:
    a_folder(repository, "m", model_onnx=onnx_bytes())
    a_folder(repository, "m", 'slo = "7ms"', version="2", model_onnx=onnx_bytes())
    (repository / "m" / "model.toml").write_text('slo = "50ms"\ncache = true\ncache_ttl = "10s"\nbatch_sizes = [1, 3]')
    first, second = [report.spec for report in store.scan()]
    assert (first.slo_ns, first.cache, first.cache_ttl_ns, first.batch_sizes) == (ms(50), True, s(10), (1, 3))
    assert (second.slo_ns, second.cache) == (ms(7), False)


def test_what_is_wrong_with_one_model_leaves_the_others(store: ModelStore, repository: Path) -> None:
    an_onnx_model(repository, "good")
    a_folder(repository, "bad", model_onnx=b"garbage")
    a_python_model(repository, "raise RuntimeError('no licence')", "raises")
    reports = {report.spec.name: report for report in store.scan()}
    assert reports["good"].profile is not None
    assert "model.onnx: got" in reports["bad"].reason
    assert "RuntimeError: no licence" in reports["raises"].reason
    with pytest.raises(UnknownModel, match="bad/1"):
        store.spec("bad/1")


@pytest.mark.parametrize(
    ("manifest", "wanted"),
    [
        ("slo = '50'", r"model\.toml: slo: got '50', wanted a number with one of ns, us, ms"),
        ("slo = 50", r"model\.toml: Expected `str`, got `int` - at `\$\.slo`"),
        ("slo = '-5ms'", "slo: got '-5ms', wanted at least 0"),
        ("sloo = '5ms'", r"model\.toml: got the key 'sloo', wanted one of runtime, batch_sizes, batching, slo, "),
        ("[emulated]\nexec = 1", r"model\.toml: \[emulated\]: got the key 'exec', wanted one of exec_ms, "),
        ("[[inputs]]\ntype = 'FP32'", r"\[\[inputs\]\]: got the key 'type', wanted one of name, datatype, "),
        ("inputs = 5", r"model\.toml: "),
        ("batch_sizes = [4, 2]", r"batch_sizes: got \[4, 2\], wanted ascending"),
        ("batch_sizes = [0, 2]", r"batch_sizes: got \[0, 2\], wanted ascending numbers from 1"),
        ("threads = 0", "threads: got 0, wanted at least 1"),
        ("slo = '99999999999s'", "slo: got '99999999999s', wanted a number"),
        ("batch_sizes = [1, 99999999999999999999]", r"batch_sizes: got \[1, 99999999999999999999\], wanted ascending"),
        ("max_length = 99999999999999999999", "max_length: got 99999999999999999999, wanted at least 0 and at most"),
        ("runtime = 'torch'", "runtime: got 'torch', wanted one of onnx, pytorch, python, emulated"),
        ("runtime = 'emulated'\n" + SIGNATURE, r"emulated: got no table, wanted \[emulated\]"),
        ("[emulated]\nexec_ms = {1 = -1}\n" + SIGNATURE, "model.toml: "),
        (SIGNATURE.replace("FP32", "FLOAT"), "inputs: x: datatype: got 'FLOAT', wanted one of BOOL"),
        (SIGNATURE.replace("-1", "-2"), r"inputs: x: shape: got \[-2, 4\]"),
        (SIGNATURE.replace("4", "99999999999999999999"), r"inputs: x: shape: got \[-1, 99999999999999999999\], wanted"),
        (SIGNATURE + SIGNATURE, "inputs: name: got 'x', wanted a unique name"),
        (SIGNATURE.replace("[-1", "[" + "-1, " * 33 + "-1", 1), "inputs: x: shape: got .*at most 32 sizes"),
        ("slo = " + "[" * 5000, "nested more than 16 deep, wanted at most 16"),
        ("[[[", r"model\.toml: "),
    ],
)
def test_a_bad_manifest_names_file_field_got_and_wanted(
    store: ModelStore, repository: Path, manifest: str, wanted: str
) -> None:
    a_folder(repository, "m", manifest, model_onnx=onnx_bytes())
    with pytest.raises(AssertionError, match=wanted):
        raise AssertionError(reason_for(store))


def test_folders_that_cannot_be_read_do_not_affect_the_others(
    store: ModelStore, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is not UTF-8, and a folder that vanishes between two reads."""
    for name in ("fine", "gone", os.fsdecode(b"\xff")):
        an_onnx_model(repository, name)
    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: listed(path / "x" if path.name == "gone" else path))
    reports = {report.spec.name: report for report in store.scan()}
    msgspec.msgpack.encode(list(reports.values()))
    assert {name: bool(report.reason) for name, report in reports.items()} == {"fine": False, "gone": True, "?": True}


def test_names_that_would_break_addresses_are_refused(store: ModelStore, repository: Path) -> None:
    an_onnx_model(repository, "has space")
    an_onnx_model(repository, "has#hash")
    an_onnx_model(repository, "fine")
    assert {report.spec.name: report.reason[:16] for report in store.scan()} == {
        "has space": "name: got 'has s",
        "has#hash": "name: got 'has#h",
        "fine": "",
    }
    assert [store.scan_model(name) for name in ("", "..", "../fine", "no-such", ".", "a\0", "x" * 300)] == [[]] * 7


def test_a_model_outside_a_version_folder_is_told_where_it_belongs(store: ModelStore, repository: Path) -> None:
    (repository / "m").mkdir()
    (repository / "m" / "model.onnx").write_bytes(onnx_bytes())
    assert reason_for(store).endswith(
        "m: got no version folder, wanted " + str(repository / "m" / "1") + " with the model in it"
    )


def test_two_model_files_need_a_runtime(store: ModelStore, repository: Path) -> None:
    folder = a_folder(repository, "m", model_onnx=onnx_bytes(), model_py=ECHO)
    assert "got onnx and python, wanted model.onnx or model.pt2 or model.py (or `runtime` in model.toml)" in reason_for(
        store
    )
    (folder / "model.toml").write_text('runtime = "onnx"')
    assert store.scan_model("m")[0].profile is not None


def test_a_runtime_that_is_not_installed_is_that_models_reason_only(repository: Path, tmp_path: Path) -> None:
    def absent(place: DeviceConfig) -> Runtime:
        importlib.import_module("package_of_no_one")
        raise AssertionError

    an_onnx_model(repository)
    an_emulated_model(repository)
    graph, pretend = ModelStore(repository, tmp_path / "cache", {**RUNTIMES, "onnx": absent}).scan()
    assert graph.reason == "runtime 'onnx': package_of_no_one is not installed (the extra `onnx` of the distribution)"
    assert pretend.profile is not None


def test_scan_one_follows_what_changes_on_disk(store: ModelStore, repository: Path) -> None:
    folder = an_emulated_model(repository)
    (before,) = store.scan()
    (folder / "model.toml").write_text((folder / "model.toml").read_text().replace("1 = 1.0", "1 = 2.0"))
    (after,) = store.scan_model("pretend")
    assert after.spec.content_hash != before.spec.content_hash
    assert after.profile is not None
    assert after.profile.exec_ns[1] == ms(2)
    (folder / "model.toml").unlink()
    folder.rmdir()
    folder.parent.rmdir()
    assert store.scan_model("pretend") == []
    with pytest.raises(UnknownModel):
        store.spec("pretend/1")


def test_the_content_hash_is_of_the_content(store: ModelStore, repository: Path) -> None:
    an_onnx_model(repository, "a")
    an_onnx_model(repository, "b")
    an_onnx_model(repository, "c", manifest="batch_sizes = [1]")
    a, b, c = [report.spec.content_hash for report in store.scan()]
    assert a == b != c


def test_the_content_hash_depends_on_where_a_file_is(repository: Path) -> None:
    hashes = set()
    for name, place in (("a", "data/x.bin"), ("b", "more/x.bin"), ("c", "x.bin")):
        file = an_onnx_model(repository, name) / place
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"the same")
        hashes.add(ContentHashes().read(repository / name / "1").hash)
    assert len(hashes) == 3


def test_declared_transfer_times_use_the_lanes(store: ModelStore, repository: Path) -> None:
    an_emulated_model(repository, "host")
    folder = an_emulated_model(repository, "device")
    (folder / "model.toml").write_text((folder / "model.toml").read_text() + "input_ms = 0.1\n")
    store.scan()
    assert store.inline_io("host/1")
    assert not store.inline_io("device/1")


def test_a_repository_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="nowhere: No such file or directory, wanted a folder of models"):
        ModelStore(tmp_path / "nowhere", tmp_path / "cache").scan()


def test_a_repository_that_cannot_be_written_is_served(store: ModelStore, repository: Path) -> None:
    an_onnx_model(repository)
    a_python_model(repository)
    before = sorted(repository.rglob("*"))
    assert all(report.profile for report in store.scan())
    assert sorted(repository.rglob("*")) == before


def test_a_content_is_opened_as_it_was_read_or_not_at_all(store: ModelStore, repository: Path) -> None:
    folder = a_python_model(repository)
    (report,) = store.scan()
    (folder / "model.py").write_text(ECHO + "# another content\n")
    with pytest.raises(Refused, match="run `horologe load code` to serve the new content"):
        store.open(report.spec)
    (after,) = store.scan_model("code")
    store.open(after.spec).close()


def test_a_content_that_is_open_in_host_memory_is_opened_whatever_the_files_are(
    store: ModelStore, repository: Path
) -> None:
    folder = an_onnx_model(repository)
    (report,) = store.scan()
    (folder / "model.onnx").write_bytes(b"half of a file")
    store.open(report.spec).close()


def test_changes_that_leave_size_and_time_of_a_file_are_seen(store: ModelStore, repository: Path) -> None:
    folder = a_python_model(repository, ECHO + "# 1\n")
    contents = {store.scan_model("code")[0].spec.content_hash}
    status = (folder / "model.py").stat()
    for number in range(2, 5):
        (folder / "model.py").write_text(f"{ECHO}# {number}\n")
        os.utime(folder / "model.py", ns=(status.st_atime_ns, status.st_mtime_ns))
        contents.add(store.scan_model("code")[0].spec.content_hash)
    assert len(contents) == 4


def test_files_that_change_while_they_are_read_are_not_served(repository: Path, tmp_path: Path) -> None:
    folder = an_emulated_model(repository)

    class Editing(EmulatedRuntime):
        """A runtime during whose `inspect` the manifest changes."""

        def inspect(self, folder: Path) -> ModelSpec:
            spec = super().inspect(folder)
            with (folder / "model.toml").open("a") as file:
                file.write("# changed\n")
            return spec

    (report,) = ModelStore(repository, tmp_path / "cache", {"emulated": lambda device: Editing()}).scan()
    assert report.profile is None
    assert f"{folder / 'model.toml'}: changed while the model was read" in report.reason
