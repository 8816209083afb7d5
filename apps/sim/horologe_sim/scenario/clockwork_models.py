"""The 64 models of Clockwork's appendix A, with the execution times of a V100."""

from __future__ import annotations

import csv
from importlib import resources

from horologe_sim.scenario.scenario import ModelEntry

SIZES = (1, 2, 4, 8, 16)
PAGES = 1407
"""Number of 16 MiB pages per device: 201 models like ResNet-50 with 7 pages each (Clockwork section 6.2)."""


def read_catalogue() -> dict[str, ModelEntry]:
    """Return the models by name."""
    text = resources.files("horologe_sim").joinpath("data", "clockwork_models.csv").read_text()
    return {
        row["model"]: ModelEntry(
            row["model"],
            {size: float(row[f"exec_b{size}_ms"]) for size in SIZES},
            load_ms=float(row["transfer_ms"]),
            weights_mb=float(row["weights_MB"]),
        )
        for row in csv.DictReader(text.splitlines())
    }
