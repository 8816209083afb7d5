"""Ends the worker when its CUDA device answers no more, so that its requests run elsewhere."""

from __future__ import annotations

import ctypes
import os

from horologe_common.service.log import logger
from horologe_gpu_worker.runtimes.pytorch.paging.cuda_driver import CudaError, PrimaryContext, load_driver

DEVICE_LOST = 70
"""Exit code."""

log = logger("device")


def end_if_lost(device: int) -> None:
    """End this process at once if the driver reports an error of the device. Call it after an operation has failed.

    After a fault of the device (it has fallen off the bus, an uncorrectable memory error, an illegal access), every
    call fails until the process ends. A worker that went on would fail each of its requests, faster than others serve
    them. The controller plans the requests of a worker that ends on other workers.
    """
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    try:
        driver = load_driver()
        PrimaryContext(driver, device).enter()
        driver("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    except CudaError as error:
        log.error("device lost: the worker ends, and its requests run elsewhere", device=device, error=str(error))
        os._exit(DEVICE_LOST)
    except OSError:  # no driver: the operation has failed for another reason
        return
