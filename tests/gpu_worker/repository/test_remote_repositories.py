"""Repositories and models at URLs: fetched once, resumed, verified, and served from the cache."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpu_worker.fetching_harness import serve_files
from gpu_worker.inspection_harness import RunningScans
from harness.model_folders import (
    ECHO,
    SIGNATURE,
    a_folder,
    a_python_model,
    an_emulated_model,
    an_onnx_model,
    onnx_bytes,
)
from horologe_common.service.settings import SettingsError
from horologe_common.status import ModelFailed, Status
from horologe_gpu_worker.fetching import downloads
from horologe_gpu_worker.fetching.downloads import Downloads
from horologe_gpu_worker.fetching.mirror import Mirror, is_single_version
from horologe_gpu_worker.fetching.source import parse_source, shown_url
from horologe_gpu_worker.fetching.store import RemoteFile, Store
from horologe_gpu_worker.repository.manifest import read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Run = Callable[..., RunningScans]

pytest.importorskip("aiohttp", reason="aiohttp is not installed (the extra `remote`)")
pytest.importorskip("fsspec", reason="fsspec is not installed (the extra `remote`)")
ROW = {"x": np.ones((1, 4), np.float32)}


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    folder = tmp_path / "remote"
    folder.mkdir()
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Return a function that starts the scans of a worker with a repository."""
    started = []

    def start(repository: str, **settings: Any) -> RunningScans:
        started.append(RunningScans(tmp_path, repository=repository, **settings))
        return started[-1]

    yield start
    for running in started:
        running.scans.stop()


def test_a_repository_behind_http_is_served_from_the_cache(remote: Path, run: Run) -> None:
    an_onnx_model(remote)
    a_folder(remote, "graph", version="2", model_onnx=onnx_bytes())
    a_python_model(remote, "import beside\n" + ECHO)
    (remote / "code" / "1" / "beside.py").write_text("")
    with serve_files(remote) as server:
        running = run(server.url)
        keys = [report.spec.key for report in running.store.list_models()]
        assert keys == ["code/1", "graph/1", "graph/2"]
        reports = [*running.scan("code"), *running.scan("graph")]
        assert [report.reason for report in reports] == ["", "", ""]
        assert any(f"fetching {server.url}/graph/2/model.onnx: " in text for text in running.progress["graph/2"])
        with_server = len(server.sent)
        assert [report.reason for report in running.scan("graph")] == ["", ""]
        assert len(server.sent) == with_server, "files were fetched again"
    again = run(server.url)  # the store is gone: the last list holds
    assert len(again.store.list_models()) == 3
    (report,) = again.scan("code")
    model = again.store.open(report.spec)
    np.testing.assert_array_equal(model.run(1, ROW)["y"], ROW["x"])
    model.close()
    again.begin("code")  # asks the store
    finished = again.finished.get(timeout=30)
    assert finished.status == Status.FAILED
    assert server.url in finished.reason


def test_changed_files_are_fetched_by_the_next_load(remote: Path, run: Run) -> None:
    an_emulated_model(remote)
    with serve_files(remote) as server:
        running = run(server.url)
        running.store.list_models()
        (before,) = running.scan("pretend")
        path = remote / "pretend" / "1" / "model.toml"
        path.write_text(path.read_text().replace("2 = 1.5", "2 = 1.5, 3 = 2"))
        (after,) = running.scan("pretend")
        assert (before.spec.batch_sizes, after.spec.batch_sizes) == ((1, 2), (1, 2, 3))
        path.unlink()
        path.parent.rmdir()
        path.parent.parent.rmdir()
        assert running.scan("pretend") == ()


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_fetch_is_resumed(remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranges: bool) -> None:
    content = bytes(range(256)) * 4096
    (remote / "weights").write_bytes(content)
    monkeypatch.setattr(downloads, "CHUNK_BYTES", 1 << 18)
    with serve_files(remote, ranges) as server:
        server.breaks, server.break_after = 1 if ranges else 2, 200_000  # a server without ranges is asked for them
        texts: list[str] = []
        fetcher = Downloads(tmp_path, texts.append)
        (file,) = fetcher.store(server.url).list_files(f"{server.url}/weights")
        assert fetcher.fetch(file, hashlib.sha256(content).hexdigest()).read_bytes() == content
        assert any("trying again after" in text for text in texts)
        server.sent.clear()
        path = next(tmp_path.glob("[0-9a-f]*"))
        path.rename(path.with_suffix(".partial"))
        with path.with_suffix(".partial").open("r+b") as partial:
            partial.truncate(1 << 19)
        assert fetcher.fetch(file, hashlib.sha256(content).hexdigest()).read_bytes() == content
        fetched = sum(size for _, size in server.sent)
        assert fetched == len(content) >> 1 if ranges else fetched >= len(content)


