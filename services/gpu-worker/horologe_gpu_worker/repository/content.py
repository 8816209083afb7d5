"""The content of a model version: the files that a model may read, their hash, and whether they are still the same.

Hash, caches and runtimes use this list of files and no other:

- the files of the version's folder, also hidden files and those behind links
- its manifest, which may be in the model's folder
- the files beside the version's folder, and the folders there whose names begin with `__`
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import stat
import time
from typing import TYPE_CHECKING, NamedTuple

from horologe_common.clock import s
from horologe_common.status import Refused
from horologe_gpu_worker.repository.manifest import MANIFEST, InvalidModel, manifest_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from horologe_common.models import ModelSpec

IGNORED = ("__pycache__", "..*", ".git", ".nfs*", ".fuse_hidden*", ".#*", ".*.sw[a-p]", ".DS_Store")
"""Names that are no content: Python, Kubernetes, Git, file systems and editors create them beside the files."""
FILES_MAX = 100_000
"""Limit of files and folders. Folders behind links can contain each other exponentially often."""
CHUNK_BYTES = 1 << 20
SETTLED_NS = s(3)
"""A file that changed less than this before it was hashed is hashed again next time. A further change may leave size
and times as they are: the clock of ext4 advances every 4 ms, that of FAT every 2 s.
"""
KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class FileState(NamedTuple):
    """Identity, size and times of a file. Every change of the file changes them, apart from the limits of the clock."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


class ContentFile(NamedTuple):
    """A file. `name` is its path relative to the version's folder; that of the manifest is always `model.toml`."""

    name: str
    path: str
    state: FileState | None
    """None: a link to a file that does not exist."""


class Content(NamedTuple):
    """The content of a folder when it was read."""

    folder: Path
    hash: str
    files: tuple[ContentFile, ...]

    def check_spec(self, spec: ModelSpec) -> None:
        """Raise `Refused` unless this is the content of `spec`. Without a content hash do nothing.

        Refused LOADs are tried again, because the new content is usually loaded soon after it was written.
        """
        if spec.content_hash not in ("", self.hash):
            raise Refused(
                f"{self.folder}: got other files than those of content {spec.content_hash}, which was read last: "
                f"run `horologe load {spec.name}` to serve the new content"
            )

    def check_unchanged(self) -> None:
        """Raise `Refused` naming a file that was written, replaced, added or removed since the content was read."""
        before, now = dict.fromkeys(self.files), dict.fromkeys(list_files(self.folder))
        if changed := [*before.keys() - now.keys(), *now.keys() - before.keys()]:
            raise Refused(
                f"{min(changed).path}: changed while the model was read: "
                f"run `horologe load {self.folder.parent.name}` when all files are written"
            )


class HashedFile(NamedTuple):
    """A file that was hashed, for another process: its name and path as the file system encodes them."""

    name: bytes
    path: bytes
    state: FileState | None
    digest: bytes


