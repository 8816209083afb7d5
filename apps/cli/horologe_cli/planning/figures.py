"""Figures of `horologe plan make` and `horologe plan estimate`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from horologe_common.service.settings import SettingsError
from horologe_planning.provisioning.device_shares import shares_by_device

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

    from horologe_planning.plan import Plan
    from horologe_planning.search.evaluation import Configuration, Evaluator, Forecast


@contextmanager
def written_figure(path: Path, height: float) -> Iterator[Figure]:
    """Yield a figure of this height in inches, and write it.

    Raises SettingsError without matplotlib and for a file name without a known format.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SettingsError("matplotlib: not installed: pip install 'horologe[planner]'") from error
    figure = Figure(figsize=(9.2, height), layout="constrained")
    yield figure
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:
        raise SettingsError(f"--plot: {error}") from error


def draw_plan(path: Path, evaluator: Evaluator, configuration: Configuration, forecast: Forecast) -> None:
    """Write a figure: the distribution of the latencies with the SLO, and the cost of each stage."""
    with written_figure(path, 3.2) as figure:
        latency, cost = figure.subplots(1, 2)
        times_ms = np.sort(forecast.latencies_ns) / 1e6
        latency.plot(times_ms, 1 - np.arange(times_ms.size) / times_ms.size)
        latency.axvline(evaluator.objective.slo_ns / 1e6, color="tab:red", linestyle="--", label="SLO")
        latency.axhline(1 - evaluator.objective.attainment, color="gray", linestyle=":", label="misses permitted")
        latency.set(xlabel="latency (ms)", ylabel="queries that take longer", yscale="log")
        latency.legend()
        names = [f"{stage.stage}\n{stage.describe()}" for stage in configuration]
        cost.barh(names, [evaluator.price((stage,)) for stage in configuration])
        cost.invert_yaxis()
        cost.set(xlabel="dollars per hour")


def draw_shares(path: Path, plans: Sequence[Plan]) -> None:
    """Write a figure: the shares of each device, and each workload's predicted latency beside its limit."""
    devices = shares_by_device(plans)
    shares = [share for present in devices.values() for share in present]
    with written_figure(path, max(3.2, 0.25 * len(shares))) as figure:
        left, right = figure.subplots(1, 2)
        for device, present in devices.items():
            used = 0.0
            for place, share in enumerate(present):
                left.barh(device, share.placement.percent, left=used, color=f"C{place % 10}", edgecolor="white")
                left.text(used + 1, device, share.workload, va="center", fontsize=7)
                used += share.placement.percent
            left.barh(device, 100 - used, left=used, color="0.92")
        left.set(xlabel="share of the device (%)", xlim=(0, 100))
        names = [f"{number} {share.workload}" for number, share in enumerate(shares, start=1)]
        errors = [share.placement.deviation_ns / 1e6 for share in shares]
        right.barh(names, [share.latency_ms for share in shares], xerr=errors, height=0.6, label="predicted")
        limits = [share.limit_ms for share in shares]
        right.plot(limits, names, "|", color="tab:red", markersize=10, markeredgewidth=2, label="half of the SLO")
        right.plot([share.slo_ms for share in shares], names, "|", color="0.4", markersize=10, label="SLO")
        right.set(xlabel="ms", xlim=(0, None))
        right.legend(fontsize=7)
        for axes in (left, right):
            axes.invert_yaxis()
