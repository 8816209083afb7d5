"""A device that answers no more ends its worker; a model that fails does not."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from horologe_common.status import ModelFailed, Status
from horologe_gpu_worker.core.lanes import LaneOperation
from horologe_gpu_worker.execution import device_health
from horologe_gpu_worker.execution.device_health import DEVICE_LOST, end_if_lost
from horologe_gpu_worker.execution.device_models import DeviceModels
from horologe_gpu_worker.runtimes.pytorch.paging.cuda_driver import CudaError

ILLEGAL_ADDRESS = 700


class PretendDriver:
    """A CUDA driver. After a fault, every call returns its error."""

    def __init__(self, fault: int) -> None:
        self.fault = fault

    def __call__(self, call: str, *arguments: Any) -> None:
        if self.fault:
            raise CudaError(call, self.fault, "an illegal memory access was encountered")


class FailingStore:
    """A repository whose models cannot be opened, for a reason."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def spec(self, key: str) -> Any:
        raise self._error


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    return codes


@pytest.mark.parametrize(("fault", "wanted"), [(ILLEGAL_ADDRESS, [DEVICE_LOST]), (0, [])])
def test_a_failed_operation_ends_the_worker_only_if_the_device_is_lost(
    monkeypatch: pytest.MonkeyPatch, exits: list[int], fault: int, wanted: list[int]
) -> None:
    monkeypatch.setattr(device_health, "load_driver", lambda: PretendDriver(fault))
    device = DeviceModels(FailingStore(ModelFailed("model broken/1: broken")), lambda: end_if_lost(0))  # type: ignore[arg-type]
    finished = device.run(LaneOperation(1, 0, "load", "broken/1"))
    assert (finished.status, exits) == (Status.FAILED, wanted)


def test_without_a_driver_the_worker_goes_on(monkeypatch: pytest.MonkeyPatch, exits: list[int]) -> None:
    def load() -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(device_health, "load_driver", load)
    end_if_lost(0)
    assert exits == []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OSError(errno.EMFILE, "Too many open files"), Status.REFUSED),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), Status.REFUSED),
        (RuntimeError("can't start new thread"), Status.REFUSED),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), Status.FAILED),
        (RuntimeError("a layer is missing"), Status.FAILED),
    ],
)
def test_a_load_is_refused_for_a_shortage_that_may_pass(error: Exception, status: Status) -> None:
    """The controller plans it again after a pause. After a failure, the model is unavailable."""
    device = DeviceModels(FailingStore(error))  # type: ignore[arg-type]
    finished = device.run(LaneOperation(1, 0, "load", "code/1"))
    assert finished.status == status
    assert str(error) in finished.reason
