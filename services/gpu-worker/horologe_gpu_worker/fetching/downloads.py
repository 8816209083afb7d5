"""Fetches files of a store into a folder: resumed after a break, verified, and once for all workers of a host."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from typing import IO, TYPE_CHECKING, Any

from horologe_common.service.processes import Backoff
from horologe_common.status import ModelFailed
from horologe_gpu_worker.fetching.source import shown_url
from horologe_gpu_worker.fetching.store import Store, describe_cause, is_missing, is_refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from horologe_gpu_worker.fetching.store import RemoteFile

CHUNK_BYTES = 8 << 20
ATTEMPTS = 5
"""Attempts to read a part of a file before the fetch fails."""
LIMIT_BYTES = 256 << 30
"""Limit of the files of a version, as for those on disk."""
LOCK_POLL_S, REPORT_S = 0.1, 2.0


def object_name(file: RemoteFile, sha256: str) -> str:
    """Return the name of a fetched file: it changes with the content. With `sha256` it needs no answer of the store."""
    identity = sha256 or f"{file.identity}\0{file.size}"
    return hashlib.blake2b(f"{file.url}\0{identity}".encode(), digest_size=16).hexdigest()


class Downloads:
    """Fetches files into `folder`. `report` receives the progress of all files of a version."""

    def __init__(self, folder: Path, report: Callable[[str], None]) -> None:
        self.folder = folder
        self._report = report
        self._stores: dict[str, Store] = {}
        self._done_bytes = self._total_bytes = 0
        self._reported_s = 0.0

    def store(self, url: str) -> Store:
        """Return the store of a URL, which is created at its first use."""
        protocol = url.partition("://")[0]
        if protocol not in self._stores:
            self._stores[protocol] = Store(url)
        return self._stores[protocol]

    def expect(self, files: Iterable[RemoteFile]) -> None:
        """Add files to the total. Raises `ModelFailed` if they are too large, or the disk has too little space."""
        missing = sum(max(0, file.size) for file in files)
        self._total_bytes += missing
        free = shutil.disk_usage(self.folder).free
        if self._total_bytes > LIMIT_BYTES or missing > free:
            raise ModelFailed(
                f"{self.folder}: got files of {self._total_bytes} bytes to fetch, wanted at most {LIMIT_BYTES}, and at "
                f"most the {free} bytes that are free"
            )

    def find(self, file: RemoteFile, sha256: str = "") -> Path | None:
        """Return the path of a file that was fetched before; None if it was not, or may have changed."""
        target = self.folder / object_name(file, sha256)
        return target if (sha256 or file.identity) and target.exists() else None

    def fetch(self, file: RemoteFile, sha256: str = "") -> Path:
        """Return the path of a fetched and verified file. A file without an identity is fetched again each time.

        Blocks while another process fetches it. Raises `ModelFailed`; what has arrived is kept.
        """
        if (known := self.find(file, sha256)) is not None:
            return known
        target, is_known = self.folder / object_name(file, sha256), bool(sha256 or file.identity)
        descriptor = os.open(target.with_suffix(".partial"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "r+b") as partial:
            self._lock(partial, file)
            if self.find(file, sha256) is None:  # another process has fetched it meanwhile
                self._transfer(partial, file, resume=is_known and file.size >= 0)
                self._verify(partial, file, sha256)
                partial.flush()
                os.fsync(partial)
                os.replace(target.with_suffix(".partial"), target)
        return target

    def _lock(self, partial: IO[bytes], file: RemoteFile) -> None:
        reported = False
        while True:
            try:
                return fcntl.flock(partial, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not reported:
                    self._report(f"waiting for another process that fetches {shown_url(file.url)}")
                reported = True
                time.sleep(LOCK_POLL_S)

    def _transfer(self, partial: IO[bytes], file: RemoteFile, resume: bool) -> None:
        """Read the bytes that are missing. After an error try again, from the last byte if the store sends parts."""
        backoff = Backoff(immediate=1)
        for attempt in range(1, ATTEMPTS + 1):
            begin = partial.seek(0, os.SEEK_END)
            try:
                if resume and self._can_resume(file, begin):
                    self._count(begin, file)
                    self._read_parts(partial, file, begin)
                else:
                    self._read_stream(partial, file)
                return
            except Exception as error:  # every store has errors of its own
                if attempt == ATTEMPTS or isinstance(error, ModelFailed) or is_missing(error) or is_refused(error):
                    raise ModelFailed(f"{shown_url(file.url)}: {describe_cause(error)}") from error
                self._count(-partial.tell(), file)
                self._report(f"{shown_url(file.url)}: trying again after: {describe_cause(error)}")
                time.sleep(backoff.next_delay_s())

    def _can_resume(self, file: RemoteFile, begin: int) -> bool:
        if begin > file.size or (not begin and file.size <= CHUNK_BYTES):
            return False
        return self.store(file.url).sends_parts(file)

    def _read_parts(self, partial: IO[bytes], file: RemoteFile, begin: int) -> None:
        store = self.store(file.url)
        while begin < file.size:
            end = min(file.size, begin + CHUNK_BYTES)
            partial.write(store.read(file, begin, end))
            self._count(end - begin, file)
            begin = end

    def _read_stream(self, partial: IO[bytes], file: RemoteFile) -> None:
        partial.seek(0)
        partial.truncate()
        limit = min(LIMIT_BYTES, shutil.disk_usage(self.folder).free)
        for chunk in self.store(file.url).stream(file, CHUNK_BYTES):
            if partial.tell() + len(chunk) > limit:
                raise ModelFailed(f"got more than {limit} bytes, wanted at most that")
            partial.write(chunk)
            self._count(len(chunk), file)
        if file.size >= 0 and partial.tell() != file.size:
            raise OSError(f"got {partial.tell()} bytes, wanted {file.size}")

    def _verify(self, partial: IO[bytes], file: RemoteFile, sha256: str) -> None:
        """Compare the digest. Without one, compare the file's identity in the store. Remove a file that differs."""
        store = self.store(file.url)
        wanted = f"sha256:{sha256}" if sha256 else store.digest(file)
        if wanted:
            got = f"{wanted.partition(':')[0]}:{_digest_of(partial, wanted.partition(':')[0])}"
        else:
            wanted, got = file.identity, store.describe(file.url, file.name).identity
        if got != wanted:
            partial.truncate(0)
            raise ModelFailed(f"{shown_url(file.url)}: got a file of {got}, wanted {wanted}")

    def _count(self, size: int, file: RemoteFile) -> None:
        """Count fetched bytes, and report them now and then."""
        self._done_bytes += size
        if (now_s := time.monotonic()) - self._reported_s > REPORT_S:
            self._reported_s = now_s
            done_mb, total_mb = self._done_bytes / 1e6, max(self._total_bytes, self._done_bytes) / 1e6
            self._report(f"fetching {shown_url(file.url)}: {done_mb:,.0f} of {total_mb:,.0f} MB")


def _digest_of(file: IO[bytes], algorithm: str) -> str:
    """Return the hexadecimal digest of a file. `git`: that of a blob in Git."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    digest: Any = hashlib.new("sha1" if algorithm == "git" else algorithm, usedforsecurity=False)
    if algorithm == "git":
        digest.update(b"blob %d\0" % size)
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
    return str(digest.hexdigest())


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file on disk. Raises OSError."""
    with path.open("rb") as file:
        return _digest_of(file, "sha256")
