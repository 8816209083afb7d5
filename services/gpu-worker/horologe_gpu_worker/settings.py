"""Settings of a worker: the table `[worker]`."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

import msgspec
from msgspec import Meta

from horologe_common.clock import s
from horologe_common.models import PAGE_BYTES
from horologe_common.service.settings import SettingsError
from horologe_common.setting_ranges import NAME_PATTERN

CPUS_PATTERN = r"^([0-9]{1,5}(,[0-9]{1,5})*)?\Z"


class WorkerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a worker process."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN)] = "0"
    """Instance name: the `1` of `worker/1`. Unique among the workers of a cluster."""
    repository: str = "models"
    """Folder or URL (`s3://`, `gs://`, `az://`, `hf://`, `https://`) of the model repository. A folder may be mounted
    read-only. `NAME=FOLDER` or `NAME=URL`: only the model NAME, whose files are there.
    """
    watch: bool = False
    """Read a model again when its files have changed, as `horologe load` does. Needs the package watchfiles, which the
    extra `server` has. On a network file system, set the environment variable WATCHFILES_FORCE_POLLING=1."""
    fetch_timeout_ns: Annotated[int, Meta(gt=0)] = s(3600)
    """Time in which the files of a version are fetched from a URL, before its `load_timeout` begins."""
    cache: str = ".cache/horologe"
    """Folder for measured profiles, fetched models and the environments of Python models. Must be writable."""
    shares: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Number of shares of the device. Each share runs one EXEC at a time. A whole device is one share."""
    device: str = "cpu"
    """`cuda`, `cuda:1` and so on: models of `pytorch` and `onnx`, and those of `python` with `gpu_memory`, run on that
    device. Any other text is a name for the CPU, shown in reports.
    """
    device_id: str = ""
    """Physical device. Workers with the same one own shares of it and are neighbours. On a CUDA device, a UUID of NVML
    (`GPU-...`) selects the GPU, and `worker.device` must be `cuda`. Empty: the GPU's UUID, else host and device.
    """
    share_percent: Annotated[float, Meta(gt=0, le=100)] = 100.0
    """Part of the device that the worker may use, above 0 and at most 100."""
    share_mechanism: Literal["auto", "whole", "container", "mps", "mig", "cpu", "emulated"] = "auto"
    """Mechanism that limits the share. whole: none. container: the limits of the worker's container. mps: NVIDIA's
    Multi-Process Service. mig: a free MIG device of this size. cpu: a quota of CPU time. emulated: by the times of
    emulated models. auto: `whole` for 100%, else `mps` on a CUDA device and `emulated` on others.
    """
    hardware: str = ""
    """Hardware type of the device, by which plans name pools of workers: `v100`. Empty: `worker.device`."""
    emulated_device: str = ""
    """File by which emulated workers of one host that share a device slow each other (`[emulated.sharing]`). Workers
    with the same file are neighbours. Empty: a file of `worker.device_id` in `worker.cache` if the share is below 100%;
    a worker with the whole device has no neighbours.
    """
    pages_bytes: Annotated[int, Meta(ge=16 << 20)] = 4 << 30
    """Memory for models per share, divided into 16 MiB pages. `onnx` models on the CPU take eighths of pages. On a CUDA
    device, it is allocated at the start.
    """
    host_bytes: Annotated[int, Meta(ge=0)] = 512 << 20
    """Host memory for `onnx` models on the CPU that are not loaded but stay open, so that LOAD takes microseconds. The
    models that were unloaded first are closed first. 0: UNLOAD closes a model.
    """
    io_cache_bytes: int = 512 << 20
    """Maximum bytes of inputs and outputs held. Inputs beyond it are dropped; their rows end as MISSING_INPUT."""
    realtime: bool = True
    """Raise lanes to real-time priority while they wait, where the system permits it. Never while they compute."""
    pin: bool = True
    """Pin each EXEC lane to a CPU of its own, on machines with at least four CPUs. Workers with the same `worker.cache`
    never use the same CPU.
    """
    exec_cpus: Annotated[str, Meta(pattern=CPUS_PATTERN)] = ""
    """CPUs of the EXEC lanes, the first share's first: `7,6`. Lanes without one are not pinned. Empty: free CPUs, as
    `worker.pin` says. `horologe up` sets it on machines with at least eight CPUs.
    """
    load_timeout_ns: int = s(120)
    """Time until a model must have been read, loaded and measured, unless its `model.toml` has a
    `load_timeout`. Then its process is killed, and the model is UNAVAILABLE. Importing a large framework from a cold
    disk takes a minute.
    """
    model_environment: tuple[str, ...] = ()
    """Names of further environment variables that the processes of `python` models get, for example a token. Without
    it, they get the variables that locate programs, libraries, certificates and devices, and no others.
    """
    model_user: str = ""
    """Name of the user that runs the processes of `python` models. The worker must then run as root, and the user must
    be able to read the models and the installed packages. Empty: the user of the worker.
    """

    @property
    def cuda(self) -> int | None:
        """Number of the CUDA device; None for the CPU. Raises SettingsError for `cuda:` without a number."""
        kind, _, number = self.device.partition(":")
        if kind != "cuda":
            return None
        if number and not number.isdecimal():
            raise SettingsError(f"setting worker.device: got {self.device!r}, wanted 'cuda' or 'cuda:' and a number")
        return int(number or 0)

    @property
    def pages(self) -> int:
        """Number of 16 MiB pages for weights, summed over all shares."""
        return self.shares * self.pages_bytes // PAGE_BYTES


DEFAULTS = WorkerSettings()


def resolve_device(settings: WorkerSettings) -> WorkerSettings:
    """Return the settings with the file of the emulated device, as models are opened with them.

    Raises `SettingsError` for a device that does not exist, and for a user that models cannot run as.
    """
    _check_user(settings.model_user)
    if settings.cuda is not None and settings.shares != 1:
        raise SettingsError(
            f"setting worker.shares: got {settings.shares}, wanted 1 on a CUDA device, which runs one EXEC at a time"
        )
    if settings.emulated_device or settings.share_percent == 100:
        return settings
    file = Path(settings.cache) / "devices" / quote(settings.device_id or settings.device, safe="")
    return msgspec.structs.replace(settings, emulated_device=str(file))


def _check_user(user: str) -> None:
    if not user:
        return
    try:
        pwd.getpwnam(user)
    except KeyError:
        raise SettingsError(f"setting worker.model_user: got {user!r}, wanted the name of a user") from None
    if os.geteuid() != 0:
        raise SettingsError(f"setting worker.model_user: got {user!r}, wanted it empty, or a worker that runs as root")
