"""Content hashes: which content of a model a worker has read, and whether the files still have it."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from horologe_common.clock import s
from horologe_common.status import Refused
from horologe_gpu_worker.repository.manifest import manifest_path, model_files

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_common.models import ModelSpec

SETTLED_NS = s(1)
"""A file that changed less than this before it was hashed is hashed again next time. A further change may leave size
and times as they are: the clock of ext4 advances every 4 ms.
"""


class HashedFile(NamedTuple):
    """A file that was hashed: its path as the file system encodes it, inode, size and times, and the hash."""

    path: bytes
    state: tuple[int, int, int, int]
    digest: bytes


class ContentHashes:
    """Hashes of model folders. The hash of a file is kept until its size, times or inode change."""

    def __init__(self) -> None:
        self._digests: dict[Path, tuple[tuple[int, int, int, int], bytes]] = {}
        """File -> its inode, size and times when it was hashed, and the hash."""

    def hash_folder(self, folder: Path) -> str:
        """Return a hash of the paths and contents of a version's files and its manifest. Raises OSError.

        Paths are relative to the folder. The manifest counts by its name, because it may be in the model's folder.
        """
        digest = hashlib.blake2b(digest_size=16)
        files = [(path.relative_to(folder).as_posix(), path) for path in model_files(folder)]
        if manifest := manifest_path(folder):
            files.append((manifest.name, manifest))
        for name, path in files:
            digest.update(name.encode() + b"\0" + self._hash_file(path))
        return digest.hexdigest()

    def files_of(self, folder: Path) -> tuple[HashedFile, ...]:
        """Return the files of a version, and its manifest, whose hashes are kept."""
        kept = [(path, self._digests.get(path)) for path in (*model_files(folder), manifest_path(folder)) if path]
        return tuple(HashedFile(os.fsencode(path), *state) for path, state in kept if state is not None)

    def adopt_files(self, files: Iterable[HashedFile]) -> None:
        """Keep hashes that another process has computed. They hold until size, times or inode change, as all do."""
        self._digests |= {Path(os.fsdecode(file.path)): (file.state, file.digest) for file in files}

    def check_unchanged(self, spec: ModelSpec, folder: Path) -> None:
        """Raise `Refused` unless the files have the content of `spec`. Without a content hash do nothing.

        Refused LOADs are tried again, because the new content is usually loaded soon after it was written.
        """
        if spec.content_hash and self.hash_folder(folder) != spec.content_hash:
            raise Refused(
                f"{folder}: got other files than those of content {spec.content_hash}, which was read last: "
                f"run `horologe load {spec.name}` to serve the new content"
            )

    def _hash_file(self, path: Path) -> bytes:
        status = path.stat()
        state = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        before = self._digests.get(path)
        if before is not None and before[0] == state:
            return before[1]
        read_ns = time.time_ns()
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()
        if read_ns - max(status.st_mtime_ns, status.st_ctime_ns) > SETTLED_NS:
            self._digests[path] = state, digest
        return digest
