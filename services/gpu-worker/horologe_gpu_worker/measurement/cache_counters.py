"""L2 utilisation of a model's kernels on a GPU, from hardware counters that Nsight Compute (`ncu`) reads.

    python -m horologe_gpu_worker.measurement.cache_counters JOB BATCH

is the program that `ncu` profiles: it opens the model and runs one batch between the calls that start and stop the
profiler. `ncu` runs each kernel alone and in isolation, so its times are not those of a run.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec

from horologe_common.service.processes import start_patiently
from horologe_gpu_worker.measurement.share_connection import ShareJob

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

UTILISATION, DURATION = "lts__t_sectors.avg.pct_of_peak_sustained_elapsed", "gpu__time_duration.sum"
OPTIONS = (
    "--csv", "--print-units", "base", "--metrics", f"{UTILISATION},{DURATION}", "--clock-control", "none",
    "--graph-profiling", "node", "--profile-from-start", "off",
)  # fmt: skip
"""`--clock-control none`: leave the GPU's clocks as they are."""
WITHOUT_MPS = {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}
"""`ncu` cannot profile a client of an MPS server. A program that finds no pipes runs without one."""
TIMEOUT_S = 300.0


class CountersFailed(Exception):
    """`ncu` is not there, may not read counters, or printed none."""


def count_cache_use(job: ShareJob, batch: int) -> float:
    """Return the sum over a batch's kernels of L2 utilisation times duration, in percent times ms.

    Over the active time of the batch on a share, it is the L2 utilisation c. Raises CountersFailed.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        raise CountersFailed("ncu: not found")
    profiled = [sys.executable, "-m", __name__, msgspec.json.encode(job).decode(), str(batch)]
    try:
        done = start_patiently(
            "ncu",
            lambda: subprocess.run(
                [ncu, *OPTIONS, *profiled],
                env={**os.environ, **WITHOUT_MPS},
                capture_output=True,
                text=True,
                check=False,
                timeout=TIMEOUT_S,
            ),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CountersFailed(f"ncu: {error}") from error
    if done.returncode:
        last = next(reversed((done.stdout + done.stderr).strip().splitlines()), "no output")
        raise CountersFailed(f"ncu: exit code {done.returncode}: {last}")
    return parse_counters(done.stdout.splitlines())


def parse_counters(lines: Iterable[str]) -> float:
    """Return the sum of utilisation times duration in percent times ms, from the CSV that `ncu` prints.

    Raises CountersFailed if a kernel lacks a metric.
    """
    table = csv.DictReader(line for line in lines if line.startswith('"'))
    kernels: dict[str, dict[str, float]] = {}
    for row in table:
        value = float(row["Metric Value"].replace(",", ""))
        kernels.setdefault(row["ID"], {})[row["Metric Name"]] = value
    if not kernels or any(set(metrics) != {UTILISATION, DURATION} for metrics in kernels.values()):
        raise CountersFailed(f"ncu: got {len(kernels)} kernels, wanted at least one, each with two metrics")
    return sum(metrics[UTILISATION] * metrics[DURATION] / 1e6 for metrics in kernels.values())


def interpolate_cache_use(measured: Sequence[tuple[int, float]], batches: Iterable[int]) -> dict[int, float]:
    """Return the use at each batch size on the line through two measured ones: a batch reads its weights once."""
    (low, first), (high, last) = measured
    return {batch: first + (last - first) * (batch - low) / (high - low) for batch in batches}


def main(arguments: list[str]) -> int:
    """Run one batch of JOB between the start and the stop of the profiler."""
    import torch

    from horologe_gpu_worker.measurement.share_runner import ShareRunner

    runner = ShareRunner(msgspec.json.decode(arguments[0], type=ShareJob))
    runner.open()
    runner.begin(int(arguments[1]))
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    runner.run_next()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()
    runner.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
