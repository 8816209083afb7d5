"""iGniter's measurements on a V100, from the folder that HOROLOGE_IGNITER_DATA names. Tests that need it skip without.

The tables have no stated licence, so the repository does not contain them.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from horologe_tuner.core.interference.measurements import (
    CacheContentionRun,
    CopiesRun,
    GpuProfile,
    ModelProfile,
    PairRun,
    SoloRun,
)

MODELS = ("alexnet", "resnet50", "vgg19", "ssd")
_FOLDER = Path(os.environ.get("HOROLOGE_IGNITER_DATA", Path(__file__).resolve().parents[2] / "shared/data/igniter"))
needs_measurements = pytest.mark.skipif(
    not _FOLDER.is_dir(), reason="HOROLOGE_IGNITER_DATA names no folder with iGniter's tables"
)


def read_rows(name: str) -> list[dict[str, str]]:
    with (_FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_profile() -> dict[str, Any]:
    profile: dict[str, Any] = json.loads((_FOLDER / "v100_profile.json").read_text(encoding="utf-8"))
    return profile


def gpu_profile() -> GpuProfile:
    hardware = read_profile()["hardware"]
    runs = zip(hardware["power"], hardware["frequency"], hardware["idletime"], strict=True)
    return GpuProfile(
        "v100", hardware["maxGPUpower"], hardware["maxGPUfrequency"], hardware["idlepower"], hardware["bandwidth"],
        tuple(CopiesRun(copies, *run) for copies, run in enumerate(runs, start=1)),
    )  # fmt: skip


def model_profile(model: str) -> ModelProfile:
    table = read_profile()[model]
    solo = tuple(
        SoloRun(batch, share, table["gpulatency"][row][column], table["power"][row][column],
                table["frequency"][row][column], table["l2caches"][row] if row == column else None)
        for row, batch in enumerate((1, 16, 32))
        for column, share in enumerate((10, 50, 100))
    )  # fmt: skip
    contention = CacheContentionRun(
        table["activetime_1"], table["activetime_2"], table["frequency_2"], table["l2cache"]
    )
    return ModelProfile(
        model, table["kernel"], table["idletime_1"], table["inputdata"], table["outputdata"], solo, (contention,)
    )


def pairs() -> tuple[list[PairRun], np.ndarray]:
    """The measured pairs, and the latency of each side alone."""
    rows = read_rows("v100_pair_interference_half.csv")
    runs = [
        PairRun(
            (row["model1"], row["model2"]), (int(row["batch1"]), int(row["batch2"])),
            (float(row["gpu_pct1"]), float(row["gpu_pct2"])), (float(row["latency1_ms"]), float(row["latency2_ms"])),
        )
        for row in rows
    ]  # fmt: skip
    return runs, np.array([[float(row["solo_latency1_ms"]), float(row["solo_latency2_ms"])] for row in rows])


def utilisation(runs: list[PairRun]) -> np.ndarray:
    """Own and neighbour's L2 and DRAM utilisation of each side of each pair, flattened."""
    measured = {
        (row["model"], int(row["batch"]), float(row["gpu_pct"])): (row["l2_util_pct"], row["dram_util_pct"])
        for row in read_rows("v100_solo_profile.csv")
    }
    rows = []
    for run in runs:
        sides = [measured[run.models[side], run.batch[side], run.share_percent[side]] for side in (0, 1)]
        for own, other in (sides, sides[::-1]):
            rows.append([float(own[0]), float(other[0]), float(own[1]), float(other[1])])
    return np.array(rows)
