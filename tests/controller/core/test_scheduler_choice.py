"""`controller.scheduler` auto: who may change the scheduler, what operators see, and what a tuner is told."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from controller.controller_builders import (
    FRONTEND,
    OTHER,
    SELECTOR,
    TUNER,
    a_controller,
    connect,
    register,
    submit,
    tick,
)
from harness.builders import a_report, a_spec, sent
from horologe_common.clock import ms
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.distribution import Distribution
from horologe_common.wire import (
    Describe,
    DescribeScheduling,
    Description,
    RequestTrace,
    ResourcePlan,
    SchedulingState,
    UseScheduler,
)
from horologe_controller.core.arrival_tracer import MAX_REQUESTS
from horologe_controller.core.controller import Controller
from horologe_controller.core.runtime_distributions import (
    RuntimeDistributions,
    SoloDistribution,
    store_distributions,
)
from horologe_controller.schedulers import SCHEDULERS

SWITCHED = "horologe_scheduler_switches_total"


def with_tuner(scheduler: str = "auto", **settings: Any) -> Controller:
    """Return a controller with a tuner, and a worker that has loaded two models."""
    reports = [a_report(), a_report(a_spec("other"))]
    controller = a_controller(scheduler, reports, margin_ns=ms(1), **settings)
    connect(controller, TUNER)
    controller.handle(0, TUNER, ResourcePlan(0), ())
    tick(controller, 0)
    return controller


def use(controller: Controller, scheduler: str, sender: str = TUNER, **values: Any) -> None:
    controller.handle(ms(1), sender, UseScheduler(scheduler, values, "it serves more"), ())
    controller.tick(ms(1))
    controller.check()


def described(controller: Controller) -> Description:
    controller.handle(ms(1), FRONTEND, Describe(1), ())
    (description,) = sent(controller, Description, FRONTEND)
    return description


def test_a_tuner_changes_the_scheduler_and_operators_see_why() -> None:
    controller = with_tuner()
    assert described(controller).scheduler == "auto: horologe"
    use(controller, "orloj")
    description = described(controller)
    assert (description.scheduler, description.scheduler_reason) == ("auto: orloj", "it serves more")
    controller.refresh_stats()
    assert controller.stats.values[SWITCHED, "orloj"] == 1
    assert controller.stats.values["horologe_scheduler_active", "orloj"] == 1
    assert controller.stats.values["horologe_scheduler_active", "horologe"] == 0


def test_operators_see_which_model_is_served_worst_and_why() -> None:
    controller = a_controller("horologe", (a_report(a_spec("usual")), a_report(a_spec("costly"))))
    traffic = controller.scheduler.policy.traffic
    assert traffic is not None
    for number, (model, served) in enumerate((("usual/1", 39.0), ("costly/1", 10.0))):
        submit(controller, number, model=model)
        traffic.of_model(model).arrived, traffic.of_model(model).served = 40.0, served
    wanted = r"costly/1: 25% of its requests are served, 61% of a model's on average: a request alone takes .* ms, one"
    assert re.match(wanted, described(controller).worst_served)
    traffic.of_model("costly/1").served = 40.0
    traffic.of_model("usual/1").served = 40.0
    controller.out.clear()
    assert described(controller).worst_served == ""


def test_the_first_change_of_the_scheduler_is_an_increase_of_its_counter() -> None:
    before = with_tuner().stats.values
    assert {name: before[SWITCHED, name] for name in SCHEDULERS} == dict.fromkeys(SCHEDULERS, 0)
    assert not any(key[0] == SWITCHED for key in with_tuner("edf").stats.values)


def test_without_its_tuner_the_controller_returns_to_the_default() -> None:
    controller = with_tuner()
    use(controller, "edf")
    controller.handle(ms(2), TUNER, PeerDisconnected(TUNER), ())
    controller.tick(ms(2))
    assert described(controller).scheduler == "auto: horologe"


@pytest.mark.parametrize(
    ("scheduler", "sender", "name", "values"),
    [
        ("horologe", TUNER, "edf", {}),
        ("auto", SELECTOR, "edf", {}),
        ("auto", TUNER, "nope", {}),
        ("auto", TUNER, "auto", {}),
        ("auto", TUNER, "edf", {"name": "1"}),
        ("auto", TUNER, "edf", {"admission": 7}),
    ],
)
def test_other_changes_are_ignored(scheduler: str, sender: str, name: str, values: dict[str, Any]) -> None:
    controller = with_tuner(scheduler)
    use(controller, name, sender, **values)
    assert described(controller).scheduler.endswith("horologe")
    assert not controller.stats.values.get((SWITCHED, name))


def test_settings_change_with_the_scheduler_and_the_configured_ones_come_back() -> None:
    controller = with_tuner()
    use(controller, "horologe", admission=False)
    assert not controller.scheduler.settings.admission
    use(controller, "horologe")
    assert controller.scheduler.settings.admission


def submit_many(controller: Controller, now_ns: int, count: int, **fields: Any) -> None:
    submit(controller, *range(now_ns, now_ns + count), now_ns=now_ns, budget_ms=50, **fields)


def traces(controller: Controller, now_ns: int) -> list[RequestTrace]:
    controller.tick(now_ns)
    return sent(controller, RequestTrace, TUNER)


def test_a_tuner_gets_the_requests_with_the_budgets_of_their_clients() -> None:
    controller = with_tuner()
    submit_many(controller, ms(10), 3)
    submit_many(controller, ms(20), 1, best_effort=True, length=7, application="chat")
    (trace,) = traces(controller, ms(150))
    assert trace.models == ("sum/1",)
    assert [request.budget_ns for request in trace.requests] == [ms(50)] * 4
    assert [request.arrival_ns for request in trace.requests] == [ms(10)] * 3 + [ms(20)]
    last = trace.requests[-1]
    assert (last.best_effort, last.length, last.application) == (True, 7, "chat")
    (trace,) = traces(controller, ms(300))
    assert trace.requests == ()


def test_traces_are_bounded_and_only_sent_with_auto() -> None:
    controller = with_tuner(max_queued=10)
    submit_many(controller, ms(10), MAX_REQUESTS - 10)
    submit_many(controller, ms(20), 20)
    (trace,) = traces(controller, ms(150))
    assert len(trace.requests) == MAX_REQUESTS - 10
    assert trace.left_out == 20
    fixed = with_tuner("horologe")
    submit_many(fixed, ms(10), 3)
    assert traces(fixed, ms(150)) == []


def test_a_tuner_gets_the_state_that_a_rehearsal_needs() -> None:
    controller = with_tuner()
    parts = [SoloDistribution("chat", 16, Distribution.from_samples([ms(2), ms(3), ms(9)]))]
    controller.cluster.distributions["other/1"] = RuntimeDistributions(ms(1), parts)
    controller.handle(ms(1), TUNER, DescribeScheduling(("other/1", "sum/1", "unknown/1")), ())
    (state,) = sent(controller, SchedulingState, TUNER)
    assert [model.report.spec.key for model in state.models] == ["other/1", "sum/1"]
    assert state.settings["scheduler"] == "horologe"
    (share,) = state.shares
    assert (share.pages, share.factor, share.models, share.resident) == (64, 1.0, (), (0, 1))
    dynamic, static = state.models
    assert static.distributions is None
    assert static.report.profile == a_report().profile
    stored: dict[str, RuntimeDistributions] = {}
    assert dynamic.distributions is not None
    store_distributions(stored, dynamic.distributions)
    assert stored["other/1"].mean_ns == pytest.approx(controller.cluster.distributions["other/1"].mean_ns, rel=0.01)


def test_the_state_has_the_configured_settings_whatever_the_tuner_has_changed() -> None:
    """A rehearsal plays the default with them, and each other candidate with its own changes."""
    controller = with_tuner()
    use(controller, "horologe", policy={"advance": 8.0})
    assert controller.scheduler.settings.policy == {"advance": 8.0}
    controller.handle(ms(1), TUNER, DescribeScheduling(("sum/1",)), ())
    (state,) = sent(controller, SchedulingState, TUNER)
    assert (state.settings["scheduler"], state.settings["policy"]) == ("horologe", {})


def test_the_state_has_dynamic_models_at_the_pace_of_each_share() -> None:
    """Distributions are those of some device. The shares here take 1.5 and 3 times as long."""
    controller = with_tuner()
    register(controller, a_report(a_spec("other")), worker=OTHER)
    parts = [SoloDistribution("", 0, Distribution.from_samples([ms(2), ms(3), ms(9)]))]
    known = controller.cluster.distributions["other/1"] = RuntimeDistributions(ms(1), parts)
    for share, pace in zip(controller.cluster.shares(), (1.5, 3.0), strict=True):
        for _ in range(300):
            share.dynamic_pace.observe(0, round(pace * ms(4)), ms(4), 0.0)
    controller.handle(ms(1), TUNER, DescribeScheduling(("other/1",)), ())
    (state,) = sent(controller, SchedulingState, TUNER)
    assert [share.factor for share in state.shares] == pytest.approx([1.0, 2.0], rel=0.001)
    stored: dict[str, RuntimeDistributions] = {}
    published = state.models[0].distributions
    assert published is not None
    store_distributions(stored, published)
    assert stored["other/1"].base_ns == pytest.approx(ms(1.5), rel=0.001)
    assert stored["other/1"].mean_ns == pytest.approx(1.5 * known.mean_ns, rel=0.01)


def test_published_distributions_are_read_back() -> None:
    rng = np.random.default_rng(1)
    parts = [
        SoloDistribution(name, length, Distribution.from_samples(rng.lognormal(15, 0.5, 500)))
        for name in ("chat", "document")
        for length in (16, 64)
    ]
    before = RuntimeDistributions(ms(1), parts, ((1, 1.0), (4, 3.0)))
    stored: dict[str, RuntimeDistributions] = {}
    store_distributions(stored, before.publish("m/1"))
    after = stored["m/1"]
    assert len(after) == len(before)
    assert after.base_ns == before.base_ns
    assert after.scale(4) == before.scale(4)
    for kind, part in enumerate(before.parts):
        solo = after.parts[kind].solo
        assert solo.mean_ns == pytest.approx(part.solo.mean_ns, rel=1e-2)
        for q in (0.1, 0.5, 0.9):
            assert solo.quantile_ns(q) == pytest.approx(part.solo.quantile_ns(q), rel=1e-2)
