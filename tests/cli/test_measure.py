"""`horologe measure`: planned runs, interrupted and failing sessions, and the fit of the runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from cli.simulated_bench import SimulatedBench
from horologe_cli.measuring.measurement_session import MeasurementSession, SessionProgress
from horologe_common.interference.measured_runs import ShareLoad
from horologe_common.interference.v100 import CALIBRATED
from horologe_gpu_worker.measurement.device_sensor import DeviceLost
from horologe_planning.interference.coefficients_file import MeasuredRuns
from horologe_planning.interference.measured_fit import model_profile
from horologe_planning.interference.measurement_plan import (
    RunSizes,
    copies_runs,
    model_runs,
    pair_runs,
    profiled_batches,
)
from horologe_planning.interference.model_measurements import ProfileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.interference.measured_runs import MeasuredRun

from cli.simulated_bench import EXACT, MODELS, ORIGIN, SIZES, fitted, measure, predictions


def test_a_model_has_eleven_runs() -> None:
    runs = model_runs("resnet50", (1, 2, 4, 8, 16, 32), SIZES)
    assert len(runs) == 11
    alone = {(load.batch, load.share_percent) for run in runs if len(run) == 1 for load in run}
    assert alone == {(batch, share) for batch in (1, 16, 32) for share in (10, 50, 100)}
    assert runs[-1] == (ShareLoad("resnet50", 16, 50),) * 2


def test_copies_share_the_device_equally_and_every_pair_runs() -> None:
    runs = copies_runs("vgg19", (1, 2, 4), SIZES)
    assert [len(run) for run in runs] == [1, 2, 3, 4, 5]
    assert set(runs[-1]) == {ShareLoad("vgg19", 4, 20)}
    pairs = pair_runs(dict.fromkeys(MODELS, (1, 2, 4)), SIZES)
    assert len({frozenset(load.model for load in run) for run in pairs}) == 6
    assert all(sum(load.share_percent for load in run) == 100 for run in pairs)


@pytest.mark.parametrize(
    ("sizes", "batches"), [((1, 2, 4, 8, 16), (1, 8, 16)), ((3, 1, 2), (1, 2, 3)), ((1, 9, 10), (1, 9, 10))]
)
def test_batches_of_a_profile(sizes: tuple[int, ...], batches: tuple[int, ...]) -> None:
    assert profiled_batches("m", sizes) == batches


def test_two_batch_sizes_are_too_few() -> None:
    with pytest.raises(ProfileError, match=r"m: batch_sizes: got \[1, 2\], wanted at least three"):
        profiled_batches("m", (1, 2))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (RunSizes(shares=(10.0,)), "shares: .*at least two"),
        (RunSizes(shares=(60.0, 100.0)), "shares: .*at most 50%"),
        (RunSizes(shares=(0.0, 50.0)), "shares: .*up to 100%"),
        (RunSizes(copies=1), "copies: got 1"),
        (RunSizes(splits=(100.0,)), "splits: .*between 0 and 100%"),
    ],
)
def test_absurd_sizes_are_named(sizes: RunSizes, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        sizes.validate()


def test_exact_runs_give_back_the_coefficients() -> None:
    content = fitted(measure(SimulatedBench()), price_per_hour=3.06)
    content.validate()
    truth = CALIBRATED
    for name, model in content.catalogue.models.items():
        for field in ("k1", "k2", "k3", "k5", "k6", "alpha_power", "beta_power", "alpha_cacheutil", "beta_cacheutil"):
            assert getattr(model, field) == pytest.approx(getattr(truth.models[name], field), rel=0.05, abs=0.05), field
        assert model.jitter == pytest.approx(0.01)
    for field in ("scheduling_slope_ms", "frequency_slope", "max_frequency_mhz", "idle_power_w", "price_per_hour"):
        assert getattr(content.gpu, field) == pytest.approx(getattr(truth.gpu, field), rel=0.02), field
    assert predictions(content) == pytest.approx(predictions(EXACT), rel=0.02)
    assert content.origin is not None
    assert content.origin.cache_source == "declared"
    assert content.origin.runs == 4 * 11 + 5 + 6 * 6


def test_noise_widens_the_deviations() -> None:
    exact, noisy = (fitted(measure(SimulatedBench(noise=noise))) for noise in (0.0, 0.03))
    for name in MODELS:
        assert (noisy.deviations[name]["k2"] or 0) > 10 * (exact.deviations[name]["k2"] or 0)
        assert noisy.catalogue.models[name].relative_error > exact.catalogue.models[name].relative_error
    assert predictions(noisy) == pytest.approx(predictions(exact), rel=0.1)


def test_an_interrupted_session_repeats_no_run() -> None:
    class Lost(SimulatedBench):
        def run(self, loads: Sequence[ShareLoad]) -> MeasuredRun:
            if len(self.runs) == 20:
                raise DeviceLost("the GPU is lost")
            return super().run(loads)

    stored: list[MeasuredRuns] = []
    with pytest.raises(DeviceLost):
        measure(Lost(), stored=stored)
    assert len(stored[-1].runs) == 20
    bench = SimulatedBench()
    measurements = measure(bench, earlier=stored[-1])
    assert len(measurements.runs) == 4 * 11 + 5 + 6 * 6
    assert len(bench.runs) == len(measurements.runs) - 20


def test_a_run_is_tried_twice_and_its_failure_is_named() -> None:
    bench = SimulatedBench()
    bench.fail_next = 1
    assert len(measure(bench, MODELS[:1]).runs) == 11 + 5
    bench.fail_next = 2
    session = MeasurementSession(bench, MODELS[:1], SIZES, ORIGIN)
    measurements = session.measure(SessionProgress(lambda done, total, run: None, lambda measured: None))
    assert session.failed == {"alexnet b1 10%": "the process ended"}
    assert len(measurements.runs) == 11 + 5 - 1


def test_missing_runs_name_the_coefficient_unless_it_is_assumed() -> None:
    measurements = measure(SimulatedBench(), MODELS[:2])
    beside_a_copy = (ShareLoad("resnet50", 16, 50),) * 2
    kept = tuple(run for run in measurements.runs if run.loads != beside_a_copy)
    measurements = msgspec.structs.replace(measurements, runs=kept)
    with pytest.raises(ProfileError, match="resnet50: alpha_cache: not determined, missing a run beside a copy"):
        fitted(measurements)
    content = fitted(measurements, assumed={"alpha_cache": 0.002})
    assert {model.alpha_cache for model in content.models} == {0.002}
    assert content.assumed == {"alpha_cache": "as demanded"}
    assert "alpha_cache" not in content.deviations["resnet50"]


def test_runs_that_contradict_one_another_name_the_coefficient() -> None:
    measurements = measure(SimulatedBench(), MODELS[:2])
    runs = []
    for run in measurements.runs:
        pairs = zip(run.times, run.loads, strict=True)
        times = tuple(msgspec.structs.replace(one, gpu_ms=one.gpu_ms / load.batch) for one, load in pairs)
        runs.append(msgspec.structs.replace(run, times=times))
    with pytest.raises(ProfileError, match=r"alexnet: k2: got -.*, wanted a number above 0: the runs contradict"):
        fitted(msgspec.structs.replace(measurements, runs=tuple(runs)))


def test_counted_l2_utilisation_replaces_that_of_the_runs() -> None:
    measurements = measure(SimulatedBench(), MODELS[:2])
    counted = {1: 100.0, 16: 900.0, 32: 1700.0}
    models = (msgspec.structs.replace(measurements.models[0], cache_percent_ms=counted), measurements.models[1])
    profile = model_profile(msgspec.structs.replace(measurements, models=models), MODELS[0])
    for run in profile.solo:
        active_ms = run.gpu_ms - profile.scheduling_delay_ms
        assert run.cache_percent == pytest.approx(counted[run.batch] / active_ms, rel=1e-3)
    assert profile.contention[0].cache_percent in [run.cache_percent for run in profile.solo]


def test_two_shares_suffice_if_k4_is_assumed() -> None:
    measurements = measure(SimulatedBench(), MODELS[:2], RunSizes(shares=(50.0, 100.0), copies=2, splits=(50.0,)))
    assumed = {"frequency_slope": -1.0, "scheduling_slope_ms": 0.0}
    with pytest.raises(ProfileError, match=r"k4 and k5: .*missing runs at a third share \(measured: 50, 100\)"):
        fitted(measurements, assumed=assumed)
    content = fitted(measurements, assumed=assumed | {"k4": 0.0})
    assert {model.k4 for model in content.models} == {0.0}
    assert all(model.relative_error < 0.05 for model in content.models)


def test_a_device_without_a_power_sensor_has_no_power_cap() -> None:
    content = fitted(measure(SimulatedBench(has_power=False)))
    assert content.assumed["frequency_slope"] == "the device has no power sensor"
    assert {(model.alpha_power, model.beta_power) for model in content.models} == {(0.0, 0.0)}
    content.validate()


def test_models_that_do_not_slow_each_other_have_no_cache_contention() -> None:
    truth = {name: msgspec.structs.replace(model, alpha_cache=0.0) for name, model in CALIBRATED.models.items()}
    gpu = msgspec.structs.replace(CALIBRATED.gpu, scheduling_slope_ms=0.0, scheduling_offset_ms=0.0)
    bench = SimulatedBench(CALIBRATED._replace(gpu=gpu, models=truth), noise=0.01)
    content = fitted(measure(bench), assumed={"cache_scale": 1.0})
    assert all(0 <= model.alpha_cache < 0.001 for model in content.models)
    assert any("not slower beside a copy" in reason for reason in content.assumed.values())
