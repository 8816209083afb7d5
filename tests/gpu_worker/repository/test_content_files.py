"""The content of a version: every file that its model may read, and nothing that blocks or never ends."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.model_folders import a_python_model
from horologe_common.status import Refused
from horologe_gpu_worker.repository import content as content_module
from horologe_gpu_worker.repository.content import ContentHashes, list_files
from horologe_gpu_worker.repository.manifest import InvalidModel

if TYPE_CHECKING:
    from collections.abc import Callable

FIXED_NS = 1_577_836_800_000_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return a_python_model(tmp_path / "models")


def names(folder: Path) -> list[str]:
    return [file.name for file in list_files(folder)]


def write(path: Path, text: str) -> None:
    """Write a file with the same times whatever the text is, as in archives and image layers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, ns=(FIXED_NS, FIXED_NS))


def behind_a_linked_folder(folder: Path) -> Path:
    (folder.parents[2] / "weights").mkdir()
    (folder / "weights").symlink_to(folder.parents[2] / "weights")
    return folder.parents[2] / "weights" / "w.bin"


def behind_a_linked_file(folder: Path) -> Path:
    (folder / "w.bin").symlink_to(folder.parents[2] / "blob")
    return folder.parents[2] / "blob"


def behind_two_links(folder: Path) -> Path:
    (folder / "w.bin").symlink_to(folder.parents[2] / "current")
    (folder.parents[2] / "current").symlink_to("blob")
    return folder.parents[2] / "blob"


@pytest.mark.parametrize(
    "find",
    [
        lambda folder: folder / "model.py",
        lambda folder: folder / ".vocabulary",
        lambda folder: folder / ".hidden" / "deep" / "w.bin",
        lambda folder: folder / "data" / "model.toml",
        lambda folder: folder / "module.pyc",
        lambda folder: folder.parent / "labels.txt",
        lambda folder: folder.parent / ".labels",
        lambda folder: folder.parent / "shared.py",
        lambda folder: folder.parent / "__shared" / "module.py",
        lambda folder: folder / os.fsdecode(b"\xff.bin"),
        behind_a_linked_folder,
        behind_a_linked_file,
        behind_two_links,
    ],
)
def test_a_file_of_equal_size_and_time_is_another_content(folder: Path, find: Callable[[Path], Path]) -> None:
    path, contents = find(folder), ContentHashes()
    write(path, "old")
    before = contents.read(folder)
    write(path, "new")
    assert contents.read(folder).hash != before.hash
    with pytest.raises(Refused, match="changed while the model was read"):
        before.check_unchanged()


def test_a_replaced_link_and_a_restored_file_are_seen(folder: Path) -> None:
    """Blue and green folders behind one link; a link to nothing; `cp -p` of a backup."""
    contents = ContentHashes()
    for name in ("blue", "green"):
        write(folder.parents[2] / name / "w.bin", name[:4])
    hashes = []
    for target in ("blue", "green", "nothing", "blue"):
        (folder / "data").unlink(missing_ok=True)
        (folder / "data").symlink_to(folder.parents[2] / target)
        hashes.append(contents.read(folder).hash)
    assert len(set(hashes)) == 3
    assert hashes[0] == hashes[3]


def test_other_versions_and_what_editors_and_file_systems_make_are_no_content(folder: Path) -> None:
    before = ContentHashes().read(folder).hash
    for name in (
        "../2/model.py",
        "../.2.partial/model.py",
        "__pycache__/model.cpython-312.pyc",
        ".nfs0001",
        ".git/HEAD",
    ):
        write(folder / name, "text")
    for name in ("..2026_01_01/labels.txt", ".model.py.swp", ".#model.py", ".DS_Store"):
        write(folder / name, "text")
    assert ContentHashes().read(folder).hash == before


def test_a_mounted_config_map_has_one_content_whatever_its_folder_is_called(tmp_path: Path) -> None:
    hashes = set()
    for number in range(2):
        folder = a_python_model(tmp_path / str(number))
        write(folder / f"..2026_{number}" / "labels.txt", "cat dog")
        (folder / "..data").symlink_to(f"..2026_{number}")
        (folder / "labels.txt").symlink_to("..data/labels.txt")
        hashes.add(ContentHashes().read(folder).hash)
        assert "labels.txt" in names(folder)
    assert len(hashes) == 1


