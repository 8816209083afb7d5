"""Profiles of stages: the catalogue's ratios, padded batches, measured times, bad input."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from horologe_common.clock import ms
from horologe_planning.catalogue import catalogue_profiles
from horologe_planning.hardware import DEFAULT_PRICES, parse_prices
from horologe_planning.profiles import (
    StageProfile,
    collect_profiles,
    decode_profiles,
    encode_profiles,
    measured_profile,
)


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
