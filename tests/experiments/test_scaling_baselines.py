"""Baselines of the tuner: each sees the same observations and wants replicas."""

from __future__ import annotations

import numpy as np
import pytest

from horologe_experiments.inferline.baselines.autoscale import AutoScale, LoadCurve
from horologe_experiments.inferline.baselines.ds2 import Ds2
from horologe_experiments.inferline.baselines.forecast import ForecastScaling, HoltWinters
from horologe_experiments.inferline.baselines.kubernetes import CpuUtilisation, QueueLength
from horologe_experiments.inferline.scaling_policy import Observation, StageLoad

S = 10**9


def observe(
    now_s: float = 60,
    rate: float = 100,
    replicas: int = 4,
    in_flight: int = 0,
    waiting: int = 0,
    utilisation: float = 0.5,
) -> Observation:
    arrivals = np.arange(1, int(now_s * rate) + 1) * int(S / rate)
    stage = StageLoad(replicas, replicas, waiting, 1000, 10.0, utilisation)
    return Observation(int(now_s * S), arrivals, {"stage": stage}, in_flight)


def test_the_rate_of_an_observation_counts_its_window_only() -> None:
    assert observe(rate=100).rate(10) == 100
    assert observe(now_s=5, rate=100).rate(10) == 100
    assert observe()._replace(now_ns=70 * S).rate(10) == 0


def test_ds2_divides_the_rate_by_calls_per_busy_second() -> None:
    policy = Ds2({"stage": 0.5})
    assert policy.replicas(observe(rate=100)) == {"stage": 1}  # 50 calls a second, 100 a busy second
    assert policy.replicas(observe(rate=500)) == {"stage": 3}
    idle = observe(rate=500)
    assert policy.replicas(idle._replace(stages={"stage": StageLoad(3, 3, 0, 0, 0.0, 0.0)})) == {"stage": 3}


def test_hpa_scales_in_proportion_within_its_tolerance_and_its_pace() -> None:
    assert CpuUtilisation(0.5).replicas(observe(utilisation=0.54)) == {"stage": 4}
    assert CpuUtilisation(0.5).replicas(observe(utilisation=0.8)) == {"stage": 7}
    assert CpuUtilisation(0.1).replicas(observe(utilisation=1.0)) == {"stage": 8}


def test_hpa_scales_down_by_the_largest_recommendation_of_five_minutes() -> None:
    policy = CpuUtilisation(0.5)
    assert policy.replicas(observe(now_s=60, utilisation=0.5)) == {"stage": 4}
    assert policy.replicas(observe(now_s=300, utilisation=0.2)) == {"stage": 4}
    assert policy.replicas(observe(now_s=361, utilisation=0.2)) == {"stage": 2}


def test_keda_counts_unfinished_calls_per_replica() -> None:
    policy = QueueLength({"stage": 8.0})
    assert policy.replicas(observe(waiting=32)) == {"stage": 4}
    assert policy.replicas(observe(waiting=56)) == {"stage": 7}


def test_holt_winters_follows_a_trend_and_a_season() -> None:
    line = HoltWinters()
    for minute in range(60):
        line.add(100 + 2 * minute)
    assert line.forecast() == pytest.approx(220, rel=0.01)
    seasonal = HoltWinters(4)
    for step in range(400):
        seasonal.add((10, 20, 30, 20)[step % 4])
    assert seasonal.forecast() == pytest.approx(10, abs=1)
    assert HoltWinters().forecast() == 0


def test_forecast_scaling_serves_the_forecast_of_the_next_minute() -> None:
    policy = ForecastScaling({"stage": 2.0}, {"stage": 50.0}, past_rates=[100] * 10)
    assert policy.replicas(observe(rate=100)) == {"stage": 4}


def test_autoscale_infers_load_from_queries_in_flight_and_stops_units_late() -> None:
    policy = AutoScale(LoadCurve([0.0, 0.5, 1.0], [0, 1, 10]), 0.5)
    assert policy.replicas(observe(now_s=10, replicas=4, in_flight=4)) == {"stage": 4}
    assert policy.replicas(observe(now_s=11, replicas=4, in_flight=40)) == {"stage": 8}
    assert policy.replicas(observe(now_s=12, replicas=8, in_flight=0)) == {"stage": 8}
    assert policy.replicas(observe(now_s=140, replicas=8, in_flight=0)) == {"stage": 1}


def test_load_beyond_the_curve_grows_in_proportion_to_the_queries() -> None:
    curve = LoadCurve([0.5, 1.0], [1, 10])
    assert curve.load(20) == 2.0
    assert curve.load(1) == 0.5
