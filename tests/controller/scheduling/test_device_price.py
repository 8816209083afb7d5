"""The price of device time, and `controller.fairness`: which batches do not start although a device is idle."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from controller.desk import NOW, Desk
from horologe_common.clock import ms, s, us
from horologe_controller.core.scheduling.device_price import DevicePrice
from horologe_controller.settings import ControllerSettings
from horologe_experiments.clockwork.catalogue_models import catalogue_models
from horologe_experiments.harness.experiment_world import ExperimentWorld
from horologe_experiments.harness.interval_ledger import IntervalLedger
from horologe_experiments.harness.request_streams import PoissonStream, poisson
from horologe_sim.controller_only.controller_world import ClusterSettings
from horologe_sim.engine.noise import NOISES
from horologe_sim.engine.simulated_faults import Fault, schedule_faults

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from horologe_sim.engine.simulated_device import SimModel

CHEAP, COSTLY = "resnet18_v1", "winograd_resnet152_v2"
MODELS = [model.copies(1)[0] for model in catalogue_models([CHEAP, COSTLY])]
SECONDS = 6


def take(rates: NDArray[np.float64], step: int) -> NDArray[np.float64]:
    return np.asarray(rates[step])


def with_spec(model: SimModel, changes: Mapping[str, Any]) -> SimModel:
    report = msgspec.structs.replace(model.report, spec=msgspec.structs.replace(model.report.spec, **changes))
    return msgspec.structs.replace(model, report=report)


def served(
    cheap: list[float],
    costly: float,
    best_effort: float = 0.0,
    slowness: float = 1.0,
    cheap_slo_ms: float = 5,
    costly_slo_ms: float = 100,
    spec: Mapping[str, Any] | None = None,
    **settings: Any,
) -> list[float]:
    """Return the requests per second in time: cheap, costly, best effort. `cheap`: its rate in each second.

    A cheap request takes 1.3 ms, a costly one about 8 ms. `slowness`: executions take this multiple of their profiles.
    `spec`: changes of the costly model.
    """
    setting = ClusterSettings(noise=NOISES["none"], settle_ns=ms(500), controller=ControllerSettings(**settings))
    rates = [
        np.array([[rate, 0.0] for rate in cheap]),
        np.array([[0.0, costly]] * len(cheap)),
        np.array([[0.0, best_effort]] * len(cheap)),
    ]
    slos_ns = ms(cheap_slo_ms), ms(costly_slo_ms), 0
    streams = [
        PoissonStream(partial(take, rate), s(1), partial(lambda slo_ns, _: slo_ns, slo_ns), group)
        for group, (rate, slo_ns) in enumerate(zip(rates, slos_ns, strict=True))
    ]
    ledger = IntervalLedger(["cheap", "costly", "best effort"], len(MODELS), s(len(cheap)), s(1))
    models = [MODELS[0], with_spec(MODELS[1], spec or {})]
    world = ExperimentWorld(setting, models, ledger, 1, poisson(streams, s(len(cheap)), [1]))
    schedule_faults(world, [Fault(0, "worker/0", "slow", factor=slowness)], world.begin_ns)
    world.run(s(len(cheap)))
    world.check()
    return [line.ok / len(cheap) for line in ledger.lines]


def without_price(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DevicePrice, "decline", lambda *_: 0)


@pytest.mark.interpreted
def test_under_overload_a_long_batch_does_not_start_before_short_ones_that_are_about_to_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = [900.0] * SECONDS
    with_price = served(rates, 30.0)
    without_price(monkeypatch)
    assert sum(with_price[:2]) > 1.03 * sum(served(rates, 30.0)[:2])


def test_where_there_is_time_for_all_nothing_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    with_price = served([50.0] * SECONDS, 10.0)
    without_price(monkeypatch)
    assert with_price == pytest.approx(served([50.0] * SECONDS, 10.0), rel=0.02)


def test_the_price_falls_when_the_overload_ends() -> None:
    ends = served([900.0] * 2 + [10.0] * 4, 30.0)
    alone = served([10.0] * 6, 30.0)
    assert ends[1] > 0.6 * alone[1]


def test_best_effort_work_may_use_the_time_of_a_declined_batch() -> None:
    desk = Desk("horologe", [("cheap", "costly")], ("cheap", "costly"), admission=False)
    desk.set_profile("costly/1", dict.fromkeys((0, 1, 2, 4, 8, 16), ms(80)))
    now_ns = NOW
    for _ in range(300):  # overload: each turn one request of the cheap model is lost
        desk.ask(now_ns, 2.5, model="cheap")
        desk.ask(now_ns, 2.1, model="cheap")
        started = [*desk.plan(now_ns)[0], *desk.plan(now_ns + ms(2.2))[0]]
        now_ns += ms(2.5)
        for action in started:
            desk.end(action, now_ns)
    desk.ask(now_ns, 200, model="costly")
    assert desk.plan(now_ns)[0] == []
    best_effort = desk.ask(now_ns, 60_000, best_effort=True, model="cheap")
    assert [action.requests for action in desk.plan(now_ns)[0]] == [[best_effort]]


def test_a_declined_batch_is_examined_again_only_after_it_could_have_started() -> None:
    """The share is still busy when it looks for the next batch: it declines for a time after it is free."""
    desk = Desk("horologe", [("m",)], admission=False)
    (share,) = desk.cluster.shares()
    desk.ask(NOW, 100)
    policy: Any = desk.scheduler.policy
    policy._price.rate = 1.0  # one request per ns
    queues: Any = desk.scheduler.queues
    (queue,) = queues
    strategy = policy._static_strategy(NOW, NOW + ms(5), share, queue, share.estimates["m/1"])
    retry_ns = policy._price.decline(NOW + ms(5), share, strategy, 1.0, 1.0, us(10))
    assert retry_ns > NOW + ms(5)


def test_executions_that_take_longer_than_their_profiles_are_no_reason_to_decline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A single model: nothing else could use the time."""
    rates = [900.0] * SECONDS
    with_price = served(rates, 0.0, slowness=3.0)
    without_price(monkeypatch)
    assert with_price[0] == pytest.approx(served(rates, 0.0, slowness=3.0)[0], rel=0.02)