def test_no_more_is_read_than_the_requested_part(remote: Path) -> None:
    (remote / "weights").write_bytes(bytes(8 << 20))
    with serve_files(remote) as server:
        server.sends_whole = True
        store = Store(server.url)
        with pytest.raises(OSError, match="wanted 1 from 0") as error:
            store.read(RemoteFile("weights", f"{server.url}/weights"), 0, 1)
    assert int(str(error.value).split()[1]) < 1 << 20


def test_a_model_with_an_impossible_name_leaves_the_others(remote: Path, tmp_path: Path, monkeypatch: Any) -> None:
    names = ("good/1/model.onnx", f"{'x' * 300}/1/model.onnx", "both/model.toml", "both/model.toml/a", "bad/\udcff/a")
    files = [RemoteFile(name, f"https://host/{name}") for name in names]
    monkeypatch.setattr(Store, "list_files", lambda *_, **__: files)
    monkeypatch.setattr(Downloads, "fetch", lambda *_: tmp_path)
    mirror = Mirror("https://host", tmp_path)
    faults = mirror.write_lists(Downloads(mirror.files, lambda text: None))
    assert [fault.partition(":")[0] for fault in faults] == ["x" * 128, "both", "bad"]
    assert (mirror.root / "good" / "1").is_dir()


