"""A sharing plan in force: violations, shadows, and the sum of the shares of a device."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horologe_common.clock import ms, s
from horologe_common.latency_buckets import bucket_bound_ns, latency_bucket
from horologe_common.status import Status
from horologe_planning.plan import Placement, Plan
from horologe_tuner.core.plans.plan_checks import ClusterModels, check_plan
from horologe_tuner.core.standby.running_shares import RunningShares
from horologe_tuner.core.standby.share_workers import percent_by_device, worker_name
from tuner.running_sharing_bench import Bench, placement


def test_a_violation_is_confirmed_and_repaired_by_the_shadow() -> None:
    bench = Bench({"w1": 20, "w5": 50})
    bench.run(5)
    assert bench.percents() == {"w1": 20, "w5": 50}
    began_ns = bench.now_ns
    bench.needs["w1"] = 30
    bench.run(1.5)
    assert bench.percents() == {"w1": 30, "w5": 50}
    ((at_ns, decision),) = bench.decisions
    assert at_ns <= began_ns + s(1.5)
    assert decision.moves == (("v100-1", 20, 30),)
    assert decision.describe().startswith("P99 25.9 ms > 20 ms in 1 s, P99 25.9 ms > 20 ms in the next 0.5 s: v100-1")


def test_a_violation_that_has_passed_after_half_a_second_switches_nothing() -> None:
    bench = Bench({"w1": 20})
    bench.run(2)
    bench.run(0.1, w1=50.0)  # 40 requests of 400 in the second
    bench.run(10)
    assert bench.decisions == []


def test_one_request_in_a_hundred_may_exceed_the_slo() -> None:
    bench = Bench({"w1": 20})
    for _ in range(30):
        bench.run(0.9, count=10)
        bench.run(0.1, count=1, w1=50.0)
        bench.run(0.1, count=9)
    assert bench.decisions == []  # 1 of 100
    for _ in range(16):
        bench.step({}, {"w1": 1}, 10, start=False)
    assert bench.percents() == {"w1": 30}  # refused requests count as violations


@pytest.mark.parametrize(("other", "shadow"), [(40, 10), (75, 5), (78, 0), (80, 0)])
def test_a_shadow_has_ten_percent_more_or_what_is_left(other: float, shadow: float) -> None:
    bench = Bench({"w1": 20, "w5": other})
    bench.needs["w1"] = 20 + (shadow or 10)
    bench.run(3)
    assert bench.percents()["w1"] == 20 + shadow
    if not shadow:
        assert bench.sharing.unrepaired() == {"w1": "nothing is left of its device"}
        bench.needs.clear()
        bench.run(2)
        assert bench.sharing.unrepaired() == {}


def test_the_worst_violation_gets_the_room_and_other_shadows_shrink() -> None:
    bench = Bench({"w1": 40, "w5": 45})  # 15% are left
    bench.run(1)
    for _ in range(7):
        bench.step({"w5": 25.0}, {"w1": 20}, 40)
    assert bench.percents() == {"w1": 40, "w5": 55}
    shadows = bench.sharing.shadows()
    assert {worker: shadow.percent for worker, shadow in shadows.items()} == {"w1.v100-1.400": 45, "w5.v100-1.550": 60}
    bench.run(2, refused={"w1": 20})
    assert bench.percents() == {"w1": 45, "w5": 55}


def test_a_shadow_that_does_not_suffice_is_followed_by_a_larger_one() -> None:
    bench = Bench({"w1": 20})
    bench.needs["w1"] = 45
    bench.run(60)  # 17 ms with 50% are not low enough for 40%
    assert bench.percents()["w1"] == 50
    assert bench.reasons() == ["violation"] * 3
    bench.run(60)
    assert bench.reasons()[3:5] == ["calm", "violation"]  # it tries after 100 s


def test_the_workload_switches_back_when_the_cause_has_gone() -> None:
    bench = Bench({"w1": 20})
    bench.needs["w1"] = 30
    bench.run(2)
    assert bench.percents() == {"w1": 30}
    bench.needs.clear()
    bench.run(9)
    assert bench.percents() == {"w1": 30}
    bench.run(3)
    assert bench.percents() == {"w1": 20}
    assert bench.reasons() == ["violation", "calm"]


def test_a_cause_that_stays_is_tried_ever_less_often() -> None:
    """The small share violates the SLO, the large one is far below: each way back fails."""
    bench = Bench({"w1": 20})
    for _ in range(20 * 60 * 10):
        bench.step({"w1": 25.0 if bench.percents()["w1"] == 20 else 5.0}, {}, 40)
    trials = [at_ns for at_ns, decision in bench.decisions if decision.reason == "calm"]
    pauses = [(b - a) / 1e9 for a, b in pairwise(trials)]
    assert len(trials) <= 8
    assert all(later >= min(1.8 * pause, 600) for pause, later in pairwise(pauses))


def test_a_shadow_that_is_not_ready_cannot_be_switched_to() -> None:
    bench = Bench({"w1": 20})
    bench.run(2)
    bench.needs["w1"] = 30
    bench.dead.add("w1.v100-1.300")
    bench.run(3)
    assert bench.percents() == {"w1": 20}
    assert bench.sharing.unrepaired() == {"w1": "its shadow is not ready"}
    bench.dead.clear()
    bench.run(1.5)
    assert bench.percents() == {"w1": 30}


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["violate", "calm", "die", "live", "apply"]),
        st.integers(0, 3),
        st.lists(st.integers(1, 12), min_size=4, max_size=4),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(CHANGES)
def test_the_shares_of_a_device_never_exceed_it(changes: list[tuple[str, int, list[int]]]) -> None:
    """Four workloads on two devices, whatever happens. Switches only lead to workers that are ready."""
    names = ["a", "b", "c", "d"]
    bench = Bench({"a": 50, "b": 30}, {"c": 25, "d": 75})
    slow: dict[str, float] = {}
    for change, which, units in changes:
        name = names[which]
        if change == "violate":
            slow[name] = 50.0
        elif change == "calm":
            slow.pop(name, None)
        elif change == "die":
            bench.dead |= {worker_name(share) for share in bench.sharing.stages[name].active()}
        elif change == "live":
            bench.dead.clear()
        else:
            total = [max(40, sum(units[:2])), max(40, sum(units[2:]))]
            percents = [100 * unit / total[place // 2] for place, unit in enumerate(units)]
            bench.apply({"a": percents[0], "b": percents[1]}, {"c": percents[2], "d": percents[3]})
        for _ in range(4):
            serving = _active(bench.sharing)
            bench.step(slow, {}, 40)
            for share in _active(bench.sharing) - serving:
                assert worker_name(share) not in bench.dead
            assert max(percent_by_device(_active(bench.sharing)).values()) <= 100 + 1e-6
            _check_standbys(bench.sharing)


def _active(sharing: RunningShares) -> set[Placement]:
    return {share for stage in sharing.stages.values() for share in stage.active()}


def _check_standbys(sharing: RunningShares) -> None:
    """A shadow is at most 10% larger and fits beside the active shares; nothing has more than three workers."""
    totals = percent_by_device(_active(sharing))
    shadows = sharing.shadows()
    for share in _active(sharing):
        if (shadow := shadows.get(worker_name(share))) is not None:
            assert 0 < shadow.percent - share.percent <= 10
            assert totals[share.device] - share.percent + shadow.percent <= 100 + 1e-6
    for name, stage in sharing.stages.items():
        wanted = {worker for worker, (share, _) in sharing.wanted().items() if share.stage == name}
        assert len(wanted) <= 3 * len(stage.serving)
        assert {worker_name(share) for share in stage.active()} <= wanted


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ((placement("a/b", "v100-1", 20),), "stage 'a/b': stage: got 'a/b', wanted letters"),
        ((placement("w" * 41, "v100-1", 20),), "wanted at most 40 characters"),
        ((placement("w5", "v100-2", 20),), "stage: got 'w5', which has shares in plan 'w5'"),
        (
            (placement("w1", "a-same-ending-x", 20), placement("w1", "b-same-ending-x", 20)),
            "wanted devices whose last 12",
        ),
        ((placement("w1", "v100-1", 60),), "device 'v100-1': percent: got 110 in all, wanted at most 100"),
    ],
)
def test_a_plan_that_does_not_fit_the_others_names_the_field(shares: tuple[Placement, ...], message: str) -> None:
    others = [Plan("w5", ms(20), 400.0, (placement("w5", "v100-1", 50),))]
    status, reason = check_plan(Plan("new", ms(20), 400.0, shares), others, ClusterModels())
    assert status == Status.INVALID_INPUT
    assert message in reason


def test_bucket_zero_ends_at_the_slo() -> None:
    assert latency_bucket(ms(20), ms(20)) == 0
    assert latency_bucket(ms(20) + 1, ms(20)) == 1
    assert latency_bucket(0, ms(20)) < 0 < latency_bucket(s(1000), ms(20))
    for latency_ns in (ms(1), ms(19.9), ms(33)):
        bound_ns = bucket_bound_ns(latency_bucket(latency_ns, ms(20)), ms(20))
        assert latency_ns <= bound_ns <= 1.1 * latency_ns
