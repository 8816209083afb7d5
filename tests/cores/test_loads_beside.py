"""LOADs that start processes: they run beside other LOADs, at the worker and in the plans of the controller."""

from __future__ import annotations

from threading import Event

from controller.controller_builders import a_new_controller, finish, register, submit, tick
from gpu_worker.executor_harness import ExecutorHarness, StubStore, Sum
from harness.builders import a_report, a_spec, sent
from horologe_common.clock import NEVER_NS, ms, s
from horologe_common.models import ModelSpec
from horologe_common.status import Status
from horologe_common.wire import Infer, Load, Outcome
from horologe_controller.core.controller import Controller
from horologe_gpu_worker.core.lanes import LaneOperation


class SlowStore(StubStore):
    """A store whose model `slow` takes until `loaded` is set."""

    def __init__(self) -> None:
        super().__init__(slow=Sum(), sum=Sum())
        self.begun, self.loaded = Event(), Event()

    def open(self, spec: ModelSpec) -> Sum:
        if spec.name == "slow":
            self.begun.set()
            assert self.loaded.wait(10)
        return super().open(spec)  # type: ignore[no-any-return]


def a_python_spec(name: str = "slow") -> ModelSpec:
    spec = a_spec(name)
    return ModelSpec(name, "1", "python", spec.inputs, spec.outputs, spec.batch_sizes, content_hash="h")


def test_a_worker_loads_another_model_while_a_process_starts() -> None:
    store = SlowStore()
    harness = ExecutorHarness(store)
    try:
        harness.executors.deliver(LaneOperation(1, 0, "load", "slow/1", spec=a_python_spec()))
        assert store.begun.wait(10)
        assert harness.do(LaneOperation(2, 0, "load", "sum/1", spec=a_spec())).status == Status.OK
        harness.executors.deliver(LaneOperation(3, 0, "unload", "slow/1"))
        assert harness.finished.empty(), "the UNLOAD waits for the LOAD of its model"
        store.loaded.set()
        ends = [harness.finished.get(timeout=10).action_id for _ in range(2)]
        assert ends == [1, 3]
        assert store.models["slow"].closed
    finally:
        store.loaded.set()
        harness.executors.stop()


def a_cluster() -> Controller:
    controller = a_new_controller()
    slow = a_report(a_python_spec(), load_ms=60_000)
    register(controller, slow, a_report(a_spec("sum")), a_report(a_python_spec("other"), load_ms=60_000))
    return controller


def test_a_load_that_takes_a_minute_delays_no_other_model() -> None:
    controller = a_cluster()
    submit(controller, 1, model="slow/1", now_ns=0, budget_ms=100_000)
    assert [load.model for load in sent(controller, Load)] == ["slow/1"]
    submit(controller, 2, model="sum/1", now_ns=ms(10), budget_ms=5_000)
    tick(controller, s(1))
    [load] = sent(controller, Load)
    assert load.model == "sum/1"
    finish(controller, load, s(1))
    assert [infer.model for infer in sent(controller, Infer)] == ["sum/1"]


def test_processes_do_not_all_start_at_once() -> None:
    controller = a_cluster()
    submit(controller, 1, model="slow/1", now_ns=0, budget_ms=100_000)
    submit(controller, 2, model="other/1", now_ns=ms(1), budget_ms=100_000)
    assert [load.model for load in sent(controller, Load)] == ["slow/1"]
    assert (controller.wakeup_ns() or NEVER_NS) <= s(1)
    tick(controller, s(1))
    assert [load.model for load in sent(controller, Load)] == ["other/1"]


def test_a_load_that_is_late_does_not_make_its_share_hang() -> None:
    controller = a_cluster()
    submit(controller, 1, model="slow/1", now_ns=0, budget_ms=1_000_000)
    sent(controller, Load)
    for second in range(1, 100):
        tick(controller, s(second))
    submit(controller, 2, model="sum/1", now_ns=s(100), budget_ms=5_000)
    [load] = sent(controller, Load)
    finish(controller, load, s(100))
    assert [infer.model for infer in sent(controller, Infer)] == ["sum/1"]
    assert not sent(controller, Outcome)
