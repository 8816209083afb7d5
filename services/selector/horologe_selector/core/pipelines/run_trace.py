"""Trace of one query of a pipeline: its calls, their order and times, the longest paths through them."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

Stage: TypeAlias = "tuple[str, int]"
"""Model as the driver names it, and the line of the driver that calls it."""


class CallTrace(msgspec.Struct):
    """A call: its stage, the earlier calls whose results it may use, and its times in nanoseconds.

    `service_ns` is the part of its duration that is no queueing.
    """

    stage: Stage
    parents: tuple[int, ...]
    begin_ns: int
    end_ns: int = 0
    """0: it has no outputs, because it failed or the query ended before."""
    service_ns: int = 0


class RunTrace:
    """Calls of one run by number. Parents have smaller numbers."""

    def __init__(self, begin_ns: int) -> None:
        self.begin_ns = begin_ns
        self.calls: dict[int, CallTrace] = {}

    def begin_call(self, now_ns: int, call: int, stage: Stage, parents: tuple[int, ...]) -> None:
        """Add a call. Parents that are ancestors of other parents are left out."""
        ancestors: dict[int, bool] = {}
        pending = [parent for parent in parents if parent in self.calls]
        direct = tuple(pending)
        while pending:
            for ancestor in self.calls[pending.pop()].parents:
                if ancestor not in ancestors:
                    ancestors[ancestor] = True
                    pending.append(ancestor)
        self.calls[call] = CallTrace(stage, tuple(parent for parent in direct if parent not in ancestors), now_ns)

    def end_call(self, now_ns: int, call: int, service_ns: int) -> None:
        """Set the end of a call that got outputs."""
        trace = self.calls[call]
        trace.end_ns, trace.service_ns = now_ns, min(service_ns, now_ns - trace.begin_ns)

    def remaining_ns(self, end_ns: int) -> dict[int, int]:
        """Return for each call with outputs the longest path from its end to the end of the run, at `end_ns`.

        The path is the sum of the service times of the calls on it, and of the driver's own time before each. Queueing
        does not count: with it, the first stages would get earlier deadlines than the last ones, and on shared devices
        take the time of queries that are nearly done.
        """
        remaining: dict[int, int] = {}
        ends = [call.end_ns for call in self.calls.values() if call.end_ns]
        tail_ns = end_ns - max(ends, default=end_ns)
        for number in reversed(self.calls):
            call = self.calls[number]
            if not call.end_ns:
                continue
            after_ns = remaining.setdefault(number, tail_ns)
            ready_ns = max((self.calls[parent].end_ns for parent in call.parents), default=self.begin_ns)
            path_ns = after_ns + call.service_ns + call.begin_ns - ready_ns
            for parent in call.parents:
                remaining[parent] = max(remaining.get(parent, 0), path_ns)
        return remaining

    def critical_path(self) -> tuple[int, ...]:
        """Return the calls that determined the duration of the run, the last one first."""
        done = {number: call for number, call in self.calls.items() if call.end_ns}
        path: list[int] = []
        candidates = tuple(done)
        while candidates:
            path.append(max(candidates, key=lambda number: (done[number].end_ns, number)))
            candidates = tuple(parent for parent in done[path[-1]].parents if parent in done)
        return tuple(path)

    def shape(self) -> tuple[tuple[Stage, int, tuple[Stage, ...]], ...]:
        """Return (stage, calls, stages of its parents) for each stage, in the order of first calls."""
        counts: dict[Stage, int] = {}
        parents: dict[Stage, dict[Stage, bool]] = {}
        for call in self.calls.values():
            counts[call.stage] = counts.get(call.stage, 0) + 1
            own = parents.setdefault(call.stage, {})
            for parent in call.parents:
                if (stage := self.calls[parent].stage) != call.stage:
                    own[stage] = True
        return tuple((stage, count, tuple(sorted(parents[stage]))) for stage, count in counts.items())
