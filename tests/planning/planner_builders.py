"""Builders for test_planner.py and test_planner_inputs.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from horologe_common.clock import ms
from horologe_common.pipelines import PipelineStructure
from horologe_planning.catalogue import CASCADE, catalogue_profiles
from horologe_planning.estimator.pipeline_workload import PipelineTrace
from horologe_planning.hardware import DEFAULT_PRICES, parse_prices
from horologe_planning.search.evaluation import Evaluator
from horologe_planning.search.objective import Objective

PRICES = parse_prices(DEFAULT_PRICES)


def gamma_arrivals(rate: float, cv: float, seconds: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    gaps = rng.gamma(1 / cv, cv / rate, int(rate * seconds))
    return np.cumsum(gaps * 1e9).astype(np.int64)


def an_evaluator(
    structure: PipelineStructure = CASCADE, slo_ns: int = ms(150), rate: float = 100, cv: float = 1.0,
    seconds: float = 30, seed: int = 1, **fields: Any,
) -> Evaluator:  # fmt: skip
    objective = Objective(slo_ns, confidence=fields.pop("confidence", 0.0))
    workload = PipelineTrace(structure, gamma_arrivals(rate, cv, seconds, seed), seed)
    fields = {"profiles": catalogue_profiles(), "hardware": PRICES, **fields}
    return Evaluator(workload, objective=objective, **fields)
