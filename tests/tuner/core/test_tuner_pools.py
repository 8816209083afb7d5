"""Plans whose stages or pipelines share workers or models."""

from __future__ import annotations

import msgspec

from horologe_common.clock import ms
from horologe_common.status import Status
from horologe_common.wire import PlannedModel
from horologe_planning.plan import Placement, Plan, ProvisioningLevel
from tuner.tuner_bench import FRONT, PLAN, Bench


def test_stages_of_a_pooled_plan_share_their_workers() -> None:
    bench = Bench()
    bench.apply(msgspec.structs.replace(PLAN, pooled=True))
    assert bench.scaled == [{"v100": 2}]
    assert [model.shares for model in bench.plans[-1].models] == [2, 1]


def test_a_pool_may_hold_a_model_on_several_hardware_types() -> None:
    bench = Bench()
    rows = [("a", "v100", 2), ("b", "v100", 2), ("a", "k80", 3), ("again", "k80", 3)]
    stages = tuple(
        Placement(f"{stage}@{kind}", "m" if stage in ("a", "again") else "n", kind, 8, count, throughput=100.0)
        for stage, kind, count in rows
    )
    levels = (ProvisioningLevel(0.5, (1, 1, 2, 2)), ProvisioningLevel(1.0, (2, 2, 3, 3)))
    pool = Plan("pool", ms(200), 100.0, stages, PLAN.envelope, levels=levels, pooled=True)
    assert bench.apply(pool).status == Status.OK
    models = (("m", 2, 8, "v100"), ("n", 2, 8, "v100"), ("m", 3, 8, "k80"))
    assert bench.plans[-1].models == tuple(PlannedModel(*model) for model in models)
    assert bench.scaled == [{"v100": 2, "k80": 3}]
    bench.events(200, 2, model="m/1")
    assert bench.scaled[-1] == {"v100": 4, "k80": 6}  # 1.54 times the planned rate, with headroom
    other = Placement("only", "m", "v100", 2, 3, throughput=50.0)
    answer = bench.apply(Plan("single", ms(100), 50.0, (other,), PLAN.envelope))
    assert "hardware: got 'v100', wanted 'k80, v100', which model 'm' has in plan 'pool'" in answer.reason


def test_several_pipelines_share_a_model() -> None:
    bench = Bench()
    bench.apply()
    other = Placement("only", "classify", "v100", 2, 3, throughput=50.0)
    bench.apply(Plan("single", ms(100), 50.0, (other,), PLAN.envelope))
    assert bench.plans[-1].models[0] == PlannedModel("classify", 5, 2, "v100")
    assert bench.scaled[-1] == {"v100": 6}
    assert bench.tune("withdraw", b"single").status == Status.OK
    assert bench.plans[-1].models[0] == PlannedModel("classify", 2, 4, "v100")
    assert bench.tune("withdraw", b"video").status == Status.OK
    assert bench.plans[-1].models == ()
    assert bench.saved[-1].applied == ()


def test_two_hardware_types_for_one_model_are_an_error() -> None:
    bench = Bench()
    bench.apply()
    other = msgspec.structs.replace(FRONT, hardware="k80")
    answer = bench.apply(Plan("single", ms(100), 50.0, (other,), PLAN.envelope))
    assert answer.reason.startswith("stage 'front': hardware: got 'k80', wanted 'v100'")
