"""Shares of devices that a tuner wants, and the settings of the workers that own them."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WHOLE_PERCENT = 100.0
SHARES_MAX = 10_000
"""Limit of the shares of one call."""
NAME_LENGTH = 128
GPU_ID = "GPU-"
"""Begin of the UUID of a GPU, as NVML and CUDA_VISIBLE_DEVICES have it."""


class WantedShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A share of a device, owned by one worker. A share of another size is another worker with another name."""

    worker: str
    """Name of the worker (`worker.name`)."""
    device_id: str
    """Physical device: the UUID of a GPU (`GPU-...`), or a name for another device."""
    hardware: str
    """Hardware type of the device."""
    percent: float
    mechanism: str = "auto"
    """As in `worker.share_mechanism`. auto: as the settings of all workers say."""
    models: tuple[str, ...] = ()
    """Models planned for the share, for operators."""
    standby_for: str = ""
    """Name of the worker whose place this one may take. While both are wanted, only that one counts in the sum of the
    device."""

    def has_settings_of(self, other: WantedShare) -> bool:
        """Return whether a worker of the other share would be started with the same settings."""
        return worker_settings(self) == worker_settings(other)


def worker_settings(share: WantedShare) -> dict[str, str]:
    """Return the settings that make a worker the owner of the share, by `section.field`."""
    settings = {
        "worker.name": share.worker,
        "worker.hardware": share.hardware,
        "worker.device_id": share.device_id,
        "worker.share_percent": f"{share.percent:g}",
    }
    if share.mechanism != "auto":
        settings["worker.share_mechanism"] = share.mechanism
    if share.device_id.startswith(GPU_ID):
        settings["worker.device"] = "cuda"
    return settings


def worker_environment(share: WantedShare) -> dict[str, str]:
    """Return the same settings as environment variables, for workers in containers."""
    return {f"HOROLOGE_{path.replace('.', '_').upper()}": text for path, text in worker_settings(share).items()}


def check_shares(shares: Sequence[WantedShare]) -> None:
    """Raise ValueError that names the share and the first invalid field, or the device whose shares do not add up."""
    if len(shares) > SHARES_MAX:
        raise ValueError(f"shares: got {len(shares)}, wanted at most {SHARES_MAX}")
    names: dict[str, bool] = {}
    for share in shares:
        _check_share(share)
        if share.worker in names:
            raise ValueError(f"shares: got two workers {share.worker!r}, wanted a different name for each share")
        names[share.worker] = True
    for device_id, percent in device_sums(shares).items():
        if percent > WHOLE_PERCENT + 1e-6:
            parts = " + ".join(f"{share.percent:g}" for share in shares if share.device_id == device_id)
            raise ValueError(f"device {device_id!r}: shares: got {parts} percent, wanted at most 100 in all")


def device_sums(shares: Iterable[WantedShare]) -> dict[str, float]:
    """Return the sum of the shares of each device in percent, without those that stand by for one of the others."""
    shares = tuple(shares)
    names = {share.worker for share in shares}
    sums: dict[str, float] = {}
    for share in shares:
        if share.standby_for not in names:
            sums[share.device_id] = sums.get(share.device_id, 0.0) + share.percent
    return sums


def _check_share(share: WantedShare) -> None:
    place, name = f"share {share.worker!r}: ", share.worker
    plain = name.isascii() and name.replace("-", "").replace("_", "").replace(".", "").isalnum()
    if not plain or name.isdecimal() or len(name) > NAME_LENGTH:
        wanted = f"up to {NAME_LENGTH} letters, digits, '-', '_' and '.', and not only digits"
        raise ValueError(f"{place}worker: got {name!r}, wanted {wanted}")
    if not share.device_id or not share.device_id.isprintable():
        raise ValueError(f"{place}device_id: got {share.device_id!r}, wanted the name of a device")
    if not (isfinite(share.percent) and 0 < share.percent <= WHOLE_PERCENT):
        raise ValueError(f"{place}percent: got {share.percent:g}, wanted above 0 and at most 100")
