"""Profiles on disk: the measured execution times of a model, by its content and the hardware."""

from __future__ import annotations

import functools
import os
import platform
import re
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import monotonic_ns, s
from horologe_common.model_limits import check_profile
from horologe_common.models import Profile
from horologe_common.partial_decoding import DAMAGE
from horologe_common.service.log import logger
from horologe_common.status import InvalidInput
from horologe_gpu_worker.file_lock import lock_file
from horologe_gpu_worker.runtime import RowsFailed
from horologe_gpu_worker.runtimes.pytorch.paging.cuda_driver import device_name, load_driver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from horologe_common.models import ModelSpec

TURN_WAIT_NS = s(5)
"""Wait at most this long while one other model is measured. It may hang, and an estimate that is measured beside it is
corrected by the times of real requests."""
CONTENT_WAIT_NS = s(120)
"""Wait at most this long while another process loads and measures the same content."""
POLL_S = 0.01

ON_DEVICE = ("onnx", "pytorch")
"""Runtimes whose models are opened in the worker's own process on its CUDA device, if it has one."""

log = logger("profiling")


@functools.cache
def hardware_id(runtime: str = "", cuda: int | None = None) -> str:
    """Return CPU model and cores, or the CUDA device, and the version of the runtime's package, as a folder name."""
    where = [cpu_model(), f"{os.cpu_count()}-cores"] if cuda is None else [device_name(load_driver(), cuda)]
    words = [*where, _runtime_version(runtime)]
    return re.sub(r"[^A-Za-z0-9.]+", "-", " ".join(filter(None, words))).strip("-").lower()


def cpu_model(cpuinfo: str = "/proc/cpuinfo") -> str:
    try:
        with open(cpuinfo, encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _runtime_version(runtime: str) -> str:
    if runtime == "onnx":
        from horologe_gpu_worker.runtimes.onnx import version

        return f"onnxruntime {version()}"
    if runtime in ("pytorch", "torchscript"):
        import torch

        return f"torch {torch.__version__}"
    return f"{runtime} {platform.python_version()}" if runtime else ""


class ProfileCache:
    """Profiles stored as `<cache>/profiles/<hardware>/<content hash>.json`. An unreadable profile is measured again.

    A share of a device has a folder of its own. On a GPU, the profile of the whole device stands in for a missing one:
    a measurement would disturb the neighbours, and they it.
    """

    def __init__(self, cache: Path, cuda: int | None = None, share_percent: float = 100.0) -> None:
        self._cache = cache
        self._cuda = cuda
        self._share_percent = share_percent

    def path(self, spec: ModelSpec, percent: float = 0.0) -> Path:
        """Return the file of a model's profile on this share, or on another one of the device."""
        percent = percent or self._percent(spec)
        share = "" if percent == 100 else f"-{percent:g}-percent"
        hardware = hardware_id(spec.runtime, self._cuda if spec.on_gpu else None)
        return self._cache / "profiles" / (hardware + share) / f"{spec.content_hash}.json"

    def _percent(self, spec: ModelSpec) -> float:
        """Return the share that limits the model. The share of a GPU does not limit models that run on the CPU."""
        return 100.0 if self._cuda is not None and not spec.on_gpu else self._share_percent

    def read_profile(self, spec: ModelSpec) -> Profile | None:
        """Read the cached profile; None if it is missing, incomplete or of another length.

        Raises `RowsFailed` if the model was measured without batches because its rows have failed.

        A batch takes at most about 100/percent of its time on the whole GPU (iGniter Eq. 11).
        """
        percent = self._percent(spec)
        profile = self._read(spec, percent)
        if profile is None and percent != 100 and self._cuda is not None and (whole := self._read(spec, 100.0)):
            exec_ns = {size: round(time_ns * 100 / percent) for size, time_ns in whole.exec_ns.items()}
            profile = Profile(exec_ns, whole.load_ns)
        return profile

    def _read(self, spec: ModelSpec, percent: float) -> Profile | None:
        path = self.path(spec, percent)
        try:
            stored = _decode_stored(path.read_bytes())
            profile = Profile(stored.exec_ns, stored.load_ns)
            check_profile(profile)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, InvalidInput, *DAMAGE) as error:
            log.warning("stored profile not used", path=str(path), error=str(error) or type(error).__name__)
            return None
        if spec.max_batch > 1 and stored.rows:
            raise RowsFailed(stored.rows)
        if spec.max_batch > 1 and stored.rows is None:
            return None
        complete = set(spec.batch_sizes) <= set(stored.exec_ns) and stored.length == spec.profile_length
        return profile if complete else None

    def write_profile(self, spec: ModelSpec, profile: Profile, row_fault: str = "") -> None:
        """Write the profile, and why the model is not batched. If the folder is not writable, log a warning."""
        path = self.path(spec)
        draft = path.with_suffix(f".{os.getpid()}")
        stored = _StoredProfile(spec.key, profile.exec_ns, profile.load_ns, spec.profile_length, row_fault)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(msgspec.json.format(msgspec.json.encode(stored)))
            draft.replace(path)
        except OSError as error:
            log.warning(
                "profile not written: it will be measured again at the next start", path=str(path), error=str(error)
            )

    def measurement_turn(self) -> AbstractContextManager[None]:
        """Wait for the machine-wide turn, and hold it: two models that are measured would disturb each other."""
        return _locked(self._cache / "profiles" / ".lock", TURN_WAIT_NS)

    @contextmanager
    def content_turn(self, spec: ModelSpec) -> Iterator[None]:
        """Wait until no other process loads and measures this content. The next one finds its profile."""
        path = self.path(spec).with_suffix(".lock")
        with _locked(path, CONTENT_WAIT_NS):
            yield
            with suppress(OSError):
                path.unlink()


@contextmanager
def _locked(path: Path, wait_ns: int) -> Iterator[None]:
    """Hold a lock between processes. Go on without it if one holder keeps it for `wait_ns`.

    The file contains the time of the last acquisition.
    """
    lock = None
    with suppress(OSError):  # a folder that is not writable is not shared
        holder, end_ns = b"", monotonic_ns() + wait_ns
        while (lock := lock_file(path)) is None and monotonic_ns() < end_ns:
            time.sleep(POLL_S)
            if (present := _content(path)) != holder:
                holder, end_ns = present, monotonic_ns() + wait_ns
        if lock is not None:
            os.truncate(lock, 0)
            os.write(lock, str(monotonic_ns()).encode())
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # its holder has removed it
        return b""


class _StoredProfile(msgspec.Struct):
    """Content of the file. `model` is informative only."""

    model: str
    exec_ns: dict[int, int]
    load_ns: int
    length: int = 0
    """`profile_length` at which the times were measured."""
    rows: str | None = None
    """Why the times are those of the model without batches. Empty: its rows were compared. None: they were not."""


_decode_stored = msgspec.json.Decoder(_StoredProfile).decode
