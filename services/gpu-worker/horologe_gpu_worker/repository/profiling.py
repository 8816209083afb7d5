"""How long a model takes on this machine: measured briefly when it is first seen, then kept in the cache folder.

The figures are a seed: the controller's estimates follow what the worker measures from then on.
"""

from __future__ import annotations

import fcntl
import functools
import os
import platform
import re
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

from horologe_common.clock import monotonic_ns, ms, s
from horologe_common.models import Profile
from horologe_common.service.log import logger
from horologe_gpu_worker.repository.manifest import warmup_inputs
from horologe_gpu_worker.runtime import StagedModel
from horologe_gpu_worker.runtimes.pytorch.paging.cuda_driver import device_name, load_driver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from horologe_common.models import ModelSpec
    from horologe_gpu_worker.runtime import OpenModel, Runtime

RUNS_MIN, RUNS_MAX, ENOUGH_NS = 5, 30, ms(100)
"""Per batch size: runs until `ENOUGH_NS` have passed, at least and at most so many."""
SEED_QUANTILE = 0.5
"""On a machine in use the 0.9 quantile of so few runs was up to five times the median. A seed that is too low costs a
few late answers before the estimates follow; one that is too high refuses requests, and is corrected by trials only."""
DISAGREE, DISAGREE_NS, DISAGREE_QUANTILE = 1.1, s(1), 0.1
"""Where the median is so much more than the least, others use the machine: runs go on for so long, and most of them are
too long. With four busy threads on two cores the profile of a model that takes 17 ms was 1.5 times that (2.3 at worst),
by this 1.05 (1.3)."""

ON_DEVICE = ("onnx", "pytorch")
"""Runtimes whose models run on the worker's CUDA device, where it has one."""

log = logger("profiling")


@runtime_checkable
class DeclaresProfile(Protocol):
    """A runtime whose models say themselves how long they take."""

    def profile(self, spec: ModelSpec, folder: Path) -> Profile:
        """The declared times."""


@functools.cache
def hardware_id(runtime: str = "", cuda: int | None = None) -> str:
    """CPU model and cores, or the CUDA device, and the version of the runtime's package, as a folder name."""
    on_device = cuda is not None and runtime in ON_DEVICE
    where = [device_name(load_driver(), cuda or 0)] if on_device else [cpu_model(), f"{os.cpu_count()}-cores"]
    parts = [*where, _runtime_version(runtime)]
    return re.sub(r"[^A-Za-z0-9.]+", "-", " ".join(filter(None, parts))).strip("-").lower()


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
        import onnxruntime

        return f"onnxruntime {onnxruntime.__version__}"
    if runtime == "pytorch":
        import torch

        return f"torch {torch.__version__}"
    return f"{runtime} {platform.python_version()}" if runtime else ""


class ProfileCache:
    """Profiles as `<cache>/profiles/<hardware>/<content hash>.json`. What cannot be read is measured again."""

    def __init__(self, cache: Path, cuda: int | None = None) -> None:
        self._cache = cache
        self._cuda = cuda

    def path(self, spec: ModelSpec) -> Path:
        return self._cache / "profiles" / hardware_id(spec.runtime, self._cuda) / f"{spec.content_hash}.json"

    def read_profile(self, spec: ModelSpec) -> Profile | None:
        """None if there is no profile, or it does not cover every batch size, or is of another length."""
        try:
            stored = msgspec.json.decode(self.path(spec).read_bytes(), type=_StoredProfile)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None
        times = (stored.load_ns, *stored.exec_ns.values())
        if not set(spec.batch_sizes) <= set(stored.exec_ns) or min(times) < 0 or stored.length != spec.profile_length:
            return None
        return Profile(stored.exec_ns, stored.load_ns)

    def write_profile(self, spec: ModelSpec, profile: Profile) -> None:
        """Keep the profile; where the folder cannot be written, only say so."""
        path = self.path(spec)
        draft = path.with_suffix(f".{os.getpid()}")
        stored = _StoredProfile(spec.key, profile.exec_ns, profile.load_ns, spec.profile_length)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(msgspec.json.format(msgspec.json.encode(stored)))
            draft.replace(path)
        except OSError as error:
            log.warning("profile not kept: it is measured again at the next start", path=str(path), error=str(error))

    @contextmanager
    def measurement_lock(self) -> Iterator[None]:
        """One worker of a machine measures at a time: two would time each other. Others then find it done."""
        folder = self._cache / "profiles"
        with ExitStack() as stack:
            with suppress(OSError):  # a folder that cannot be written has nobody to share with
                folder.mkdir(parents=True, exist_ok=True)
                lock = stack.enter_context(open(folder / ".lock", "w", encoding="utf-8"))
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class _StoredProfile(msgspec.Struct):
    """The file; `model` is for whoever reads it."""

    model: str
    exec_ns: dict[int, int]
    load_ns: int
    length: int = 0
    """The `profile_length` that it was measured at."""


def load_or_measure_profile(
    runtime: Runtime, spec: ModelSpec, folder: Path, cache: ProfileCache, report: Callable[[str], None]
) -> Profile:
    """The declared, the cached or a freshly measured profile. Raises what opening and running the model raise."""
    if isinstance(runtime, DeclaresProfile):
        return runtime.profile(spec, folder)
    if (known := cache.read_profile(spec)) is not None:
        return known
    with cache.measurement_lock():
        if (known := cache.read_profile(spec)) is not None:
            return known
        report(f"measuring {spec.key}: batch sizes {list(spec.batch_sizes)}")
        profile = measure_profile(runtime, spec, folder)
        cache.write_profile(spec, profile)
    return profile


def measure_profile(
    runtime: Runtime, spec: ModelSpec, folder: Path, clock: Callable[[], int] = monotonic_ns
) -> Profile:
    """Load the model and run each batch size a few times. `load_ns` includes warming, as every LOAD does."""
    begin_ns = clock()
    model = runtime.open(spec, folder)
    load_ns = clock() - begin_ns
    try:
        return Profile({size: _exec_ns(model, spec, folder, size, clock) for size in spec.batch_sizes}, load_ns)
    finally:
        model.close()


def _exec_ns(model: OpenModel, spec: ModelSpec, folder: Path, batch_size: int, clock: Callable[[], int]) -> int:
    inputs = warmup_inputs(spec, folder, batch_size)
    run: Callable[[], Any] = functools.partial(model.run, batch_size, inputs)
    if isinstance(model, StagedModel):  # then INPUT and OUTPUT run beside another EXEC, and do not count
        slot = model.slot(batch_size)
        model.stage(slot, inputs)
        run = functools.partial(model.execute, batch_size, slot)
    times: list[int] = []
    _time_runs(run, clock, times, ENOUGH_NS)
    if _quantile(times, SEED_QUANTILE) <= DISAGREE * min(times):
        return _quantile(times, SEED_QUANTILE)
    _time_runs(run, clock, times, DISAGREE_NS)
    return _quantile(times, DISAGREE_QUANTILE)


def _time_runs(run: Callable[[], Any], clock: Callable[[], int], times: list[int], enough_ns: int) -> None:
    """Add runs."""
    while len(times) < RUNS_MIN or (sum(times) < enough_ns and len(times) < RUNS_MAX):
        begin_ns = clock()
        run()
        times.append(clock() - begin_ns)


def _quantile(times: list[int], quantile: float) -> int:
    return sorted(times)[int(quantile * (len(times) - 1))]
