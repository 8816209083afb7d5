"""Snapshots of cores: restored cores go on alike, and no file makes its reader call anything else."""

from __future__ import annotations

import io
import os
import pickle
import random
from typing import Any

import pytest

from harness.builders import a_report
from horologe_common.clock import ms
from horologe_common.core.protocol import Out, PeerConnected
from horologe_common.models import PAGE_BYTES
from horologe_common.recording import snapshot as snapshot_module
from horologe_common.recording.snapshot import (
    SnapshotError,
    dump_message,
    load_message,
    restore,
    snapshot,
    strip_tensors,
)
from horologe_common.status import Status
from horologe_common.transport import keys
from horologe_common.wire import Infer, Ping, Register, Share, Submit
from horologe_controller.core.controller import Controller
from horologe_controller.core.scheduling.strategy import Rank
from horologe_controller.schedulers import SCHEDULERS
from horologe_controller.settings import ControllerSettings
from horologe_frontend.core.frontend import Frontend
from horologe_frontend.settings import FrontendSettings
from horologe_gpu_worker.core.worker import Worker
from horologe_gpu_worker.settings import WorkerSettings
from horologe_selector.core.selector import Selector
from horologe_selector.settings import SelectorSettings
from horologe_selector.store import Record, RecordChange, RecordsRead, RecordsWritten


def cores() -> list[Any]:
    worker = Worker("worker/0#1", WorkerSettings(pages_bytes=64 * PAGE_BYTES), [a_report()], lambda key: True)
    schedulers = [Controller("controller/0#1", ControllerSettings(scheduler=name)) for name in SCHEDULERS]
    frontend = Frontend("frontend/0#1", FrontendSettings(), lambda header, buffers: b"")
    return [worker, frontend, Selector("selector/0#1", SelectorSettings(), random.Random(1)), *schedulers]


@pytest.mark.parametrize("core", cores(), ids=lambda core: str(core.address))
def test_every_core_can_be_restored(core: Any) -> None:
    again = restore(snapshot(core))
    assert (type(again), again.address, again.wakeup_ns()) == (type(core), core.address, core.wakeup_ns())
    again.check()
    assert snapshot(again) == snapshot(restore(snapshot(again)))


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_controller_that_is_restored_plans_what_the_first_one_does(scheduler: str) -> None:
    controller = Controller("controller/0#1", ControllerSettings(scheduler=scheduler), "host")
    for address in ("selector/0#1", "worker/0#1"):
        controller.handle(0, address, PeerConnected(address, "host"), ())
    controller.handle(0, "worker/0#1", Register((Share(0, "cpu", 64, ("sum/1",)),), (a_report(),)), ())
    controller.tick(0)
    controller.out.clear()
    again = restore(snapshot(controller))
    for one in (controller, again):
        for number, best_effort in enumerate((False, True)):
            submit = Submit(number, "sum/1", ms(100), 1, "frontend/0#1", number, best_effort)
            one.handle(1, "selector/0#1", submit, ())
        one.tick(ms(10))
    assert [type(out.message) for out in controller.out].count(Infer) > 0
    assert [(out.to, out.message) for out in again.out] == [(out.to, out.message) for out in controller.out]


def test_functions_are_named_and_put_in_place_by_whoever_restores() -> None:
    state = snapshot(cores()[1])
    assert restore(state, {"<lambda>": lambda header, buffers: b"mine"})._builder._digest(b"", []) == b"mine"
    with pytest.raises(SnapshotError, match="<lambda> is not part of a snapshot"):
        restore(state)._builder._digest(b"", [])


def test_a_status_is_saved_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11.0 to 3.11.3 save members of an enumeration as calls of `getattr`."""
    monkeypatch.setattr(Status, "__reduce_ex__", lambda self, _: (getattr, (Status, self.name)))
    again = restore(snapshot([Status.LOST]))  # type: ignore[arg-type]
    assert again == [Status.LOST]
    assert again[0] is Status.LOST


def test_records_of_a_store_are_kept_whole() -> None:
    record, change = (
        Record("contexts/digits\nann", 3, b"\1" * 1000),
        RecordChange("contexts/digits\nann", 3, b"\2" * 1000),
    )
    assert restore(snapshot([record, b"\3" * 1000])) == [record, bytes(1000)]  # type: ignore[arg-type]
    for message in (RecordsWritten((change, change), [4, record]), RecordsRead((record.key, "other"), [record, None])):
        told = load_message(dump_message(strip_tensors(message)))
        assert [list(getattr(told, name)) for name in told.__struct_fields__ if name != "reason"] == [
            list(getattr(message, name)) for name in message.__struct_fields__ if name != "reason"
        ]


def test_tensors_become_zeros_of_their_size() -> None:
    frontend = cores()[1]
    frontend.staging.hold(1, (), [memoryview(b"\7" * 10_000)])
    again = restore(snapshot(frontend))
    again.staging.check()
    assert again.staging.held_bytes == 10_000
    assert len(snapshot(frontend)) < 8000


class Evil:
    """Asks its reader to call something."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


@pytest.mark.parametrize(
    "evil",
    [
        Evil(os.system, "true"),
        Evil(eval, "1"),
        Evil(getattr, Out, "__new__"),
        Evil(PeerConnected.__class__, "x", (), {}),
        Evil(io.open, "/dev/null"),
        Evil(keys.service_keys, None),
        Evil(snapshot_module.method, Ping(1), "__reduce__"),
    ],
)
def test_nothing_but_the_classes_of_cores_can_be_named(evil: Evil) -> None:
    with pytest.raises(SnapshotError):
        restore(pickle.dumps(evil))


@pytest.mark.parametrize("state", [b"", b"garbage", pickle.dumps([1])[:-1]])
def test_garbage_is_no_snapshot(state: bytes) -> None:
    with pytest.raises(SnapshotError):
        restore(state)


def test_a_method_that_a_class_of_a_core_inherits_from_python_is_not_given() -> None:
    with pytest.raises(SnapshotError, match="index is not a method of a core"):
        snapshot_module.method(Rank(0, 0, 0), "index")
