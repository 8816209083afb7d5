"""First runs of models that failed on made-up inputs: real requests measure them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horologe_common.models import ModelSpec

ENOUGH = 5
"""Runs of one batch size after which a model is measured: as many as it takes at least on made-up inputs. The first is
slow, because the model has had no warm-up. The median does not count it."""


class FirstRuns:
    """EXEC times by model content and batch size, until there are enough of one size for a profile."""

    def __init__(self) -> None:
        self._times_ns: dict[tuple[str, str], dict[int, list[int]]] = {}

    def observe(self, spec: ModelSpec, batch_size: int, took_ns: int) -> dict[int, int] | None:
        """Add a successful EXEC. Return the times in ns by batch size if there are enough, None before."""
        content = spec.key, spec.content_hash
        times_ns = self._times_ns.setdefault(content, {})
        times_ns.setdefault(batch_size, []).append(took_ns)
        if len(times_ns[batch_size]) < ENOUGH:
            return None
        del self._times_ns[content]
        return _times_of_sizes(spec, {size: _median(times) for size, times in times_ns.items()})

    def discard(self, spec: ModelSpec) -> None:
        """Discard the times of a content that is not served any more."""
        self._times_ns.pop((spec.key, spec.content_hash), None)


def _times_of_sizes(spec: ModelSpec, measured_ns: dict[int, int]) -> dict[int, int]:
    """Return a time for every batch size. One that has not run takes as long per row as the next smaller one that has,
    or as long as the next larger one: no batch is taken to be faster than a larger one.
    """
    exec_ns: dict[int, int] = {}
    for size in spec.batch_sizes:
        smaller = max((known for known in measured_ns if known <= size), default=0)
        larger = min((known for known in measured_ns if known >= size), default=0)
        exec_ns[size] = measured_ns[smaller] * size // smaller if smaller else measured_ns[larger]
    return exec_ns


def _median(times_ns: list[int]) -> int:
    return sorted(times_ns)[len(times_ns) // 2]
