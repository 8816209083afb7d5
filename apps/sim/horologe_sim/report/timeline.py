"""Writes every action of a run as a Chrome (Perfetto) trace, with predicted and actual times for each device.

Open the file at ui.perfetto.dev or chrome://tracing. Times are virtual times since the start of the load.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from horologe_common.core.hosting import CoreObserver
from horologe_common.core.protocol import instance
from horologe_common.status import Status
from horologe_common.wire import Infer, Load, Result
from horologe_controller.core.controller import Controller

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from horologe_common.core.protocol import Buffer, Core, Out

LIMIT = 200_000
LANES = {"infer": ("EXEC", 1), "load": ("LOAD", 3)}
"""Name and thread number of each lane. Predicted times have the next number."""


class Timeline(CoreObserver):
    """Observes a controller, and stores the first `LIMIT` actions."""

    def __init__(self, begin_ns: int) -> None:
        self.left_out = 0
        self._begin_ns = begin_ns
        self._planned: dict[int, tuple[str, str, int, int]] = {}
        self._events: list[dict[str, Any]] = []
        self._workers: dict[str, int] = {}

    def observe_message(self, now_ns: int, core: Core, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Store the actual times of the action that a Result reports."""
        if isinstance(message, Result) and isinstance(core, Controller):
            planned = self._planned.pop(message.action_id, None)
            if planned is not None:
                self._add_events(instance(sender), planned, message)

    def observe_tick(self, now_ns: int, core: Core, outs: Sequence[Out]) -> None:
        """Store the predicted times of the actions that the controller sends."""
        if not isinstance(core, Controller):
            return
        for out in outs:
            to, message = out.to, out.message
            if not isinstance(message, Infer | Load) or to not in core.cluster.workers:
                continue
            share = core.cluster.workers[to].shares[message.share]
            kind = "infer" if isinstance(message, Infer) else "load"
            action = (share.exec if kind == "infer" else share.load).pending.get(message.action_id)
            if action is not None:
                rows = f" x{len(message.rows)}" if isinstance(message, Infer) else ""
                label = f"{message.model.partition('/')[0]}{rows}"
                end_ns = action.promised_ns
                self._planned[message.action_id] = kind, label, end_ns - action.expected_ns, end_ns

    def write(self, path: Path) -> int:
        """Write the file and return the number of actions in it. Raises OSError."""
        path.write_text(json.dumps({"traceEvents": [*self._names(), *self._events], "displayTimeUnit": "ms"}))
        return len(self._events) // 2

    def _add_events(self, worker: str, planned: tuple[str, str, int, int], result: Result) -> None:
        if len(self._events) >= 2 * LIMIT:
            self.left_out += 1
            return
        kind, label, start_ns, end_ns = planned
        _, lane = LANES[kind]
        number = self._workers.setdefault(worker, len(self._workers) + 1)
        args = {
            "status": Status(result.status).name,
            "predicted_ms": (end_ns - start_ns) / 1e6,
            "actual_ms": (result.end_ns - result.begin_ns) / 1e6,
            "late_ms": (result.end_ns - end_ns) / 1e6,
        }
        event = {"name": label, "cat": kind, "ph": "X", "pid": number}
        for tid, begin, end in ((lane + 1, start_ns, end_ns), (lane, result.begin_ns, result.end_ns)):
            times = {"ts": (begin - self._begin_ns) / 1e3, "dur": (end - begin) / 1e3}
            self._events.append({**event, "tid": tid, **times, "args": args})

    def _names(self) -> list[dict[str, Any]]:
        """Return metadata events that name the processes and threads."""
        lanes = LANES.values()
        threads = [pair for name, number in lanes for pair in ((number, name), (number + 1, f"{name} predicted"))]
        names: list[dict[str, Any]] = []
        for worker, pid in self._workers.items():
            names.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": worker}})
            for tid, name in threads:
                names.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}})
        return names
