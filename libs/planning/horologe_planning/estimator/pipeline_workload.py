"""Workload of a pipeline: a trace of arrivals with the drawn calls of each query to each stage."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from horologe_common.pipelines import PipelineStructure

CALLS_LIMIT = 10_000
"""Calls of one query to one stage."""
QUERIES_LIMIT = 1 << 31


def draw_calls(structure: PipelineStructure, queries: int, seed: int = 0) -> NDArray[np.int16]:
    """Return the calls of each query to each stage, (queries, stages). 0: the query does not visit the stage.

    A visit has the whole part of the mean fan-out as calls, and one more with the probability of the rest.
    """
    rng = np.random.default_rng(seed)
    places = {stage.name: place for place, stage in enumerate(structure.stages)}
    calls = np.zeros((queries, len(places)), np.int16)
    for place, stage in enumerate(structure.stages):
        visited, more = rng.random(queries) < stage.visits, rng.random(queries)
        if stage.parents:
            visited &= (calls[:, [places[parent] for parent in stage.parents]] > 0).any(axis=1)
        whole = int(stage.fan_out)
        calls[:, place] = np.where(visited, whole + (more < stage.fan_out - whole), 0)
    return calls


class PipelineTrace:
    """A trace with the drawn calls of its queries: what all configurations of a pipeline are compared on."""

    def __init__(
        self, structure: PipelineStructure, arrivals_ns: ArrayLike, seed: int = 0, calls: ArrayLike | None = None
    ) -> None:
        """Raise ValueError for an invalid structure, and for a trace that is empty, negative or not in order.

        `calls` (queries, stages) replaces the drawn calls, for example by those of recorded queries.
        """
        structure.validate()
        for number, stage in enumerate(structure.stages):
            if stage.fan_out > CALLS_LIMIT:
                raise ValueError(f"stages[{number}].fan_out: got {stage.fan_out}, wanted at most {CALLS_LIMIT}")
        self.structure, self.seed = structure, seed
        self.arrivals_ns = check_arrivals(arrivals_ns)
        count = self.arrivals_ns.size
        self.calls = draw_calls(structure, count, seed) if calls is None else np.array(calls, np.int16)
        if self.calls.shape != (count, len(structure.stages)):
            raise ValueError(f"calls: got shape {self.calls.shape}, wanted {(count, len(structure.stages))}")
        visited = self.calls > 0
        places = {stage.name: place for place, stage in enumerate(structure.stages)}
        parents = [[places[parent] for parent in stage.parents] for stage in structure.stages]
        self.parents = np.stack([visited[:, above].sum(axis=1) for above in parents], axis=1).astype(np.int16)
        self.open_stages = visited.sum(axis=1).astype(np.int16)
        children = [[child for child, above in enumerate(parents) if place in above] for place in range(len(parents))]
        self.first_child = np.cumsum([0, *map(len, children)])
        self.children = np.array([child for below in children for child in below], np.int64)
        self.queue_starts = np.cumsum([0, *self.calls.sum(axis=0, dtype=np.int64)])

    def at_rate(self, factor: float) -> PipelineTrace:
        """Return the same queries, `factor` times as fast."""
        faster = copy.copy(self)
        faster.arrivals_ns = (self.arrivals_ns / factor).astype(np.int64)
        return faster

    @property
    def rate(self) -> float:
        """Mean queries per second."""
        span_ns = int(self.arrivals_ns[-1] - self.arrivals_ns[0])
        return (self.arrivals_ns.size - 1) * 1e9 / span_ns if span_ns else float(self.arrivals_ns.size)


def check_arrivals(arrivals_ns: ArrayLike) -> NDArray[np.int64]:
    """Return the trace as int64 (queries,). Raise ValueError if it is empty, negative or not in order."""
    arrivals = np.ascontiguousarray(arrivals_ns, np.int64)
    if arrivals.ndim != 1 or not 0 < arrivals.size < QUERIES_LIMIT:
        raise ValueError(f"arrivals_ns: got shape {arrivals.shape}, wanted (queries,) with at least one")
    if arrivals[0] < 0:
        raise ValueError(f"arrivals_ns: got {arrivals[0]}, wanted at least 0")
    if (falls := np.flatnonzero(np.diff(arrivals) < 0)).size:
        place = int(falls[0])
        raise ValueError(f"arrivals_ns: got {arrivals[place + 1]} after {arrivals[place]}, wanted them in order")
    return arrivals
