"""The controller alone with pipelines: queries call stages in the order of their graph, through the real controller.

A stage starts when the visited parents have answered. Its deadline is the query's deadline minus the time that the rest
of the path needs. A query whose stage has no time left, or whose call is refused, is dropped there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horologe_common.wire import Infer
from horologe_sim.controller_only.controller_world import ControllerWorld
from horologe_sim.controller_only.request_load import STATIC
from horologe_sim.engine.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from horologe_common.pipelines import PipelineStructure
    from horologe_common.wire import Load, Result
    from horologe_sim.controller_only.controller_world import ClusterSettings
    from horologe_sim.controller_only.direct_device import DeviceEntry, DirectDevice
    from horologe_sim.controller_only.request_load import Open
    from horologe_sim.engine.simulated_device import SimModel


class OpenQuery:
    """A query in flight: unanswered calls and unfinished visited parents of each stage, and stages still to finish."""

    __slots__ = ("calls", "index", "parents", "stages")

    def __init__(self, index: int, calls: list[int], parents: list[int]) -> None:
        self.index = index
        self.calls = calls
        self.parents = parents
        self.stages = sum(map(bool, calls))


class PipelineQueries(NamedTuple):
    """Queries of a pipeline."""

    structure: PipelineStructure
    arrivals_ns: NDArray[np.int64]
    calls: NDArray[np.int16]
    """[query, stage]: calls of each query, 0 where it does not visit the stage."""
    rest_ns: Mapping[str, int]
    """Time that the path after each stage needs."""


class PipelineWorld(ControllerWorld):
    """Queries of one pipeline on devices. `models`: the model of each stage, for the names."""

    def __init__(
        self,
        setting: ClusterSettings,
        queries: PipelineQueries,
        models: Sequence[SimModel],
        devices: Sequence[DeviceEntry],
        seed: int,
    ) -> None:
        structure, arrivals_ns = queries.structure, queries.arrivals_ns
        names = [stage.name for stage in structure.stages]
        super().__init__(setting, models, Ledger(len(names)), seed, devices=devices)
        self.latency_ns = np.full(len(arrivals_ns), -1, np.int64)
        """Time from arrival to answer of each query; -1 while there is none."""
        self.device_ns = np.zeros(len(arrivals_ns))
        """Device time that each query has used."""
        self.dropped = dict.fromkeys(names, 0)
        """Queries by the stage where they were dropped."""
        self._names = names
        self._slo_ns = structure.slo_ns
        self._rest_ns = [queries.rest_ns[name] for name in names]
        self._parents = [[names.index(parent) for parent in stage.parents] for stage in structure.stages]
        self._children: list[list[int]] = [[] for _ in names]
        for child, parents in enumerate(self._parents):
            for parent in parents:
                self._children[parent].append(child)
        self._arrivals_ns = arrivals_ns
        self._calls = queries.calls
        self._in_flight: dict[int, tuple[OpenQuery, int]] = {}
        """Query and stage of each request."""
        if len(arrivals_ns):
            self._schedule_query(0)

    @property
    def attainment(self) -> float:
        """Share of queries answered within the SLO."""
        return float(((self.latency_ns >= 0) & (self.latency_ns <= self._slo_ns)).mean())

    def on_request_end(self, number: int, request: Open, end_ns: int, served: bool) -> None:
        """Continue the query of a call that was answered or refused."""
        query, stage = self._in_flight.pop(number)
        if not served:
            self._drop(query, stage)
            return
        query.calls[stage] -= 1
        if not query.calls[stage]:
            self.schedule(end_ns + self.setting.client_ns, self._on_stage_end, (query, stage))

    def _schedule_query(self, index: int) -> None:
        at_ns = self.begin_ns + int(self._arrivals_ns[index]) + self.setting.client_ns
        self.schedule(at_ns, self._on_query, index)

    def _on_query(self, now_ns: int, index: int) -> None:
        """Start the first stages of a query."""
        if index + 1 < len(self._arrivals_ns):
            self._schedule_query(index + 1)
        calls = self._calls[index].tolist()
        parents = [sum(calls[parent] > 0 for parent in of_stage) for of_stage in self._parents]
        query = OpenQuery(index, calls, parents)
        if not query.stages:
            self._answer(query, now_ns)
        for stage, count in enumerate(calls):
            if count and not parents[stage]:
                self._start_stage(now_ns, query, stage)

    def _on_stage_end(self, now_ns: int, ended: tuple[OpenQuery, int]) -> None:
        query, stage = ended
        query.stages -= 1
        if not query.stages:
            self._answer(query, now_ns)
        for child in self._children[stage]:
            if query.calls[child]:
                query.parents[child] -= 1
                if not query.parents[child]:
                    self._start_stage(now_ns, query, child)

    def _start_stage(self, now_ns: int, query: OpenQuery, stage: int) -> None:
        sent_ns = now_ns - self.begin_ns
        budget_ns = int(self._arrivals_ns[query.index]) + self._slo_ns - sent_ns - self._rest_ns[stage]
        if query.stages < 0 or budget_ns <= 0:
            self._drop(query, stage)
            return
        for _ in range(query.calls[stage]):
            number = self.submit(sent_ns, stage, budget_ns, stage, STATIC)
            self._in_flight[number] = query, stage

    def _answer(self, query: OpenQuery, now_ns: int) -> None:
        latency_ns = now_ns + self.setting.client_ns - self.begin_ns - int(self._arrivals_ns[query.index])
        self.latency_ns[query.index] = latency_ns

    def _drop(self, query: OpenQuery, stage: int) -> None:
        """End a query without an answer. Its other calls may still run, but no further stage starts."""
        if query.stages >= 0:
            self.dropped[self._names[stage]] += 1
            query.stages = -1

    def on_action_end(self, device: DirectDevice, action: Infer | Load, result: Result, promised_ns: int) -> None:
        """Charge the device time of a batch to its queries in equal parts."""
        if isinstance(action, Infer):
            for row in action.rows:
                if call := self._in_flight.get(row.submit_id):
                    self.device_ns[call[0].index] += result.device_ns / len(action.rows)
