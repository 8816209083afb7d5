"""iGniter's measurements on a V100, from the folder that HOROLOGE_IGNITER_DATA names.

The tables have no stated licence, so the repository does not contain them.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horologe_common.service.settings import SettingsError
from horologe_planning.interference.model_measurements import (
    CacheContentionRun,
    CopiesRun,
    GpuProfile,
    ModelProfile,
    PairRun,
    SoloRun,
)

MODELS = ("alexnet", "resnet50", "vgg19", "ssd")
VARIABLE = "HOROLOGE_IGNITER_DATA"


def data_folder() -> Path:
    """Return the folder of the tables. Raises SettingsError without one."""
    folder = Path(os.environ.get(VARIABLE, ""))
    if not (folder / "v100_profile.json").is_file():
        raise SettingsError(f"{VARIABLE}: got {str(folder)!r}, wanted the folder of iGniter's tables")
    return folder


def read_rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with (data_folder() / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_profile() -> dict[str, Any]:
    """Return the 11 runs of each model and those of the GPU type."""
    profile: dict[str, Any] = json.loads((data_folder() / "v100_profile.json").read_text(encoding="utf-8"))
    return profile


def gpu_profile() -> GpuProfile:
    """Return the runs of one to five copies of VGG-19."""
    hardware = read_profile()["hardware"]
    runs = zip(hardware["power"], hardware["frequency"], hardware["idletime"], strict=True)
    return GpuProfile(
        "v100", hardware["maxGPUpower"], hardware["maxGPUfrequency"], hardware["idlepower"], hardware["bandwidth"],
        tuple(CopiesRun(copies, *run) for copies, run in enumerate(runs, start=1)),
    )  # fmt: skip


def model_profile(model: str) -> ModelProfile:
    """Return the 11 runs of a model."""
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


def solo_points(model: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return batch size, share in percent and measured latency in ms of the runs alone."""
    rows = [row for row in read_rows("v100_solo_profile.csv") if row["model"] == model]
    batch, share, latency = (
        np.array([float(row[name]) for row in rows]) for name in ("batch", "gpu_pct", "latency_ms")
    )
    return batch, share, latency


def pairs() -> tuple[list[PairRun], NDArray[Any]]:
    """Return the measured pairs, and the latency of each side alone."""
    rows = read_rows("v100_pair_interference_half.csv")
    runs = [
        PairRun(
            (row["model1"], row["model2"]), (int(row["batch1"]), int(row["batch2"])),
            (float(row["gpu_pct1"]), float(row["gpu_pct2"])), (float(row["latency1_ms"]), float(row["latency2_ms"])),
        )
        for row in rows
    ]  # fmt: skip
    return runs, np.array([[float(row["solo_latency1_ms"]), float(row["solo_latency2_ms"])] for row in rows])


def utilisation(runs: list[PairRun]) -> NDArray[Any]:
    """Return own and neighbour's L2 and DRAM utilisation of each side of each pair, flattened."""
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
