"""Metrics of the process itself, under the names that all Prometheus client libraries use."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from horologe_common.core.instruments import Stats
from horologe_common.metrics.metric_definitions import METRICS


def process_stats(service: str) -> Stats:
    """Return version, CPU time, memory and file descriptors of this process."""
    from prometheus_client import ProcessCollector

    stats = Stats()
    stats.set("horologe_build_info", service, _package_version(), platform.python_version(), to=1)
    for family in ProcessCollector(registry=None).collect():
        for sample in family.samples:
            if sample.name in METRICS:
                stats.set(sample.name, to=sample.value)
    return stats


@cache
def _package_version() -> str:
    try:
        return version("horologe")
    except PackageNotFoundError:
        return "unknown"
