"""A worker unloads a model because its process has ended: only the requests of its batch fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from controller.controller_builders import (
    MODEL,
    OTHER,
    WORKER,
    a_new_controller,
    finish,
    finish_loads,
    register,
    submit,
    tick,
)
from harness.builders import a_report, sent
from horologe_common.clock import ms
from horologe_common.status import Status
from horologe_common.wire import Infer, Load, Outcome, Unload

if TYPE_CHECKING:
    from horologe_controller.core.controller import Controller

PAUSE_NS = ms(10)


def with_copies(*workers: str, preload: bool = True) -> Controller:
    """Return a controller that plans ahead, and whose workers hold the model."""
    controller = a_new_controller(preload=preload, workers=len(workers), scheduler="edf", lookahead_ns=ms(50))
    for worker in workers:
        register(controller, a_report(), worker=worker, resident=(MODEL,))
    controller.out.clear()
    return controller


def unload(controller: Controller, now_ns: int, worker: str = WORKER, model: str = MODEL) -> None:
    """Send the Unload of a model whose process has ended."""
    controller.handle(now_ns, worker, Unload(1, 0, model), ())
    tick(controller, now_ns)


def crash(controller: Controller, infer: Infer, now_ns: int, worker: str = WORKER) -> None:
    finish(controller, infer, now_ns, Status.FAILED, worker, reason="process ended")
    unload(controller, now_ns, worker)


def test_an_action_behind_the_crashed_batch_runs_on_another_worker() -> None:
    controller = with_copies(WORKER)
    submit(controller, 1)
    submit(controller, 2, now_ns=ms(1))
    first, second = sent(controller, Infer, WORKER)
    register(controller, a_report(), worker=OTHER, resident=(MODEL,), now_ns=ms(2))
    crash(controller, first, ms(3))
    assert controller.pending() == 1, "the worker answers the request of the crashed batch"
    finish(controller, second, ms(3), Status.REFUSED, reason="its process has ended")
    (again,) = sent(controller, Infer, OTHER)
    assert [row.submit_id for row in again.rows] == [2]


def test_requests_run_on_the_other_worker_until_the_process_is_back() -> None:
    controller = with_copies(WORKER, OTHER)
    unload(controller, 0)
    assert not sent(controller, Load), "the pause"
    for number in range(1, 4):
        submit(controller, number, now_ns=number)
    assert not sent(controller, Infer, WORKER)
    assert sent(controller, Infer, OTHER)
    tick(controller, PAUSE_NS)
    (load,) = sent(controller, Load, WORKER)
    finish(controller, load, PAUSE_NS + ms(5))
    for number in range(4, 8):
        submit(controller, number, now_ns=PAUSE_NS + ms(5) + number)
    assert sent(controller, Infer, WORKER), "both workers hold the model again"


def test_without_another_copy_requests_wait_while_their_deadlines_allow() -> None:
    controller = with_copies(WORKER, preload=False)
    submit(controller, 1, budget_ms=1000)
    (infer,) = sent(controller, Infer, WORKER)
    submit(controller, 2, now_ns=ms(1), budget_ms=PAUSE_NS / 1e6 + 3)
    submit(controller, 3, now_ns=ms(1), budget_ms=1000)
    crash(controller, infer, ms(1))
    for behind in sent(controller, Infer, WORKER):
        finish(controller, behind, ms(1), Status.REFUSED, reason="its process has ended")
    assert [(outcome.id, outcome.status) for outcome in sent(controller, Outcome)] == [(2, Status.REFUSED)]
    tick(controller, ms(1) + PAUSE_NS)
    (load,) = sent(controller, Load)
    finish(controller, load, ms(1) + PAUSE_NS + ms(5))
    waited = [row.submit_id for infer in sent(controller, Infer, WORKER) for row in infer.rows]
    assert waited == [3]
    assert not sent(controller, Outcome)


def test_a_model_is_loaded_again_without_demand() -> None:
    controller = with_copies(WORKER)
    unload(controller, 0)
    assert controller.wakeup_ns() == PAUSE_NS
    tick(controller, PAUSE_NS)
    assert [load.model for load in sent(controller, Load)] == [MODEL]


def test_the_pauses_grow_with_each_crash_until_a_batch_succeeds() -> None:
    controller, now_ns = with_copies(WORKER), 0
    for pause_ns in (ms(10), ms(20), ms(40)):
        unload(controller, now_ns)
        now_ns += pause_ns
        tick(controller, now_ns - 1)
        assert not sent(controller, Load)
        tick(controller, now_ns)
        finish_loads(controller, now_ns=now_ns)
        controller.out.clear()
    submit(controller, 1, now_ns=now_ns)
    (infer,) = sent(controller, Infer)
    finish(controller, infer, now_ns + ms(1))
    unload(controller, now_ns + ms(1))
    tick(controller, now_ns + ms(1) + PAUSE_NS)
    assert sent(controller, Load)


@pytest.mark.parametrize("model", [MODEL, "unknown/1"])
def test_an_unload_of_what_is_not_loaded_is_ignored(model: str) -> None:
    controller = a_new_controller()
    register(controller, a_report())
    submit(controller, 1, budget_ms=1000)
    (load,) = sent(controller, Load)
    unload(controller, ms(1), model=model)
    unload(controller, ms(1), OTHER, model)
    finish(controller, load, ms(5))
    assert sent(controller, Infer), "the LOAD was sent after the process had ended"