class ContentHashes:
    """Reads contents. The hash of a file is kept until its identity, size or times change.

    A content of more than `limit_bytes`, or of more than `files_max` files and folders, is not read.
    """

    def __init__(self, limit_bytes: int = 256 << 30, files_max: int = FILES_MAX) -> None:
        self._limit_bytes = limit_bytes
        self._files_max = files_max
        self._digests: dict[Path, dict[ContentFile, bytes]] = {}
        """Folder -> the hashes of its files when it was read last."""

    def read(self, folder: Path, anew: bool = False) -> Content:
        """Return the content of a version's folder. Without `anew`, files whose state has not changed are not read.

        Raises `InvalidModel` for files that are no content, `Refused` for a file that changes meanwhile, and OSError.
        """
        files = list_files(folder, self._files_max)
        size = sum(file.state.size for file in files if file.state)
        if size > self._limit_bytes:
            raise InvalidModel(f"{folder}: got files of {size} bytes, wanted at most {self._limit_bytes}")
        known = {} if anew else self._digests.get(folder, {})
        now_ns, digests, whole = time.time_ns(), {}, hashlib.blake2b(digest_size=16)
        for file in files:
            digest = known.get(file) or self._hash_file(file)
            whole.update(os.fsencode(file.name) + b"\0" + digest)
            if file.state and now_ns - file.state.ctime_ns > SETTLED_NS:
                digests[file] = digest
        self._digests[folder] = digests
        return Content(folder, whole.hexdigest(), files)

    def files_of(self, folder: Path) -> tuple[HashedFile, ...]:
        """Return the files of a version whose hashes are kept."""
        return tuple(
            HashedFile(os.fsencode(file.name), os.fsencode(file.path), file.state, digest)
            for file, digest in self._digests.get(folder, {}).items()
        )

    def adopt_files(self, folder: Path, files: Iterable[HashedFile]) -> None:
        """Keep hashes that another process has computed. They hold until identity, size or times change, as all do."""
        self._digests[folder] = {
            ContentFile(os.fsdecode(file.name), os.fsdecode(file.path), file.state): file.digest for file in files
        }

    def _hash_file(self, file: ContentFile) -> bytes:
        digest, buffer = hashlib.blake2b(digest_size=16), memoryview(bytearray(CHUNK_BYTES))
        if file.state is None:
            return bytes(digest.digest_size)
        with open(os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as opened:
            rest = file.state.size
            while rest and (count := opened.readinto(buffer[: min(rest, CHUNK_BYTES)])):
                digest.update(buffer[:count])
                rest -= count
            if rest or _state(os.fstat(opened.fileno())) != file.state:
                raise Refused(f"{file.path}: changed while it was read: load the model when all files are written")
        return digest.digest()


def list_files(folder: Path, files_max: int = FILES_MAX) -> tuple[ContentFile, ...]:
    """Return the content's files, sorted by name, the manifest last.

    Raises OSError, and `InvalidModel` for a pipe, socket, device or loop of links, or more than `files_max` entries.
    """
    manifest, files = manifest_path(folder), []
    for count, file in enumerate(_walk(folder)):
        if count >= files_max:
            raise InvalidModel(f"{folder}: got more than {files_max} files and folders, wanted at most {files_max}")
        if file is not None and file.name not in (MANIFEST, f"../{MANIFEST}"):
            files.append(file)
    files.sort()
    if manifest is not None:
        files.append(ContentFile(MANIFEST, str(manifest), _state(manifest.stat())))
    return tuple(files)


def content_bytes(folder: Path) -> int:
    """Return the bytes of the content without its manifest: large graphs store their weights in separate files."""
    return sum(file.state.size for file in list_files(folder) if file.state and file.name != MANIFEST)


def _walk(folder: Path) -> Iterator[ContentFile | None]:
    """Iterate over the files, and None for each folder."""
    pending: list[tuple[str, str, tuple[tuple[int, int], ...]]] = [(str(folder), "", ())]
    for name, path, status in _entries(str(folder.parent)):
        if status is None or not stat.S_ISDIR(status.st_mode):
            yield _content_file(f"../{name}", path, status)
        elif name.startswith("__"):  # any other folder is a version
            pending.append((path, f"../{name}/", ()))
    while pending:
        inside, prefix, above = pending.pop()
        identity = (status := os.stat(inside)).st_dev, status.st_ino
        if identity in above:
            raise InvalidModel(f"{inside}: got a link to a folder that contains the link, wanted no loop")
        yield None
        for name, path, entry in _entries(inside):
            if entry is not None and stat.S_ISDIR(entry.st_mode):
                pending.append((path, f"{prefix}{name}/", (*above, identity)))
            else:
                yield _content_file(prefix + name, path, entry)


def _entries(folder: str) -> Iterator[tuple[str, str, os.stat_result | None]]:
    """Iterate over name, path and status of what is in a folder. Links are followed; the status of a broken one is
    None.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if any(fnmatch.fnmatchcase(entry.name, pattern) for pattern in IGNORED):
                continue
            try:
                yield entry.name, entry.path, os.stat(entry.path)
            except FileNotFoundError:
                if entry.is_symlink():
                    yield entry.name, entry.path, None


def _content_file(name: str, path: str, status: os.stat_result | None) -> ContentFile:
    if status is None:
        return ContentFile(name, path, None)
    if not stat.S_ISREG(status.st_mode):
        kind = KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise InvalidModel(f"{path}: got {kind}, wanted files and folders")
    return ContentFile(name, path, _state(status))


def _state(status: os.stat_result) -> FileState:
    return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
