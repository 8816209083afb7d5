"""Interference models: the paper's equations by hand, laws that hold for any coefficients, the published V100."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horologe_common.interference.coefficients import GpuCoefficients, ModelCoefficients
from horologe_common.interference.prediction import (
    INTERFERENCE_MODELS,
    Prediction,
    predict_shares,
    stack_coefficients,
)
from horologe_common.interference.v100 import CALIBRATED, PAPER, V100_CATALOGUES
from horologe_experiments.igniter.igniter_data import MODELS
from horologe_planning.interference.fitting import active_time, fit_gpu, fit_model
from horologe_planning.interference.model_measurements import (
    CacheContentionRun,
    CopiesRun,
    GpuProfile,
    ModelProfile,
    PairRun,
    ProfileError,
    SoloRun,
)
from horologe_planning.interference.pair_fitting import (
    fit_pairs,
    pair_arrays,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


GPU = GpuCoefficients("g", 100, 1000, 20, 1000, -2.0, 0.01, -0.015)
PCIE = INTERFERENCE_MODELS["pcie-contention"]
MODEL = ModelCoefficients("m", 0.5, 8, 4, 5, 1, 0.01, 0.5, 10, 0.25, 1, 10, 0.2, 50, 20)


def predict(
    name: str,
    models: list[ModelCoefficients],
    batch: Sequence[float],
    share: Sequence[float],
    gpu: GpuCoefficients = GPU,
) -> Prediction:
    arrays = np.array(batch, float), np.array(share, float)
    return predict_shares(INTERFERENCE_MODELS[name], gpu, stack_coefficients(models), *arrays)


def test_a_workload_alone_follows_the_equations() -> None:
    result = predict("igniter", [MODEL], [4], [35])
    active = (0.5 * 16 + 8 * 4 + 4) / (35 + 5) + 1  # 2.1 ms, Eq. 11
    power = 20 + 0.5 * 4000 / active + 10  # 982 W, Eq. 10
    frequency = max(1000 - 2 * (power - 100), 100)  # Eq. 9, bounded
    gpu_ms = (0.2 + active) / (frequency / 1000)  # Eq. 4, 5
    assert result.gpu_ms[0] == pytest.approx(gpu_ms)
    assert result.latency_ms[0] == pytest.approx(0.2 + gpu_ms + 0.08)  # Eq. 1, 3
    assert result.throughput[0] == pytest.approx(4000 / (gpu_ms + 0.08))  # Eq. 2
    assert result.power_w == pytest.approx(power)


def test_neighbours_add_scheduling_delay_cache_contention_and_power() -> None:
    gpu = msgspec.structs.replace(GPU, max_power_w=5000)
    result = predict("igniter", [MODEL, MODEL, MODEL], [4, 2, 1], [35, 15, 0], gpu)
    first, second = 2.1, (0.5 * 4 + 16 + 4) / 20 + 1
    cache_of_second = 0.25 * 2000 / second + 1
    scheduling = 0.2 + 10 * (0.01 * 2 - 0.015)  # Eq. 5, 6 with two workloads
    assert result.gpu_ms[0] == pytest.approx(scheduling + first * (1 + 0.01 * cache_of_second))  # Eq. 8
    assert result.frequency_mhz == pytest.approx(1000)
    assert result.power_w == pytest.approx(20 + 0.5 * 4000 / first + 10 + 0.5 * 2000 / second + 10)
    assert result.latency_ms[2] == 0  # Eq. 7: share 0 is no workload


def test_pcie_contention_lengthens_transfers_only() -> None:
    both = [MODEL, msgspec.structs.replace(MODEL, load_bytes=0.0)]
    paper, shared = (predict(name, both, [4, 4], [40, 40]) for name in ("igniter", "pcie-contention"))
    assert shared.gpu_ms == pytest.approx(paper.gpu_ms)
    assert shared.load_ms == pytest.approx(paper.load_ms)  # the neighbour loads nothing
    assert (shared.feedback_ms > paper.feedback_ms).all()


@pytest.mark.parametrize("field", ["max_power_w", "pcie_bytes_per_ms", "frequency_slope", "price_per_hour"])
def test_coefficients_of_a_gpu_are_checked(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}: got nan"):
        msgspec.structs.replace(GPU, **{field: float("nan")}).validate()


def test_catalogued_coefficients_are_valid() -> None:
    for gpu, models in V100_CATALOGUES.values():
        gpu.validate()
        for model in models.values():
            model.validate()


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(V100_CATALOGUES)),
    st.lists(st.tuples(st.sampled_from(MODELS), st.integers(1, 32), st.integers(4, 40)), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_laws_of_interference(name: str, loads: list[tuple[str, int, int]], random: Random) -> None:
    gpu, models = V100_CATALOGUES[name]

    def latency(chosen: list[tuple[str, int, int]]) -> np.ndarray:
        names, batch, steps = zip(*chosen, strict=True)
        share = [2.5 * step for step in steps]
        return np.asarray(predict(name, [models[model] for model in names], batch, share, gpu).latency_ms)

    result = latency(loads)
    order = random.sample(range(len(loads)), len(loads))
    assert latency([loads[place] for place in order]) == pytest.approx(result[order])
    assert (latency(loads[:-1] or loads) <= result[: len(loads) - 1 or 1] + 1e-9).all()
    assert np.isfinite(result).all()
    assert (result > 0).all()


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(MODELS), st.booleans())
def test_fitting_recovers_the_coefficients_of_exact_runs(model: str, row_term: bool) -> None:
    gpu, models = CALIBRATED if row_term else PAPER
    truth = models[model]
    fit = fit_model(synthetic_profile(truth, gpu), gpu, row_term=row_term)
    for field in ("k1", "k2", "k3", "k4", "k5", "k6", "alpha_cache", "alpha_power", "beta_power", "alpha_cacheutil"):
        assert getattr(fit.coefficients, field) == pytest.approx(getattr(truth, field), rel=1e-3, abs=1e-5), field
    assert fit.coefficients.relative_error < 1e-6


def synthetic_profile(truth: ModelCoefficients, gpu: GpuCoefficients) -> ModelProfile:
    active = [getattr(truth, f"k{place}") for place in range(1, 7)]
    runs = []
    for batch in (1, 16, 32):
        for share in (10, 50, 100):
            time_ms = float(active_time(active, np.array(batch), np.array(share)))
            ability = 1000 * batch / time_ms
            power = gpu.idle_power_w + truth.alpha_power * ability + truth.beta_power
            cache = truth.alpha_cacheutil * ability + truth.beta_cacheutil + 1
            runs.append(SoloRun(batch, share, time_ms + truth.scheduling_delay_ms, power, gpu.max_frequency_mhz, cache))
    contention = CacheContentionRun(2.0, 2.0 * (1 + truth.alpha_cache * 15), gpu.max_frequency_mhz, 15.0)
    return ModelProfile(
        truth.model, truth.kernels, truth.scheduling_delay_ms, truth.load_bytes, truth.feedback_bytes, tuple(runs),
        (contention,),
    )  # fmt: skip


def drop(profile: ModelProfile, keep: Callable[[SoloRun], bool]) -> ModelProfile:
    return msgspec.structs.replace(profile, solo=tuple(run for run in profile.solo if keep(run)))


def change_first(profile: ModelProfile, **changes: float) -> ModelProfile:
    first, *others = profile.solo
    return msgspec.structs.replace(profile, solo=(msgspec.structs.replace(first, **changes), *others))


PROFILE = synthetic_profile(PAPER.models["vgg19"], PAPER.gpu)
NO_CACHE = tuple(msgspec.structs.replace(run, cache_percent=None) for run in PROFILE.solo)


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (drop(PROFILE, lambda run: run.batch != 16), r"k1, k2 and k3: .*third batch size \(measured: 1, 32\)"),
        (drop(PROFILE, lambda run: run.share_percent != 50), r"k4 and k5: .*third share \(measured: 10, 100\)"),
        (drop(PROFILE, lambda run: run.batch == run.share_percent), r"k1, k2 and k3: .*measured: none"),
        (msgspec.structs.replace(PROFILE, contention=()), "alpha_cache: .*beside a copy"),
        (msgspec.structs.replace(PROFILE, solo=NO_CACHE), "alpha_cacheutil .*L2 utilisation"),
        (change_first(PROFILE, gpu_ms=float("nan")), "batch 1, share 10%: gpu_ms: got nan"),
        (change_first(PROFILE, gpu_ms=-3.0), "gpu_ms: got -3"),
        (change_first(PROFILE, share_percent=110.0), "share_percent: got 110, wanted at most 100"),
        (change_first(PROFILE, frequency_mhz=2000.0), "frequency_mhz: got 2000, wanted at most the maximum of 1530"),
        (change_first(PROFILE, gpu_ms=0.01), "wanted more than the scheduling delay"),
    ],
)
def test_a_profile_that_determines_too_little_names_the_missing_run(profile: ModelProfile, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        fit_model(profile, PAPER.gpu)


def test_a_diagonal_of_runs_does_not_determine_the_active_time() -> None:
    shares = {1: 10, 16: 50, 32: 100}
    with pytest.raises(ProfileError, match="k1 to k5"):
        fit_model(drop(PROFILE, lambda run: shares[run.batch] == run.share_percent), PAPER.gpu)


def gpu_runs(*runs: CopiesRun) -> GpuProfile:
    return GpuProfile("g", 300, 1530, 50, 1e7, runs)


ONE, TWO, THREE = CopiesRun(1, 150, 1530, 0.001), CopiesRun(2, 250, 1530, 0.003), CopiesRun(3, 300, 1480, 0.006)


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (gpu_runs(TWO, THREE), "alpha_sch and beta_sch: .*run of one copy"),
        (gpu_runs(ONE, TWO), "alpha_sch and beta_sch: .*runs of two and three copies"),
        (gpu_runs(ONE, TWO, msgspec.structs.replace(THREE, frequency_mhz=1530)), "alpha_f: .*exceed the power cap"),
        (gpu_runs(ONE, msgspec.structs.replace(TWO, power_w=float("inf"))), "run of 2 copies: power_w: got inf"),
    ],
)
def test_a_gpu_profile_that_determines_too_little_names_the_missing_run(profile: GpuProfile, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        fit_gpu(profile)


def test_the_power_demand_above_the_cap_continues_the_line_below_it() -> None:
    fit = fit_gpu(gpu_runs(ONE, TWO, THREE))
    assert fit.coefficients.frequency_slope == pytest.approx((1480 - 1530) / (350 - 300))


def test_a_clock_that_is_low_below_the_power_cap_is_not_throttled() -> None:
    slow = msgspec.structs.replace(TWO, frequency_mhz=1515)
    slopes = [fit_gpu(gpu_runs(ONE, two, THREE)).coefficients.frequency_slope for two in (TWO, slow)]
    assert slopes[0] == slopes[1]


def test_fixed_coefficients_need_no_runs() -> None:
    fixed = {"frequency_slope": -2.0, "scheduling_slope_ms": 0.001, "cache_scale": 1.3}
    fit = fit_gpu(gpu_runs(ONE, TWO), fixed)
    assert (fit.coefficients.frequency_slope, fit.coefficients.scheduling_slope_ms) == (-2.0, 0.001)
    assert fit.coefficients.cache_scale == 1.3
    assert fit.coefficients.scheduling_offset_ms == pytest.approx(0.003 - 0.001 - 2 * 0.001)
    assert set(fit.deviations) == {"scheduling_offset_ms"}
    alone = msgspec.structs.replace(drop(PROFILE, lambda run: run.share_percent != 50), contention=())
    truth = PAPER.models["vgg19"]
    model = fit_model(alone, PAPER.gpu, fixed={"k4": truth.k4, "alpha_cache": 0.5}).coefficients
    assert (model.k4, model.alpha_cache) == (truth.k4, 0.5)
    assert model.k2 == pytest.approx(truth.k2, rel=1e-3)


def test_a_fit_needs_a_coefficient() -> None:
    fixed = dict.fromkeys(("k1", "k2", "k3", "k4", "k5", "k6"), 1.0)
    with pytest.raises(ProfileError, match="vgg19: k1 to k5: got all of them fixed, wanted one to fit"):
        fit_model(PROFILE, PAPER.gpu, fixed=fixed)


def test_pairs_that_do_not_determine_a_coefficient_keep_it() -> None:
    run = PairRun(("alexnet", "alexnet"), (1, 2), (10, 10), (4.0, 5.0))
    arrays = pair_arrays([run], CALIBRATED.models)
    everything = ("scheduling_offset_ms", "cache_scale", "frequency_slope")
    assert fit_pairs(PCIE, CALIBRATED.gpu, arrays, fixed=everything).coefficients == CALIBRATED.gpu
    fit = fit_pairs(PCIE, CALIBRATED.gpu, arrays)
    assert fit.coefficients.frequency_slope == CALIBRATED.gpu.frequency_slope
    assert "frequency_slope" not in fit.deviations


def test_a_pair_of_an_unknown_model_is_an_error() -> None:
    run = PairRun(("bert", "alexnet"), (1, 2), (10, 10), (4.0, 5.0))
    with pytest.raises(ProfileError, match="got model 'bert'"):
        pair_arrays([run], CALIBRATED.models)
