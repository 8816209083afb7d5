"""Inputs of the planner: prices, hardware, variants, bounds of an objective, and profiles of stages."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from horologe_common.clock import ms
from horologe_common.pipelines import PipelineStage, PipelineStructure
from horologe_planning.catalogue import IMAGE_PROCESSING, catalogue_profiles
from horologe_planning.hardware import DEFAULT_PRICES, parse_prices
from horologe_planning.profiles import (
    StageProfile,
    collect_profiles,
    decode_profiles,
    encode_profiles,
    measured_profile,
)
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


def test_the_catalogue_has_the_throughputs_of_the_paper() -> None:
    resnet = catalogue_profiles()["resnet152_v2"]
    assert resnet["k80"].throughput(32) == pytest.approx(50.6, rel=1e-3)
    assert resnet["cpu"].throughput(32) == pytest.approx(0.6, rel=1e-3)
    assert resnet["v100"].latency_ns[16] == ms(48.54)
    assert resnet["cpu"].throughput(1) == pytest.approx(resnet["cpu"].throughput(32))
    assert set(catalogue_profiles()["preprocess"]) == {"cpu"}


def test_dearer_hardware_of_the_catalogue_is_faster_at_every_batch_size() -> None:
    prices = parse_prices(DEFAULT_PRICES)
    for profiles in catalogue_profiles().values():
        by_price = sorted(profiles.values(), key=lambda profile: prices[profile.hardware].price_per_hour)
        for cheaper, dearer in pairwise(by_price):
            if cheaper.model != "language-id":  # one call takes longer on a K80 than on a CPU
                assert all(dearer.latency_ns[size] < ns for size, ns in cheaper.latency_ns.items())


def test_a_batch_takes_as_long_as_the_next_profiled_size() -> None:
    profile = StageProfile("m", "cpu", {1: 10, 4: 30, 8: 50})
    assert profile.latency_table(6)[:, 0].tolist() == [0, 10, 30, 30, 30, 50, 50]
    assert profile.throughput(8) == 8e9 / 50
    with pytest.raises(ValueError, match="batch of m on cpu: got 9, wanted 1 to 8"):
        profile.latency_table(9)


def test_profiles_are_stored_and_read_again() -> None:
    profiles = catalogue_profiles()
    assert decode_profiles(encode_profiles(profiles)) == profiles


def test_a_measured_profile_has_the_longest_time_of_its_shares() -> None:
    assert measured_profile("m", "cpu", [{1: 10, 2: 30}, {1: 20}]) == StageProfile("m", "cpu", {1: 20, 2: 30})
    assert measured_profile("m", "cpu", [{}]) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"latency_ns": {}}, r"batch sizes: got \[\], wanted 1 to 4096"),
        ({"latency_ns": {2: 5}}, r"batch sizes: got \[2\], wanted 1 among them"),
        ({"latency_ns": {1: 0}}, "latency_ns: 1: got 0, wanted 1 to"),
        ({"latency_ns": {1: 5, 2: 10**30}}, "latency_ns: 2: got 1000000000000000000000000000000, wanted 1 to"),
        ({"latency_ns": {1: 5, 10**20: 6}}, r"batch sizes: got \[1, 100000000000000000000\], wanted 1 to 4096"),
        ({"base_ns": -1}, "base_ns: got -1, wanted 0 to"),
        ({"base_ns": 1 << 63}, "base_ns: got 9223372036854775808, wanted 0 to"),
        ({"row_ns": (1, 2)}, "row_ns: wanted 64 ascending times"),
        ({"row_ns": (1,) * 63 + (1 << 62,)}, "row_ns: wanted 64 ascending times"),
        ({"hardware": ""}, "got an empty name"),
    ],
)
def test_invalid_profiles_are_errors(fields: dict[str, Any], message: str) -> None:
    profile = StageProfile(**{"model": "m", "hardware": "cpu", "latency_ns": {1: 5}, **fields})
    with pytest.raises(ValueError, match=message):
        collect_profiles([profile])


def test_a_file_that_is_no_list_of_profiles_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"profiles: .*missing required field"):
        decode_profiles(b'[{"model": "m"}]')