OVERLOAD = [2000.0] * 4
"""Rate of the cheap model, which could use all the time."""


def served_parts(costly: float = 500.0, **options: Any) -> tuple[float, float]:
    """Return which parts of the cheap and of the costly requests are served under overload."""
    rows = served(OVERLOAD, costly, cheap_slo_ms=100, **options)
    counted = 1 - 1 / len(OVERLOAD)  # not the first second
    return rows[0] / OVERLOAD[0] / counted, rows[1] / costly / counted


def test_by_default_no_model_starves_and_fewer_requests_are_served_in_all() -> None:
    most, fair = served_parts(450, fairness="goodput"), served_parts(450)
    assert 4 * most[1] < most[0]
    assert sum(fair) / 4 < fair[1] < fair[0] < most[0]


def test_a_model_that_cannot_be_helped_costs_the_others_nothing() -> None:
    """Its budget is below twice the time of a request alone."""
    most = served_parts(costly_slo_ms=12, fairness="goodput")
    assert served_parts(costly_slo_ms=12)[0] == pytest.approx(most[0], abs=0.02)


def test_a_weight_counts_for_both_objectives() -> None:
    for fairness in ("fair", "goodput"):
        once, more = (served_parts(spec={"weight": weight}, fairness=fairness) for weight in (1.0, 30.0))
        assert more[1] > once[1] + 0.1


def test_a_guaranteed_rate_is_served_and_not_all_requests_beyond_it() -> None:
    guaranteed, usual = served_parts(500.0, spec={"guaranteed_rate": 200.0}), served_parts(500.0)
    assert usual[1] < 0.35
    assert 0.39 < guaranteed[1] < 0.45
