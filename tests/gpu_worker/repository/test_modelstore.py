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
    from horologe_gpu_worker.runtime import Runtime
from horologe_gpu_worker.settings import WorkerSettings


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def store(repository: Path, tmp_path: Path) -> ModelStore:
    return ModelStore(repository, tmp_path / "cache", report=lambda line: None)


def reason_for(store: ModelStore, name: str = "m") -> str:
    (report,) = [report for report in store.scan() if report.spec.name == name]
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


def test_a_folder_of_pipelines_is_no_model_also_before_its_manifest_is_written(
    store: ModelStore, repository: Path
) -> None:
    folder = repository / "pipelines"
    folder.mkdir()
    assert store.list_models() == []
    for name in ("chain.py", "__pycache__/chain.pyc", "pipeline.toml"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
        assert (store.list_models(), store.scan(), store.version_folders("pipelines")) == ([], [], []), name


def test_a_model_may_be_called_pipelines(store: ModelStore, repository: Path) -> None:
    an_onnx_model(repository, "pipelines")
    assert [report.spec.key for report in store.scan()] == ["pipelines/1"]


def test_a_model_that_is_replaced_while_it_is_listed_is_listed_again(
    store: ModelStore, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_emulated_model(repository)
    folder, listdir = repository / "pretend", os.listdir

    def list_before(path: Path) -> list[str]:
        """Return what the folder had before it was emptied and another one took its place."""
        if path == folder and not (tmp_path / "before").exists():
            folder.rename(tmp_path / "before")
            an_emulated_model(repository)
            return []
        return listdir(path)

    monkeypatch.setattr(os, "listdir", list_before)
    assert [version.name for version in store.version_folders("pretend")] == ["1"]


def test_a_model_that_is_always_replaced_is_not_listed(
    store: ModelStore, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, listdir = repository / "pretend", os.listdir
    an_emulated_model(repository)

    def replace(path: Path) -> list[str]:
        listed = listdir(path)
        folder.rename(tmp_path / str(len(listdir(tmp_path))))
        an_emulated_model(repository)
        return listed

    monkeypatch.setattr(os, "listdir", replace)
    with pytest.raises(Refused, match="pretend: was replaced while it was listed"):
        store.version_folders("pretend")


def test_settings_come_from_the_versions_manifest_or_else_the_models(store: ModelStore, repository: Path) -> None:
    a_folder(repository, "m", model_onnx=onnx_bytes())
    a_folder(repository, "m", 'slo = "7ms"', version="2", model_onnx=onnx_bytes())
    (repository / "m" / "model.toml").write_text('slo = "50ms"\ncache = true\ncache_ttl = "10s"\nbatch_sizes = [1, 3]')
    first, second = [report.spec for report in store.scan()]
    assert (first.slo_ns, first.cache, first.cache_ttl_ns, first.batch_sizes) == (ms(50), True, s(10), (1, 3))
    assert (second.slo_ns, second.cache) == (ms(7), False)


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
    assert [store.version_folders(name) for name in ("", "..", "../fine", "no-such", ".", "a\0", "x" * 300)] == [[]] * 7


def test_two_model_files_need_a_runtime(store: ModelStore, repository: Path) -> None:
    folder = a_folder(repository, "m", model_onnx=onnx_bytes(), model_py=ECHO)
    wanted = "model.onnx or model.pt2 or model.pt or model.py (or `runtime` in model.toml)"
    assert f"got onnx and python, wanted {wanted}" in reason_for(store)
    (folder / "model.toml").write_text('runtime = "onnx"')
    assert store.scan()[0].profile is not None


def test_a_runtime_that_is_not_installed_is_that_models_reason_only(repository: Path, tmp_path: Path) -> None:
    def absent(place: WorkerSettings) -> Runtime:
        importlib.import_module("package_of_no_one")
        raise AssertionError

    an_onnx_model(repository)
    an_emulated_model(repository)
    graph, pretend = ModelStore(repository, tmp_path / "cache", {**RUNTIMES, "onnx": absent}).scan()
    assert graph.reason == "runtime 'onnx': package_of_no_one is not installed (the extra `onnx` of the distribution)"
    assert pretend.profile is not None


def test_a_scan_follows_what_changes_on_disk(store: ModelStore, repository: Path) -> None:
    folder = an_emulated_model(repository)
    (before,) = store.scan()
    (folder / "model.toml").write_text((folder / "model.toml").read_text().replace("1 = 1.0", "1 = 2.0"))
    (after,) = store.scan()
    assert after.spec.content_hash != before.spec.content_hash
    assert after.profile is not None
    assert after.profile.exec_ns[1] == ms(2)
    (folder / "model.toml").unlink()
    folder.rmdir()
    folder.parent.rmdir()
    assert store.scan() == []
    with pytest.raises(UnknownModel):
        store.spec("pretend/1")


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
    (after,) = store.scan()
    store.open(after.spec).close()


def test_a_content_that_is_open_in_host_memory_is_opened_whatever_the_files_are(
    store: ModelStore, repository: Path
) -> None:
    folder = an_onnx_model(repository)
    (report,) = store.scan()
    (folder / "model.onnx").write_bytes(b"half of a file")
    store.open(report.spec).close()


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
