"""Shares of a device with real processes: they change size under load, workers die meanwhile, nothing is lost."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from harness.model_folders import an_emulated_model
from harness.offered_load import ClosedLoad
from harness.running_services import RunningServices
from harness.waiting import until
from horologe import Client
from horologe_common.core.protocol import PeerConnected, instance, role
from horologe_common.transport.sockets import LinkSettings
from horologe_common.wanted_shares import WantedShare
from horologe_common.wire import Events, PlannedModel, ResourcePlan
from horologe_tuner.scalers.process import ProcessScaler
from horologe_tuner.settings import TunerSettings
from system.reactors import Running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import Any

    from horologe_common.wire import DeviceState

SLO_MS = 10_000
CHANGES = int(os.environ.get("SHARE_CHANGES", "3"))
"""`SHARE_CHANGES=50 pytest tests/system/processes/test_share_changes.py` changes a share fifty times."""


class Planner(Running):
    """A second tuner: sends plans to the controller, which reports its devices."""

    def __init__(self, endpoint: str) -> None:
        super().__init__("tuner", LinkSettings(connect=(endpoint,)), (), False, "test")
        self.controller, self.number = until(self._find_controller), 0
        self.say(self.controller, ResourcePlan(0))

    def _find_controller(self) -> str:
        peers = [peer.address for peer in self.core.of_kind(PeerConnected)]
        return next((peer for peer in peers if role(peer) == "controller"), "")

    def assign(self, **workers: tuple[str, ...]) -> None:
        """Send a plan: model -> the workers that hold it."""
        models = tuple(PlannedModel(model, 1, 2, workers=names) for model, names in workers.items())
        self.number += 1
        self.say(self.controller, ResourcePlan(self.number, models))

    @property
    def devices(self) -> Sequence[DeviceState]:
        """The devices of the last report that has some."""
        reports = [event.devices for event in self.core.of_kind(Events) if event.devices is not None]
        return reports[-1] if reports else ()

    def has_loaded(self, worker: str, model: str) -> bool:
        names = {instance(device.worker).partition("/")[2]: device.loaded for device in self.devices}
        return f"{model}/1" in names.get(worker, ())


class SharedGpu:
    """A running system with an emulated GPU: `left` has a share that changes, `right` one of 50%."""

    def __init__(self, folder: Path) -> None:
        for model in ("left", "right"):
            an_emulated_model(folder / "models", model)
        self.local = RunningServices(folder, "worker.pages_bytes=64MiB", "worker.host_bytes=1MiB", tuner=True)
        self.shares = [a_share("left-0", 40), a_share("right-0", 50)]

    def start(self) -> None:
        control = self.local.topology.control
        self.scaler = ProcessScaler(TunerSettings(scaler="process", scaler_target=control))
        self.planner = Planner(f"unix://{os.path.dirname(control)}/edge")
        self.scaler.set_shares(self.shares)
        self.planner.assign(left=("left-0",), right=("right-0",))
        until(lambda: self.planner.has_loaded("left-0", "left") and self.planner.has_loaded("right-0", "right"))

    def change_left(self, percent: float, during: Callable[[WantedShare, WantedShare], None] | None = None) -> None:
        """Start a share of the new size, load the model there, move the plan, and drain the old share."""
        old, right = self.shares
        number = int(old.worker.partition("-")[2]) + 1
        new = a_share(f"left-{number}", percent, standby_for=old.worker)
        self.scaler.set_shares((old, right, new))
        self.planner.assign(left=(old.worker, new.worker), right=(right.worker,))
        until(lambda: self.planner.has_loaded(new.worker, "left"))
        if during:
            during(old, new)
            until(lambda: self.planner.has_loaded(new.worker, "left"))
        self.planner.assign(left=(new.worker,), right=(right.worker,))
        self.shares = [a_share(new.worker, percent), right]
        self.scaler.set_shares(self.shares)

    def kill(self, *workers: str) -> None:
        """Kill these workers, and wait until the controller reports none of them as it was."""
        before = {device.worker for device in self.planner.devices}
        for worker in workers:
            self.local.kill(f"worker-{worker}")
        killed = {f"worker/{worker}" for worker in workers}
        until(lambda: not killed & connected(self.planner, before))


def a_load(gpu: SharedGpu, model: str) -> ClosedLoad:
    return ClosedLoad(gpu.local.endpoint, model=model, pause_s=0.002, slo_ms=SLO_MS)


def a_share(worker: str, percent: float, **fields: Any) -> WantedShare:
    return WantedShare(worker, "gpu-0", "v100", percent, **fields)


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedGpu]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler", lambda *_: None)
        gpu = SharedGpu(tmp_path_factory.mktemp("g"))
        with gpu.local:
            gpu.start()
            yield gpu
            gpu.planner.stop()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_changing_the_size_of_a_share_under_load_loses_nothing(gpu: SharedGpu) -> None:
    loads = [a_load(gpu, model) for model in ("left", "left", "right")]
    for change in range(CHANGES):
        gpu.change_left(30 + 10 * (change % 3))
    until(lambda: set(gpu.local.supervisor.pids()).issuperset({f"worker-left-{CHANGES}"}))
    for load in loads:
        assert load.stop() == {"OK": load.sent}
        assert load.sent > CHANGES
    with Client(gpu.local.endpoint) as client:
        until(lambda: len(client.describe().shares) == 3)
        shares = {instance(share.worker): share for share in client.describe().shares}
    left, right = shares[f"worker/left-{CHANGES}"], shares["worker/right-0"]
    assert (left.percent, left.device_info.id) == (30 + 10 * ((CHANGES - 1) % 3), "gpu-0")
    assert right.device_info.id == left.device_info.id


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_worker_that_dies_in_the_middle_of_a_change_loses_nothing(gpu: SharedGpu) -> None:
    load = a_load(gpu, "left")
    gpu.change_left(50, lambda old, new: gpu.kill(old.worker))
    gpu.change_left(20, lambda old, new: gpu.kill(new.worker))
    assert load.stop() == {"OK": load.sent}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_device_that_disappears_loses_nothing(gpu: SharedGpu) -> None:
    """All workers of the device die at once. Others serve until they are back."""
    loads = [a_load(gpu, model) for model in ("left", "right")]
    left, right = gpu.shares
    gpu.kill(left.worker, right.worker)
    until(lambda: gpu.planner.has_loaded(left.worker, "left") and gpu.planner.has_loaded(right.worker, "right"))
    for load in loads:
        assert load.stop() == {"OK": load.sent}


def connected(planner: Planner, incarnations: set[str]) -> set[str]:
    """Return the names of the workers that are still connected as one of these incarnations."""
    return {instance(device.worker) for device in planner.devices if device.worker in incarnations}
