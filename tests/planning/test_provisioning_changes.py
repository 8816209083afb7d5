"""Changes of a sharing plan: every SLO holds, and few workloads move."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horologe_planning.provisioning.incremental import RunningProvision, update_plan
from horologe_planning.provisioning.provisioner import provision
from horologe_planning.provisioning.workloads import ProvisioningError, Workload
from planning.workload_lists import (
    LARGEST,
    SLOW,
    TABLE_3,
    V100,
    check_plan,
    groups,
    workload_lists,
)


@settings(max_examples=12, deadline=None)
@given(
    workload_lists(),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.floats(0.05, 3.0)), max_size=12),
    st.booleans(),
)
def test_changes_keep_every_slo_and_move_few(
    workloads: list[Workload], changes: list[tuple[int, int, float]], two_types: bool
) -> None:
    running = RunningProvision(workloads, [V100, SLOW] if two_types else [V100])
    present = {workload.name: workload for workload in workloads}
    for number, (kind, place, factor) in enumerate(changes):
        names = sorted(present)
        if kind == 0 or not names:
            added = Workload(f"new{number}", "resnet50", 400 * factor, 30)
            present[added.name] = added
            running.add(added)
        elif kind == 1:
            name = names[place % len(names)]
            del present[name]
            running.remove(name)
        else:
            name = names[place % len(names)]
            present[name] = msgspec.structs.replace(present[name], rate=present[name].rate * factor)
            running.change_rate(name, present[name].rate)
        running.check()
        check_plan(running.plan(), list(present.values()))


def test_changes_of_one_workload_among_many_move_at_most_two_others() -> None:
    rng = np.random.default_rng(2)
    loads = [
        Workload(f"w{number}", model, rng.uniform(0.1, 0.8) * LARGEST[model][0], rng.uniform(1, 2) * LARGEST[model][1])
        for number, model in enumerate(rng.choice(sorted(LARGEST), 200).tolist())
    ]
    running = RunningProvision(loads, [V100])
    moves = [len(running.change_rate(load.name, load.rate * rng.uniform(0.6, 1.25))) for load in loads[:60]]
    running.check()
    assert np.quantile(moves, 0.95) <= 2


@settings(max_examples=12, deadline=None)
@given(workload_lists(), workload_lists(), st.booleans())
def test_a_running_plan_is_changed_to_any_other_list(
    before: list[Workload], after: list[Workload], two_types: bool
) -> None:
    kinds = [V100, SLOW] if two_types else [V100]
    plan = provision(before, kinds)
    changed, moved = update_plan(plan.plans, after, kinds, margin=plan.report.margin)
    check_plan(changed, after)
    assert set(moved) <= {load.name for load in before} & {load.name for load in after}


def test_a_running_plan_of_the_same_workloads_stays() -> None:
    plan = provision(TABLE_3, [V100])
    changed, moved = update_plan(plan.plans, TABLE_3, [V100], margin=plan.report.margin)
    assert (moved, changed.report.cost_per_hour) == ((), plan.report.cost_per_hour)
    assert groups(changed) == groups(plan)
    assert {placed.name: placed.placements[0].device for placed in changed.plans} == {
        placed.name: placed.placements[0].device for placed in plan.plans
    }


def test_the_gpu_of_a_type_that_is_gone_is_replaced() -> None:
    plan = provision(TABLE_3[:3], [SLOW])
    changed, moved = update_plan(plan.plans, TABLE_3[:3], [V100], margin=plan.report.margin)
    check_plan(changed, TABLE_3[:3])
    assert set(moved) == {"W1", "W2", "W3"}


def test_an_unknown_workload_cannot_change_and_a_bad_one_changes_nothing() -> None:
    running = RunningProvision([Workload("w", "alexnet", 100, 10)], [V100])
    plan = running.plan()
    with pytest.raises(ProvisioningError, match="'x': got an unknown name"):
        running.change_rate("x", 10)
    with pytest.raises(ProvisioningError, match="rate: got nan"):
        running.change_rate("w", float("nan"))
    with pytest.raises(ProvisioningError, match="'w': got the name twice"):
        running.add(Workload("w", "alexnet", 100, 10))
    with pytest.raises(ProvisioningError, match="slo_ms: got 1"):
        running.add(Workload("v", "ssd", 100, 1))
    assert running.plan() == plan
    running.remove("w")
    assert running.occupancy.cost == 0
