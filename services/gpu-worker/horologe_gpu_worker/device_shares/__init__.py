"""Registry of device shares by the value of `worker.share_mechanism`. A module is imported only if it is chosen."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

from horologe_common.service.log import logger
from horologe_common.service.settings import SettingsError
from horologe_common.wanted_shares import GPU_ID
from horologe_gpu_worker.device_share import chosen_mechanism
from horologe_gpu_worker.settings import device_config

if TYPE_CHECKING:
    from horologe_gpu_worker.device_share import EnteredShare, ShareMechanism
    from horologe_gpu_worker.settings import WorkerSettings

MECHANISMS = {
    "whole": ("unlimited", "UnlimitedShare"),
    "container": ("unlimited", "UnlimitedShare"),
    "emulated": ("unlimited", "UnlimitedShare"),
    "mps": ("mps", "MpsShare"),
    "mig": ("mig", "MigShare"),
    "cpu": ("cpu", "CpuShare"),
}
"""Value -> module of this package and class."""

log = logger("share")


def select_gpu(settings: WorkerSettings) -> None:
    """Have CUDA see only the GPU of `worker.device_id`, as its first device. Raises SettingsError for others."""
    if device_config(settings).cuda != 0:
        raise SettingsError(f"setting worker.device: got {settings.device!r}, wanted cuda: worker.device_id is a GPU")
    os.environ["CUDA_VISIBLE_DEVICES"] = settings.device_id


def enter_share(settings: WorkerSettings) -> EnteredShare:
    """Limit this process to its share of the device. Raises SettingsError."""
    mechanism = chosen_mechanism(settings)
    if settings.device_id.startswith(GPU_ID) and mechanism != "mig":
        select_gpu(settings)
    module, name = MECHANISMS[mechanism]
    share: ShareMechanism = getattr(import_module(f"{__name__}.{module}"), name)(settings)
    entered = share.enter()
    if mechanism != "whole":
        log.info("share entered", mechanism=mechanism, percent=entered.percent, device=entered.device.id)
    return entered
