"""Executors of a worker with fake models, and an inbox in place of the reactor."""

from __future__ import annotations

import weakref
from queue import SimpleQueue
from threading import current_thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpu_worker.worker_builders import an_input
from harness.builders import a_spec
from horologe_common.clock import ms
from horologe_common.status import Status
from horologe_common.wire.frames import encode_array
from horologe_gpu_worker.core.lanes import Abort, Finished, LaneOperation
from horologe_gpu_worker.execution.executors import Executors
from horologe_gpu_worker.execution.workspace import Workspace
from horologe_gpu_worker.runtime import OpenModel, StagedModel
from horologe_gpu_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from horologe_common.models import ModelSpec
    from horologe_gpu_worker.runtime import Shapes

Arrays = dict[str, np.ndarray[Any, Any]]


class Sum(OpenModel):
    """A model with `y` = sum of the row of `x`. Calls `act` first."""

    def __init__(self, act: Callable[[], object] = lambda: None) -> None:
        self.act = act
        self.batches: list[int] = []
        self.threads: list[str] = []
        self.closed = False

    def run(self, batch_size: int, inputs: Mapping[str, Any]) -> Arrays:
        assert inputs["x"].shape[0] == batch_size
        self.batches.append(batch_size)
        self.threads.append(current_thread().name)
        self.act()
        return {"y": inputs["x"].sum(axis=1, keepdims=True)}

    def copy_in(self, rows: int) -> None:
        self.batches.append(-rows)

    def copy_out(self, rows: int) -> None:
        self.batches.append(-rows)

    def close(self) -> None:
        self.closed = True


class DeviceSlot:
    """Memory of a batch, which records when it is freed."""

    def __init__(self, number: int, freed: list[int]) -> None:
        self.number = number
        self.space, self.device_ns, self.on_device = Workspace(), 0, np.zeros(())
        weakref.finalize(self, freed.append, number)


class OnDevice(Sum, StagedModel):
    """A fake model with device memory of its own, which takes 1 ms per row. `slots`: numbers by call."""

    def __init__(self) -> None:
        super().__init__()
        self.freed: list[int] = []
        self.slots: dict[str, list[int]] = {"slot": [], "stage": [], "execute": [], "fetch": []}

    def shapes_of(self, inputs: Mapping[str, Any]) -> Shapes:
        return (inputs["x"].shape,)

    def slot(self, shapes: Shapes) -> DeviceSlot:
        self.slots["slot"].append(len(self.slots["slot"]) + 1)
        return DeviceSlot(self.slots["slot"][-1], self.freed)

    def stage(self, slot: DeviceSlot, inputs: Mapping[str, Any]) -> None:
        self.slots["stage"].append(slot.number)
        assert slot.space.may_contain(inputs["x"])
        slot.on_device = inputs["x"].copy()
        inputs["x"][:] = np.nan

    def execute(self, batch_size: int, slot: DeviceSlot) -> None:
        self.slots["execute"].append(slot.number)
        slot.on_device = self.run(batch_size, {"x": slot.on_device})["y"]
        slot.device_ns = ms(batch_size)

    def fetch(self, batch_size: int, slot: DeviceSlot) -> Arrays:
        self.slots["fetch"].append(slot.number)
        return {"y": slot.on_device}


class StubStore:
    """A model store with models created by the test."""

    def __init__(self, **models: Any) -> None:
        self.models = models
        self.open_models: set[str] = set()

    def open(self, spec: ModelSpec) -> Any:
        if spec.key == "broken/1":
            raise OSError("disk on fire")
        return self.models[spec.name]

    def spec(self, key: str) -> ModelSpec:
        return a_spec(key.partition("/")[0])

    def is_open(self, key: str) -> bool:
        return key in self.open_models


class StubScans:
    """Scans that find no models."""

    def start(self, post: Callable[[Any], None]) -> None:
        self.post = post

    def begin_scan(self, operation: LaneOperation) -> None:
        name, status = operation.model.partition("/")[0], Status.FAILED if operation.model else Status.OK
        self.post(Finished(operation.action_id, "scan", status, 1, 2, reason=f"no {name}", models=[]))

    def stop(self) -> None:
        pass


class ExecutorHarness:
    """Executors with an inbox in place of the reactor."""

    def __init__(self, store: StubStore, settings: WorkerSettings | None = None) -> None:
        settings = settings or WorkerSettings(realtime=False)
        self.executors = Executors("worker/0#w", settings, store, StubScans())  # type: ignore[arg-type]
        self.finished: SimpleQueue[Finished] = SimpleQueue()
        self.executors.start(self.post, self.post)

    def post(self, sender: str, to: str, message: Finished) -> None:
        assert (sender, to) == ("lanes/0#w", "worker/0#w")
        self.finished.put(message)

    def do(self, message: LaneOperation | Abort) -> Finished:
        self.executors.deliver(message)
        return self.finished.get(timeout=10)

    def load(self, *models: str) -> None:
        for number, model in enumerate(models):
            assert self.do(LaneOperation(-1 - number, 0, "load", model)).status == Status.OK


@pytest.fixture
def store() -> StubStore:
    return StubStore(sum=Sum())


@pytest.fixture
def harness(store: StubStore) -> Iterator[ExecutorHarness]:
    harness = ExecutorHarness(store)
    yield harness
    harness.executors.stop()


def an_exec(
    values: Sequence[float], action_id: int = 1, model: str = "sum/1", batch_size: int = 0, **window: Any
) -> LaneOperation:
    header, whole = encode_array("x", an_input(values))
    parts = [memoryview(whole)[16 * at : 16 * at + 16] for at in range(len(values))]
    size = batch_size or a_spec().compiled_batch_size(len(values))
    return LaneOperation(action_id, 0, "exec", model, size, len(values), inputs=[(header, parts)], **window)


def extract_values(finished: Finished) -> list[float]:
    [(header, buffer)] = finished.outputs
    assert header.nbytes == len(buffer)
    assert header.shape == (len(buffer) // 4, 1)
    values: list[float] = np.frombuffer(buffer, np.float32).tolist()
    return values
