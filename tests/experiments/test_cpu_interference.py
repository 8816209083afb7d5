"""The interference model on a CPU: coefficients come back from times that follow the model."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from horologe_experiments.igniter.cpu_interference import Load, ProbeRuns, fit_cpu, predict_pair

SENSITIVITY = {"probe": 0.004, "mlp": 0.002, "cnn": 0.0005}
"""Growth of the time per percent of the neighbour's utilisation."""
BATCHES = (1, 4, 16)
PROBE_ALONE_MS = 20.0


def alone_ms(load: Load) -> float:
    return {"mlp": 0.5 + 0.2 * load.batch, "cnn": 1.0 + 2.0 * load.batch + 0.01 * load.batch**2}[load.model]


def percent(load: Load) -> float:
    ability = 1000 * load.batch / alone_ms(load)
    return {"mlp": 5 + 0.004 * ability, "cnn": 1 + 0.01 * ability}[load.model]


def beside_ms(load: Load, other_percent: float) -> float:
    return alone_ms(load) * (1 + SENSITIVITY[load.model] * other_percent)


def model_runs() -> ProbeRuns:
    loads = [Load(model, batch) for model in ("mlp", "cnn") for batch in BATCHES]
    probe_percent = 50.0
    probe_copy = PROBE_ALONE_MS * 1.5
    return ProbeRuns(
        {load: alone_ms(load) for load in loads},
        {load: beside_ms(load, probe_percent) for load in loads},
        PROBE_ALONE_MS,
        {load: PROBE_ALONE_MS * (1 + percent(load) / 100) for load in loads},
        probe_copy,
    )


def test_pairs_are_predicted_from_runs_beside_the_probe() -> None:
    coefficients = fit_cpu(model_runs())
    for first, second in combinations([Load(*load) for load in product(("mlp", "cnn"), BATCHES)], 2):
        growth = predict_pair(coefficients, (first, second))
        assert growth[0] == pytest.approx(1 + SENSITIVITY[first.model] * percent(second), rel=1e-6)
        assert growth[1] == pytest.approx(1 + SENSITIVITY[second.model] * percent(first), rel=1e-6)


def test_missing_runs_and_a_probe_that_disturbs_nothing_are_named() -> None:
    runs = model_runs()
    few = {load: time_ms for load, time_ms in runs.alone.items() if load != Load("cnn", 16)}
    with pytest.raises(ValueError, match="cnn: got 2 runs alone and 2 beside the probe, wanted at least 3 and 2"):
        fit_cpu(runs._replace(alone=few))
    with pytest.raises(ValueError, match=r"probe: got 0\.0% growth beside its copy"):
        fit_cpu(runs._replace(probe_copy=PROBE_ALONE_MS))
