"""L2 utilisation from the output of Nsight Compute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from horologe_gpu_worker.measurement.cache_counters import (
    DURATION,
    UTILISATION,
    CountersFailed,
    count_cache_use,
    interpolate_cache_use,
    parse_counters,
)
from horologe_gpu_worker.measurement.share_connection import ShareJob
from horologe_gpu_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

JOB = ShareJob("models/m/1", WorkerSettings(device="cuda:0"))
HEADER = '"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"'


def output(rows: Sequence[tuple[int, str, str]]) -> list[str]:
    lines = [f'"{kernel}","7","gemm","Profiler metrics","{name}","u","{value}"' for kernel, name, value in rows]
    return ["==PROF== Connected to process 7", HEADER, *lines, "==PROF== Disconnected from process 7"]


def test_utilisation_is_weighted_by_the_duration_of_each_kernel() -> None:
    rows = [(0, UTILISATION, "10.5"), (0, DURATION, "1,000,000"), (1, UTILISATION, "40"), (1, DURATION, "500000")]
    assert parse_counters(output(rows)) == pytest.approx(10.5 * 1 + 40 * 0.5)


@pytest.mark.parametrize("rows", [[], [(0, UTILISATION, "10")], [(0, UTILISATION, "1"), (0, "other", "2")]])
def test_kernels_without_both_metrics_are_an_error(rows: list[tuple[int, str, str]]) -> None:
    with pytest.raises(CountersFailed, match="wanted at least one, each with two metrics"):
        parse_counters(output(rows))


def a_program(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = folder / "ncu"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_the_program_of_nsight_compute_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(0, UTILISATION, "25"), (0, DURATION, "2000000")]
    lines = "\n".join(output(rows))
    a_program(tmp_path, monkeypatch, f"echo \"$@\" > {tmp_path}/arguments\nprintf '%s\\n' '{lines}'")
    assert count_cache_use(JOB, 16) == 50
    arguments = (tmp_path / "arguments").read_text()
    assert "--clock-control none" in arguments
    assert arguments.rstrip().endswith(" 16")


@pytest.mark.parametrize(
    ("script", "message"),
    [("echo no permission; exit 9", "exit code 9: no permission"), ("exit 0", "got 0 kernels")],
)
def test_counters_that_cannot_be_read_name_the_reason(
    script: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_program(tmp_path, monkeypatch, script)
    with pytest.raises(CountersFailed, match=message):
        count_cache_use(JOB, 1)


def test_without_nsight_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CountersFailed, match="ncu: not found"):
        count_cache_use(JOB, 1)


def test_other_batch_sizes_are_on_the_line() -> None:
    assert interpolate_cache_use([(1, 10.0), (33, 42.0)], (1, 16, 33)) == {1: 10, 16: 25, 33: 42}
