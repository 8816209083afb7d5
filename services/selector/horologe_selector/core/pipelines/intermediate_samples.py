"""Samples of the inputs of calls for the profiler, which measures models on what pipelines send them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.protocol import Out
from horologe_common.wire import Sample

if TYPE_CHECKING:
    from horologe_common.core.staging import StagedInputs
    from horologe_common.wire import Query

BYTES_LIMIT = 1 << 20
"""Larger inputs are not sampled."""
PAIRS_MAX = 1024
"""Pairs of model and pipeline with a rate limit. Beyond it, all limits start again."""


class IntermediateSampler:
    """Rate limit of samples: one per `interval_ns` for each pair of model and pipeline.

    `profiler`: its address, empty if none is connected.
    """

    def __init__(self, staging: StagedInputs, interval_ns: int) -> None:
        self.profiler = ""
        self._staging = staging
        self._interval_ns = interval_ns
        self._next_ns: dict[tuple[str, str], int] = {}

    def sample_call(self, now_ns: int, query: Query) -> Out | None:
        """Return the staged inputs of a finished call as a Sample, if the limit allows."""
        pair = query.model, query.application
        if not self.profiler or not self._interval_ns or now_ns < self._next_ns.get(pair, 0):
            return None
        staged = self._staging.inputs_of(query.id)
        if staged is None or sum(map(len, staged[1])) > BYTES_LIMIT:
            return None
        if len(self._next_ns) >= PAIRS_MAX:
            self._next_ns.clear()
        self._next_ns[pair] = now_ns + self._interval_ns
        sample = Sample(query.model, staged[0], query.rows, query.length, query.application)
        return Out(self.profiler, sample, staged[1])