def test_a_wrong_hash_and_too_little_space_are_errors(
    remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (remote / "weights").write_bytes(b"weights")
    with serve_files(remote) as server:
        fetcher = Downloads(tmp_path, lambda text: None)
        (file,) = fetcher.store(server.url).list_files(f"{server.url}/weights")
        wrong, right = "0" * 64, hashlib.sha256(b"weights").hexdigest()
        with pytest.raises(ModelFailed, match=f"/weights: got a file of sha256:{right}, wanted sha256:{wrong}"):
            fetcher.fetch(file, wrong)
        assert fetcher.fetch(file, right).read_bytes() == b"weights"
        monkeypatch.setattr(downloads, "LIMIT_BYTES", 6)
        with pytest.raises(ModelFailed, match="got files of 7 bytes to fetch, wanted at most 6"):
            fetcher.expect([file])


def test_several_workers_fetch_a_file_once(remote: Path, tmp_path: Path, run: Run) -> None:
    folder = an_onnx_model(remote)
    (folder / "weights.bin").write_bytes(bytes(30 << 20))
    with serve_files(remote) as server:
        workers = [run(server.url) for _ in range(2)]
        for worker in workers:
            worker.store.list_models()
            worker.begin("graph")
        for worker in workers:
            assert worker.finished.get(timeout=30).models[0].reason == ""
        assert sum(size for path, size in server.sent if path.endswith("weights.bin")) == 30 << 20


def test_files_of_a_model_on_disk_come_from_urls(remote: Path, tmp_path: Path, run: Run) -> None:
    (remote / "m.onnx").write_bytes(onnx_bytes())
    digest = hashlib.sha256(onnx_bytes()).hexdigest()
    with serve_files(remote) as server:
        entry = f'files."model.onnx" = {{ url = "{server.url}/m.onnx", sha256 = "{digest}" }}\n'
        a_folder(tmp_path / "models", "good", 'runtime = "onnx"\n' + entry)
        a_folder(tmp_path / "models", "bad", 'runtime = "onnx"\n' + entry.replace(digest, "1" * 64))
        text = 'files."model.py".sha256 = "' + "2" * 64 + '"\n' + SIGNATURE
        a_folder(tmp_path / "models", "local", text, model_py=ECHO)
        running = run(str(tmp_path / "models"))
        running.store.list_models()
        (good,), (bad,), (local,) = (running.scan(name) for name in ("good", "bad", "local"))
    assert good.reason == ""
    model = running.store.open(good.spec)  # without the server
    np.testing.assert_array_equal(model.run(1, ROW)["y"], ROW["x"])
    model.close()
    assert re.search(f"m.onnx: got a file of sha256:{digest}, wanted sha256:1111", bad.reason)
    assert re.search("local/1/model.py: sha256: got [0-9a-f]+, wanted 2222", local.reason)


@pytest.mark.parametrize(("place", "versions"), [("folder", ""), ("folder", "1"), ("url", "")])
def test_a_single_model_needs_no_repository(remote: Path, run: Run, place: str, versions: str) -> None:
    folder = remote / "given" / versions
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(onnx_bytes())
    with serve_files(remote) as server:
        running = run(f"mine={remote}/given" if place == "folder" else f"mine={server.url}/given")
        assert [report.spec.key for report in running.store.list_models()] == ["mine/1"]
        (report,) = running.scan("mine")
    assert report.reason == ""
    model = running.store.open(report.spec)
    np.testing.assert_array_equal(model.run(1, ROW)["y"], ROW["x"])
    model.close()


def test_a_fetch_has_a_time_of_its_own(remote: Path, tmp_path: Path, run: Run) -> None:
    folder = a_folder(tmp_path / "models", "m", 'files."model.onnx".url = "http://127.0.0.1:9/m.onnx"\n')
    assert read_manifest(folder).files
    (report,) = run(str(tmp_path / "models"), fetch_timeout_ns=1).scan("m")
    assert "got no result within 1e-09 s" in report.reason
    (report,) = run(str(tmp_path / "models")).scan("m")
    assert "http://127.0.0.1:9/m.onnx: " in report.reason


@pytest.mark.parametrize(
    ("text", "name", "place"),
    [
        ("models", "", "models"),
        ("a=/mnt/models", "a", "/mnt/models"),
        ("s3://bucket/models?versionId=1", "", "s3://bucket/models?versionId=1"),
        ("a.b=hf://org/model", "a.b", "hf://org/model"),
        ("/srv/a=b", "", "/srv/a=b"),
    ],
)
def test_the_setting_names_a_repository_or_a_model(text: str, name: str, place: str) -> None:
    assert parse_source(text) == (name, place)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://host/models", "got 'ftp://host/models', wanted a URL of s3, gs, az, hf, http, https"),
        ("https://me:secret@host/models", "got a password in 'https://host/models', wanted it in the environment"),
    ],
)
def test_wrong_urls_are_named_without_their_secrets(url: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        parse_source(url)
    assert shown_url("https://me@host/path?signature=secret") == "https://host/path"


@pytest.mark.parametrize(
    ("names", "single"),
    [
        (["model.onnx", "data/weights"], True),
        (["model.toml", "1/model.py", "2/model.py"], False),
        (["model.toml", "__shared/labels.txt"], True),
        (["config.pbtxt", "1/model.onnx"], False),
    ],
)
def test_folders_of_a_model_are_versions_unless_it_has_a_model_file(names: list[str], single: bool) -> None:
    assert is_single_version(names) == single


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    with pytest.raises(ModelFailed, match=r"gs://bucket: gcsfs is not installed \(the extra `gs` of"):
        Store("gs://bucket")
