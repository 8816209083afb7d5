"""What an operator can set about a worker: the table `[worker]`."""

from __future__ import annotations

import msgspec

from horologe_common.clock import s, us
from horologe_common.models import PAGE_BYTES
from horologe_common.service.settings import SettingsError
from horologe_gpu_worker.runtime import Place


class WorkerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One worker process."""

    name: str = "0"
    """Instance: the `1` of `worker/1`. Unique among the workers of a cluster."""
    repository: str = "models"
    """Folder of the model repository; may be mounted read-only."""
    cache: str = ".cache/horologe"
    """Folder for measured profiles; must be writable."""
    shares: int = 1
    """Shares of the device that this worker offers; each runs one EXEC at a time. A whole device is one share."""
    device: str = "cpu"
    """`cuda`, or `cuda:1` and so on: models of `pytorch` and `onnx` run on that device. Anything else is a name for
    the processor, as it appears in reports."""
    pages_bytes: int = 4 << 30
    """Memory for model weights per share, divided into 16 MiB pages."""
    io_cache_bytes: int = 512 << 20
    """Most bytes of inputs and outputs held; inputs beyond it are dropped and their rows answered MISSING_INPUT."""
    actions_max: int = 4096
    """Most actions accepted and not finished; further ones are answered REFUSED."""
    early_max: int = 1024
    """Most actions whose inputs are kept although their Infer has not come yet."""
    early_bytes: int = 128 << 20
    """Most bytes of such inputs."""
    early_ns: int = s(1)
    """How long such inputs are kept."""
    join_margin_ns: int = us(500)
    """This long before the end of a window the rows whose inputs are there go ahead without the others."""
    realtime: bool = True
    """Real-time priority for lanes while they wait (never while they compute), where the system permits it."""
    pin: bool = True
    """Pin each EXEC lane to a core of its own, on machines with at least four."""
    spin_ns: int = us(60)
    """Final part of a wait for a window that is spun instead of slept: covers the wake-up of the thread."""
    brief_ns: int = us(200)
    """An EXEC on the CPU expected to take less than this runs on the loop's thread if its lane is idle."""


def place_of(settings: WorkerSettings) -> Place:
    """Where this worker's models live. Raises `SettingsError` for a device that is named but has no number."""
    place = Place(settings.device, settings.shares * settings.pages_bytes // PAGE_BYTES, settings.io_cache_bytes)
    try:
        on_device = place.cuda is not None
    except ValueError as error:
        raise SettingsError(f"setting worker.{error}") from error
    if on_device and settings.shares != 1:
        raise SettingsError(
            f"setting worker.shares: got {settings.shares}, wanted 1 on a CUDA device, which runs one EXEC at a time"
        )
    return place
