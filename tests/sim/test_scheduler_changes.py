"""The controller changes its scheduler under load: every request has one answer, whenever that happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from horologe_common.clock import ms, s
from horologe_common.core.protocol import Out
from horologe_common.status import Status
from horologe_common.wire import Infer, UseScheduler
from horologe_controller.schedulers import AUTO, SCHEDULERS
from horologe_controller.settings import ControllerSettings
from horologe_experiments.clockwork.catalogue_models import catalogue_models
from horologe_experiments.harness.experiment_world import ExperimentWorld
from horologe_experiments.harness.interval_ledger import IntervalLedger
from horologe_experiments.tournament.traits import Slo, Traits
from horologe_experiments.tournament.workload import build_workload
from horologe_sim.controller_only.controller_world import ClusterSettings
from horologe_sim.controller_only.request_load import Chunk
from horologe_sim.engine.simulated_faults import Fault, schedule_faults

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.wire import Outcome

(RESNET,) = catalogue_models(["resnet50_v1"])
FINITE = sorted(set(SCHEDULERS) - {"fifo"})
"""Schedulers that answer every request soon after its deadline."""
Change = tuple[float, str, bool]
"""(seconds since the start of the load, scheduler, admission)."""


class Changer:
    """A tuner that changes the scheduler at given times."""

    def __init__(self, changes: Sequence[Change], begin_ns: int) -> None:
        self.address = "tuner/0#00000001"
        self.out: list[Out] = []
        self._changes = sorted((begin_ns + s(at_s), name, admission) for at_s, name, admission in changes)

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Any) -> None:
        """Ignore the message."""

    def tick(self, now_ns: int) -> None:
        while self._changes and self._changes[0][0] <= now_ns:
            _, name, admission = self._changes.pop(0)
            self.out.append(Out("controller/0#00000001", UseScheduler(name, {"admission": admission})))

    def wakeup_ns(self) -> int | None:
        return self._changes[0][0] if self._changes else None


class StrictWorld(ExperimentWorld):
    """Fails if a request is answered that has been answered."""

    def _on_outcome(self, now_ns: int, outcome: Outcome) -> None:
        assert outcome.id in self.open
        assert outcome.status in (Status.REFUSED, Status.LOST, Status.LATE)
        super()._on_outcome(now_ns, outcome)

    def _count(self, device: Any, action: Any, result: Any) -> None:
        if isinstance(action, Infer):
            assert all(row.submit_id in self.open for row in action.rows)
        super()._count(device, action, result)


def run_changing(
    changes: Sequence[Change], chunk: Chunk, models: Any, faults: Any = (), known: Any = (), **fields: Any
) -> StrictWorld:
    setting = ClusterSettings(settle_ns=ms(100), controller=ControllerSettings(scheduler=AUTO), **fields)
    begin_ns = s(1000) + ms(100)
    ledger = IntervalLedger(["all"], len(models), s(1))
    world = StrictWorld(setting, models, ledger, 1, [chunk], neighbours=[Changer(changes, begin_ns)])
    world.controller.cluster.distributions.update(known)
    schedule_faults(world, faults, world.begin_ns)
    for at_ns in range(0, s(1), ms(20)):
        world.schedule(begin_ns + at_ns, lambda now_ns, _: world.controller.check(), None)
    world.run(s(1))
    world.check()
    assert not world.open
    return world


changes_of = some.lists(
    some.tuples(some.floats(0, 1), some.sampled_from(FINITE), some.booleans()), min_size=1, max_size=8
)


@settings(max_examples=12, deadline=None)
@given(
    changes=changes_of,
    rate=some.floats(100, 3000),
    slo_ms=some.floats(5, 200),
    models=some.integers(1, 8),
    pages=some.integers(7, 60),
    devices=some.integers(1, 3),
    lost=some.booleans(),
    seed=some.integers(0, 100),
)
def test_every_request_has_one_answer(
    changes: list[Change], rate: float, slo_ms: float, models: int, pages: int, devices: int, lost: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    count = int(rate)
    times = np.sort(rng.integers(0, s(1), count)).tolist()
    slos = np.where(rng.random(count) < 0.1, 0, ms(slo_ms)).tolist()
    chunk = Chunk(times, rng.integers(0, models, count).tolist(), slos, [0] * count)
    faults = [Fault(ms(300), "worker/0", restart_ns=ms(300))] if lost else []
    run_changing(changes, chunk, RESNET.copies(models), faults, devices=devices, pages=pages)


@pytest.mark.parametrize("name", FINITE)
def test_requests_of_dynamic_models_are_handed_over(name: str) -> None:
    traits = Traits("d", 3, (1.0,), models=2, catalogue="dynamic", slo=Slo("times", 5, 5), arrivals="poisson", load=0.9)
    workload = build_workload(traits, 300)
    chunk = workload.chunk._replace(groups=[0] * len(workload.chunk.groups))
    changes = [(0.2, name, True), (0.6, "horologe", False)]
    world = run_changing(changes, chunk, workload.models, known=workload.distributions)
    assert world.controller.stats.values["horologe_scheduler_switches_total", "horologe"] == 1


def test_what_waits_is_served_by_the_next_scheduler() -> None:
    """Requests with time to spare are all served, however often the scheduler changes."""
    times = list(range(0, s(1), ms(4)))
    chunk = Chunk(times, [0] * len(times), [ms(400)] * len(times), [0] * len(times))
    names = sorted(set(SCHEDULERS) - {"clipper", "deferred"})
    changes = [(0.05 * number, names[number % len(names)], True) for number in range(20)]
    world = run_changing(changes, chunk, RESNET.copies(1))
    (line,) = world.ledger.lines
    assert line.ok == line.sent == len(times)
    assert world.controller.stats.values["horologe_scheduler_switches_total", "edf"] >= 2
