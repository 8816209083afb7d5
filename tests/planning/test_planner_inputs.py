"""Inputs of the planner: prices, hardware, variants and bounds of an objective."""

from __future__ import annotations

import numpy as np
import pytest

from horologe_common.pipelines import PipelineStage, PipelineStructure
from horologe_planning.catalogue import IMAGE_PROCESSING
from horologe_planning.hardware import parse_prices
from horologe_planning.report import Infeasible
from horologe_planning.search.evaluation import Evaluator, first_true
from horologe_planning.search.objective import percentile_ns
from horologe_planning.search.variants import cheapest_accurate, combinations, most_accurate
from planning.planner_builders import an_evaluator


def test_the_percentile_is_a_latency_that_at_least_this_part_does_not_exceed() -> None:
    assert percentile_ns(np.arange(1, 101), 0.99) == 99
    assert percentile_ns(np.arange(1, 151), 0.99) == 149
    assert percentile_ns(np.array([7]), 0.99) == 7


@pytest.mark.parametrize("threshold", [1, 2, 3, 7, 50, 99, 100])
def test_the_first_number_that_passes_is_found(threshold: int) -> None:
    assert first_true(lambda number: number >= threshold, 1, 100) == threshold
    assert first_true(lambda number: False, 1, 100) == 0


ACCURACY = {"resnet50_v2": 0.77, "resnet101_v2": 0.785, "resnet152_v2": 0.792}


def variant_evaluator(structure: PipelineStructure) -> Evaluator:
    return an_evaluator(structure, rate=200.0, seconds=10)


def test_variants_maximise_accuracy_under_a_budget_and_cost_under_a_floor() -> None:
    small = cheapest_accurate(IMAGE_PROCESSING, ACCURACY, variant_evaluator, 0.0)
    large = cheapest_accurate(IMAGE_PROCESSING, ACCURACY, variant_evaluator, 0.79)
    assert (small.models[1], large.models[1]) == ("resnet50_v2", "resnet152_v2")
    assert small.planned.report.cost_per_hour < large.planned.report.cost_per_hour
    rich = most_accurate(IMAGE_PROCESSING, ACCURACY, variant_evaluator, 1000.0)
    poor = most_accurate(IMAGE_PROCESSING, ACCURACY, variant_evaluator, small.planned.report.cost_per_hour)
    assert (rich.models, poor.models) == (large.models, small.models)
    with pytest.raises(Infeasible, match=r"budget: got 0\.01 dollars per hour, the cheapest plan costs"):
        most_accurate(IMAGE_PROCESSING, ACCURACY, variant_evaluator, 0.01)
    with pytest.raises(Infeasible, match=r"accuracy floor: got 0\.9, wanted at most 0\.792"):
        cheapest_accurate(IMAGE_PROCESSING, ACCURACY, variant_evaluator, 0.9)


def test_bad_variants_are_errors() -> None:
    with pytest.raises(ValueError, match=r"accuracy of resnet50_v2: got 77\.0, wanted 0 to 1"):
        combinations(IMAGE_PROCESSING, {"resnet50_v2": 77.0})
    stages = [PipelineStage(f"s{n}", "a", (), 1.0, 1.0, ("b", "c")) for n in range(6)]
    with pytest.raises(ValueError, match="got 729 combinations, wanted at most 256"):
        combinations(PipelineStructure("p", 1, tuple(stages)), {})


@pytest.mark.parametrize("text", ["cpu=0", "cpu=-1", "cpu=nan", "cpu=", "=1", "cpu", "cpu=free", "cpu=inf"])
def test_prices_that_are_not_above_zero_are_errors(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"hardware\.prices: got '.*', wanted NAME=PRICE with dollars per hour above 0"
    ):
        parse_prices([text])


def test_a_price_given_twice_is_an_error() -> None:
    with pytest.raises(ValueError, match="got 'cpu' twice"):
        parse_prices(["cpu=1", "cpu=2"])


def test_unknown_hardware_and_models_without_a_profile_are_errors() -> None:
    with pytest.raises(ValueError, match=r"stage fast: resnet18_v2 has profiles on v100, k80, cpu, wanted one of tpu"):
        an_evaluator(hardware=parse_prices(["tpu=1"]))
    with pytest.raises(ValueError, match=r"stage fast: resnet18_v2 has profiles on none"):
        an_evaluator(profiles={})
    with pytest.raises(ValueError, match="slo: got 0 ns, wanted more than 0"):
        an_evaluator(slo_ns=0)
