"""Changed models on a device: the new content is opened beside the old one, which serves until then."""

from __future__ import annotations

from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpu_worker.executor_harness import StubStore, Sum, an_exec, extract_values
from harness.builders import a_spec
from horologe_common.status import ModelFailed, Status
from horologe_gpu_worker.core.lanes import Finished, LaneOperation
from horologe_gpu_worker.execution.device_models import DeviceModels

if TYPE_CHECKING:
    from horologe_common.models import ModelSpec


class Scaled(Sum):
    """`y` = `factor` times the sum of the row of `x`."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def run(self, batch_size: int, inputs: Any) -> Any:
        return {"y": super().run(batch_size, inputs)["y"] * self.factor}


class Contents(StubStore):
    """A model store whose only model has a content that the test changes: the factor of `Scaled`."""

    def __init__(self) -> None:
        super().__init__()
        self.present = a_spec(content_hash="1")
        self.opened: dict[str, Scaled] = {}
        self.fail = False

    def open(self, spec: ModelSpec) -> Any:
        if self.fail:
            raise ModelFailed("no memory")
        model = self.opened[spec.content_hash] = Scaled(float(spec.content_hash))
        return model

    def spec(self, key: str) -> ModelSpec:
        return self.present

    def change(self, content_hash: str, **fields: Any) -> None:
        self.present = a_spec(content_hash=content_hash, **fields)


@pytest.fixture
def store() -> Contents:
    return Contents()


@pytest.fixture
def device(store: Contents) -> DeviceModels:
    device = DeviceModels(store)  # type: ignore[arg-type]
    assert device.run(LaneOperation(1, 0, "load", "sum/1")).status == Status.OK
    return device


def replace(device: DeviceModels) -> Finished:
    return device.run(LaneOperation(2, 0, "replace", "sum/1"))


def answer(finished: Finished) -> tuple[float, str]:
    """Return the value and the content that computed it."""
    assert finished.status == Status.OK, finished.reason
    [value] = extract_values(finished)
    return value, finished.content_hash


def test_an_answer_names_the_content_that_computed_it(device: DeviceModels, store: Contents) -> None:
    before = store.present
    assert answer(device.run(an_exec([4]))) == (4, "1")
    store.change("2")
    assert answer(device.run(an_exec([4], spec=before))) == (4, "1"), "the old copy serves until it is replaced"
    assert replace(device).status == Status.OK
    assert answer(device.run(an_exec([4], spec=before))) == (8, "2"), "the requests fit both"
    assert store.opened["1"].closed


def test_a_replacement_waits_for_the_running_exec(device: DeviceModels, store: Contents) -> None:
    store.change("2")
    ended = Event()
    model = store.opened["1"]

    def act() -> None:
        assert replace_in_thread(device).wait(0.05) is False
        ended.set()

    model.act = act
    assert answer(device.run(an_exec([4]))) == (4, "1")
    assert ended.is_set()


def replace_in_thread(device: DeviceModels) -> Event:
    """Replace on another thread, and return an event that is set at the end."""
    done = Event()

    def run() -> None:
        replace(device)
        done.set()

    Thread(target=run, daemon=True).start()
    return done


def test_a_batch_for_another_signature_is_planned_again(device: DeviceModels, store: Contents) -> None:
    before = store.present
    store.change("2", batch_sizes=(1, 2))
    replace(device)
    assert device.run(an_exec([4], spec=before)).status == Status.REFUSED


def test_a_failed_replacement_leaves_the_old_content(device: DeviceModels, store: Contents) -> None:
    store.change("2")
    store.fail = True
    assert replace(device).status == Status.FAILED
    assert answer(device.run(an_exec([4]))) == (4, "1")


def test_nothing_is_replaced_that_is_not_loaded_or_has_not_changed(device: DeviceModels, store: Contents) -> None:
    assert replace(device).status == Status.OK
    assert list(store.opened) == ["1"]
    device.run(LaneOperation(4, 0, "unload", "sum/1"))
    store.change("2")
    assert replace(device).status == Status.OK
    assert list(store.opened) == ["1"]
    assert device.run(an_exec([4])).status == Status.REFUSED


def test_inputs_that_were_copied_for_the_old_content_are_planned_again(device: DeviceModels, store: Contents) -> None:
    staged = device.run(msgspec.structs.replace(an_exec([4]), lane="input"))
    ran = device.run(msgspec.structs.replace(an_exec([4]), inputs=(), staged=staged.staged))
    store.change("2")
    replace(device)
    again = device.run(msgspec.structs.replace(an_exec([4]), inputs=(), staged=staged.staged))
    assert again.status == Status.REFUSED
    fetched = device.run(msgspec.structs.replace(an_exec([4]), lane="output", inputs=(), staged=ran.staged))
    assert answer(fetched) == (4, "1")
