"""Search for the cheapest plan: what its spaces promise, its limits, and stages of which none gains by itself."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from horologe_common.clock import ms
from horologe_common.pipelines import PipelineStage, PipelineStructure
from horologe_planning.catalogue import CASCADE, VIDEO_MONITORING, catalogue_profiles
from horologe_planning.estimator.pipeline_workload import PipelineTrace
from horologe_planning.hardware import parse_prices
from horologe_planning.interference.derived_coefficients import catalogue_coefficients
from horologe_planning.joint_planning.joint_planner import SharedDevices
from horologe_planning.joint_planning.layout_evaluation import LayoutEvaluator, ShareTimes
from horologe_planning.plan import Placement
from horologe_planning.profiles import StageProfile, collect_profiles
from horologe_planning.search.cheapest_first import SearchResult, search_cheapest
from horologe_planning.search.evaluation import Evaluator
from horologe_planning.search.higher_rates import provisioning_levels
from horologe_planning.search.objective import Objective
from horologe_planning.search.pipeline_planner import make_plan
from horologe_planning.search.whole_devices import WholeDevices, enlarge, without_spare_replicas
from planning.planner_builders import an_evaluator, gamma_arrivals

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_planning.search.cheapest_first import SearchSpace


def shared_devices() -> SearchSpace[Any]:
    coefficients = catalogue_coefficients(catalogue_profiles(), "pcie-contention")
    times = ShareTimes({"v100": coefficients}, catalogue_profiles(), 1.0)
    return SharedDevices(LayoutEvaluator(an_evaluator(CASCADE, rate=300, seconds=5), times))


def whole_devices() -> SearchSpace[Any]:
    return WholeDevices(an_evaluator(VIDEO_MONITORING, rate=300, seconds=5))


@pytest.mark.parametrize("create", [whole_devices, shared_devices])
def test_a_space_keeps_its_promises(create: Callable[[], SearchSpace[Any]]) -> None:
    space = create()
    starts = list(islice(space.starts(), 6))
    assert starts
    assert all(space.price(first) <= space.price(second) + 1e-9 for first, second in pairwise(starts))
    for start in starts[:3]:
        improved = space.improve(start)
        assert space.devices(improved) == space.devices(start)
        assert space.reached_slo_ns(improved) <= space.reached_slo_ns(start)
        for wider in space.additions(start):
            assert space.price(wider) > space.price(start)
            assert space.devices(wider) != space.devices(start)
    assert space.runs > 0


@pytest.mark.parametrize("create", [whole_devices, shared_devices])
def test_nothing_cheaper_is_feasible_among_what_was_tried(create: Callable[[], SearchSpace[Any]]) -> None:
    space = create()
    found = search_cheapest(space).cheapest
    assert found is not None
    assert space.is_feasible(found)
    assert search_cheapest(space, cost_limit=space.price(found)) == SearchResult(None)


@pytest.mark.parametrize("create", [whole_devices, shared_devices])
def test_a_search_at_its_limit_says_what_would_follow(create: Callable[[], SearchSpace[Any]]) -> None:
    cheapest, following = search_cheapest(create(), runs_limit=0)
    assert cheapest is None
    assert following is not None


def more_of(placed: Placement) -> Placement:
    return msgspec.structs.replace(placed, replicas=placed.replicas + 1)


def test_a_configuration_that_is_too_small_gets_replicas_and_no_spare_ones() -> None:
    evaluator = an_evaluator(VIDEO_MONITORING, rate=300, seconds=5)
    space = WholeDevices(evaluator)
    least = next(space.starts())
    assert not space.is_feasible(least)
    larger = enlarge(space, least)
    assert larger is not None
    assert evaluator.is_feasible(larger)
    assert without_spare_replicas(evaluator, (*larger[:-1], more_of(larger[-1]))) == larger
    assert all(more.replicas >= less.replicas for more, less in zip(larger, least, strict=True))


def test_parallel_stages_that_are_all_too_slow_are_widened_together() -> None:
    """A query waits for the slower of two equal stages, so that a replica for one of them brings nothing."""
    profiles = collect_profiles([StageProfile(name, "cpu", {1: ms(20)}) for name in ("left", "right")])
    structure = PipelineStructure(
        "p",
        ms(25),
        (PipelineStage("left", "left", (), 1.0, 1.0), PipelineStage("right", "right", (), 1.0, 1.0)),
    )
    evaluator = an_evaluator(structure, ms(25), rate=200, cv=0.1, seconds=10, profiles=profiles)
    plan = make_plan(evaluator).plan
    assert evaluator.is_feasible(plan.placements)
    assert plan.placements[0].replicas == plan.placements[1].replicas


def test_every_level_meets_the_slo_on_the_sample_at_its_rate() -> None:
    structure = PipelineStructure(
        "two", ms(100), (PipelineStage("a", "a", (), 1.0, 1.0), PipelineStage("b", "b", ("a",), 0.5, 1.0))
    )
    profiles = collect_profiles(
        StageProfile(model, "gpu", {size: ms(time_ms + size) for size in (1, 2, 4)})
        for model, time_ms in (("a", 8), ("b", 20))
    )
    hardware = parse_prices(["gpu=1"])
    workload = PipelineTrace(structure, gamma_arrivals(200, 1, 60, 1), 1)
    configuration = tuple(Placement(name, name, "gpu", 4, 2) for name in ("a", "b"))
    levels = provisioning_levels(Evaluator(workload, profiles, hardware, Objective(ms(100))), configuration)
    assert levels[-1].factor > 10
    counts = np.array([level.replicas for level in levels])
    assert (np.diff(counts, axis=0) >= 0).all()
    assert counts[-1].sum() > counts[0].sum()
    for level in levels[:: len(levels) - 1]:
        faster = PipelineTrace(
            structure, np.round(workload.arrivals_ns / level.factor).astype(np.int64), 1, workload.calls
        )
        replicas = zip(configuration, level.replicas, strict=True)
        scaled = tuple(msgspec.structs.replace(stage, replicas=count) for stage, count in replicas)
        sample_only = Objective(ms(100), confidence=0.0)
        assert Evaluator(faster, profiles, hardware, sample_only).is_feasible(scaled)