def test_the_manifest_counts_by_its_name(tmp_path: Path) -> None:
    own, shared = a_python_model(tmp_path / "a"), a_python_model(tmp_path / "b")
    (shared / "model.toml").rename(shared.parent / "model.toml")
    assert ContentHashes().read(own).hash == ContentHashes().read(shared).hash
    before = ContentHashes().read(own).hash
    write(own.parent / "model.toml", "slo = '1ms'")
    assert ContentHashes().read(own).hash == before, "only the manifest of the version is read"


def test_links_to_other_models_and_versions_are_followed(folder: Path) -> None:
    write(folder.parent / "2" / "w.bin", "two")
    (folder / "other").symlink_to("../2")
    (folder / "again").symlink_to("../2")
    assert {"other/w.bin", "again/w.bin"} <= set(names(folder))


def a_loop_of_two(folder: Path) -> None:
    (folder.parent / "2").mkdir()
    (folder.parent / "2" / "back").symlink_to("../1")
    (folder / "there").symlink_to("../2")


def a_pipe_for_a_manifest(folder: Path) -> None:
    (folder / "model.toml").unlink()
    os.mkfifo(folder / "model.toml")


def a_socket(folder: Path) -> None:
    here = Path.cwd()
    os.chdir(folder)  # the path of a socket has at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind("s")
    finally:
        os.chdir(here)


def a_terabyte(folder: Path) -> None:
    with (folder / "weights.bin").open("wb") as file:
        file.truncate(1 << 40)


def links_that_double(folder: Path) -> None:
    for level in range(20):
        (folder.parents[2] / f"d{level}").mkdir()
    for level in range(20):
        for name in "ab":
            (folder.parents[2] / f"d{level}" / name).symlink_to(f"../d{level + 1}")
    (folder / "d").symlink_to(folder.parents[2] / "d0")


LOOP = "got a link to a folder that contains the link, wanted no loop"


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda folder: (folder / "loop").symlink_to("."), LOOP),
        (lambda folder: (folder / "up").symlink_to("../.."), LOOP),
        (a_loop_of_two, LOOP),
        (lambda folder: os.mkfifo(folder / "weights.bin"), r"weights\.bin: got a named pipe, wanted files and folders"),
        (a_pipe_for_a_manifest, r"model\.toml: got a named pipe"),
        (lambda folder: os.mkfifo(folder.parent / "labels"), "labels: got a named pipe"),
        (lambda folder: (folder / "weights.bin").symlink_to("/dev/zero"), r"weights\.bin: got a device"),
        (a_socket, "got a socket"),
        (a_terabyte, r"got files of 1099511\d+ bytes, wanted at most \d+"),
        (links_that_double, "got more than 500 files and folders"),
    ],
)
def test_what_cannot_be_read_is_named_and_ends(folder: Path, make: Callable[[Path], None], wanted: str) -> None:
    make(folder)
    with pytest.raises(InvalidModel, match=wanted):
        ContentHashes(files_max=500).read(folder)


def on_open(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
    """Call a function after each file of a content was opened, before it is read."""
    open_file = os.open

    def open_and_call(*arguments: Any) -> int:
        descriptor = open_file(*arguments)
        call()
        return descriptor

    monkeypatch.setattr(os, "open", open_and_call)


@pytest.mark.parametrize("size", [3, 10 << 20])
def test_a_file_that_changes_while_it_is_read_is_named(
    folder: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "weights.bin"
    path.write_bytes(bytes(4 << 20))
    on_open(monkeypatch, lambda: os.truncate(path, size))
    with pytest.raises(Refused, match=r"weights\.bin: changed while it was read"):
        ContentHashes().read(folder)


def test_a_file_that_was_rewritten_with_the_same_bytes_was_touched(folder: Path) -> None:
    """A runtime may have read it half written, although it has the same hash before and after."""
    content = ContentHashes().read(folder)
    (folder / "model.py").write_bytes((folder / "model.py").read_bytes())
    with pytest.raises(Refused, match=r"model\.py: changed while the model was read"):
        content.check_unchanged()


def test_files_are_read_again_only_if_they_have_changed_or_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    contents = ContentHashes()
    on_open(monkeypatch, lambda: reads.append(1))
    now_ns = time.time_ns() + content_module.SETTLED_NS
    monkeypatch.setattr(time, "time_ns", lambda: now_ns + 1)
    first = contents.read(folder)
    assert len(reads) == 2
    assert contents.read(folder) == first
    assert len(reads) == 2
    contents.read(folder, anew=True)
    assert len(reads) == 4
