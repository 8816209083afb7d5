"""Models whose execution time depends on the input: what a profiler would publish about the requests of a file."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from horologe_common.distribution import Distribution
from horologe_controller.core.runtime_distributions import RuntimeDistributions, SoloDistribution

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from horologe_sim.comparison.request_file import FileRequest

RATIO = 1.25
"""Ratio of the longest to the shortest length of a range."""
LEAST_REQUESTS = 8
"""A range of lengths with fewer requests is merged with the next one."""


def learn_distributions(base_ns: int, requests: Iterable[FileRequest]) -> RuntimeDistributions:
    """Return the distributions of a model's execution times, by application and range of lengths."""
    by_application: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for request in requests:
        by_application[request.application].append((request.length, request.exec_ns))
    parts = [
        SoloDistribution(application, longest, Distribution.from_samples(times_ns), len(times_ns))
        for application, measured in by_application.items()
        for longest, times_ns in _by_length(sorted(measured))
    ]
    return RuntimeDistributions(base_ns, parts)


def _by_length(measured: Sequence[tuple[int, int]]) -> Iterator[tuple[int, list[int]]]:
    """Yield (longest length, execution times) for each range of lengths. `measured`: (length, time), ascending."""
    times_ns: list[int] = []
    first = measured[0][0]
    for place, (length, exec_ns) in enumerate(measured):
        left = len(measured) - place
        if length > RATIO * first and len(times_ns) >= LEAST_REQUESTS and left >= LEAST_REQUESTS:
            yield measured[place - 1][0], times_ns
            first, times_ns = length, []
        times_ns.append(exec_ns)
    yield measured[-1][0], times_ns
