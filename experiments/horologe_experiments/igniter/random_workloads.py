"""Random workloads of iGniter's four models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_planning.provisioning.workloads import Workload

if TYPE_CHECKING:
    import numpy as np

RATES = {"alexnet": 1200.0, "resnet50": 600.0, "vgg19": 400.0, "ssd": 300.0}
SLOS_MS = {"alexnet": 10.0, "resnet50": 20.0, "vgg19": 20.0, "ssd": 25.0}
"""Highest rate and shortest SLO of each model in Table 3."""


def random_workloads(rng: np.random.Generator, count: int) -> list[Workload]:
    """Return workloads with 0.05 to 1 times the highest rate and 1 to 2.2 times the shortest SLO of Table 3."""
    return [
        Workload(f"w{number}", model, rng.uniform(0.05, 1) * RATES[model], rng.uniform(1, 2.2) * SLOS_MS[model])
        for number, model in enumerate(rng.choice(sorted(RATES), count).tolist())
    ]
