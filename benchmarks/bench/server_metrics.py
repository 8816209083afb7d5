"""Measurements of running servers: resident memory over time, histograms in Prometheus' text format."""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bench.server_process import Server

_SAMPLE = re.compile(r"^(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_BUCKET = re.compile(r'^(\w+)_bucket\{(?:.*,)?le="([^"]+)".*\} (\S+)$', re.MULTILINE)


class MemoryWatch:
    """Context manager that samples the resident size of every process of a server from a thread."""

    def __init__(self, server: Server, every_s: float = 1.0) -> None:
        self._server, self._every_s = server, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.names: dict[int, str] = {}
        self.samples: dict[int, list[tuple[float, float]]] = {}
        """Process id -> (seconds, MB)."""

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        processes = self._server.processes()
        for process in processes:
            with contextlib.suppress(psutil.Error):
                self.names[process.pid] = " ".join(process.cmdline()[1:4])
        while not self._stop.wait(self._every_s):
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    sample = (time.monotonic(), process.memory_info().rss / 1e6)
                    self.samples.setdefault(process.pid, []).append(sample)

    def slopes(self) -> dict[str, float]:
        """Return MB per minute by `pid command`."""
        return {
            f"{pid} {self.names.get(pid, '')}".strip(): memory_slope(samples) for pid, samples in self.samples.items()
        }


def memory_slope(samples: list[tuple[float, float]]) -> float:
    """Return the least-squares slope of (seconds, MB) in MB per minute; 0 for fewer than two samples."""
    if len(samples) < 2:
        return 0.0
    seconds, size = np.array(samples).T
    return float(np.polyfit(seconds - seconds[0], size, 1)[0]) * 60


class PrometheusHistogram(msgspec.Struct, frozen=True):
    """Ascending bounds, and the number of observations up to each."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]

    @property
    def total(self) -> float:
        """Return the number of all observations."""
        return self.counts[-1] if self.counts else 0.0

    def since(self, before: PrometheusHistogram) -> PrometheusHistogram:
        """Return the observations made after `before` was read."""
        if not before.bounds:
            return self
        earlier = dict(zip(before.bounds, before.counts, strict=True))
        counts = [count - earlier.get(bound, 0.0) for bound, count in zip(self.bounds, self.counts, strict=True)]
        return PrometheusHistogram(self.bounds, tuple(counts))

    def quantile(self, share: float) -> float:
        """Return the upper bound of the bucket that holds the quantile, which is never too low; NaN if empty."""
        if not self.total:
            return math.nan
        pairs = zip(self.bounds, self.counts, strict=True)
        return next(bound for bound, count in pairs if count >= share * self.total)


def parse_histogram(pages: Iterable[str], name: str) -> PrometheusHistogram:
    """Return the histogram `name`, summed over all labels and all pages."""
    counts: dict[float, float] = {}
    for page in pages:
        for metric, bound, count in _BUCKET.findall(page):
            if metric == name:
                counts[float(bound)] = counts.get(float(bound), 0.0) + float(count)
    bounds = tuple(sorted(counts))
    return PrometheusHistogram(bounds, tuple(counts[bound] for bound in bounds))


def sum_by_label(pages: Iterable[str], name: str, label: str) -> dict[str, float]:
    """Return the values of the metric `name`, summed over all other labels and all pages, by value of `label`."""
    sums: dict[str, float] = {}
    for page in pages:
        for metric, labels, value in _SAMPLE.findall(page):
            if metric == name:
                key = dict(_LABEL.findall(labels)).get(label, "")
                sums[key] = sums.get(key, 0.0) + float(value)
    return sums
