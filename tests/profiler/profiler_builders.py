"""A profiler with a controller, and the messages that sample and finish runs."""

from __future__ import annotations

from typing import Any

from harness.builders import a_spec, a_state, a_tensor, sent, some_bytes
from horologe_common.core.protocol import PeerConnected
from horologe_common.models import ModelSpec
from horologe_common.status import Status
from horologe_common.wire import Models, Outputs, RowStatus, Sample, Submit, Tensor
from horologe_profiler.core.profiler import Profiler
from horologe_profiler.core.profiling_rules import ProfilingRules
from horologe_profiler.settings import ProfilerSettings

FRONTEND, CONTROLLER, WORKER = "frontend/0#1", "controller/0#1", "worker/0#1"


def a_profiler(*specs: ModelSpec, comparison_interval_ns: int = 0, **fields: Any) -> Profiler:
    """Return a profiler with a connected controller and one model. `fields`: of its settings and of its rules."""
    own = {name: fields.pop(name) for name in ProfilerSettings.__struct_fields__ if name in fields}
    settings = ProfilerSettings(**({"busy_share": 0.5, "initial_time_ns": 0} | own))
    rules = ProfilingRules(comparison_interval_ns=comparison_interval_ns, **fields)
    profiler = Profiler("profiler/0#1", settings, rules)
    for address in (FRONTEND, CONTROLLER, WORKER):
        profiler.handle(0, address, PeerConnected(address), ())
    announce(profiler, *(specs or (a_spec(batch_sizes=(1,)),)))
    return profiler


def announce(profiler: Profiler, *specs: ModelSpec) -> None:
    profiler.handle(0, CONTROLLER, Models(0, tuple(a_state(spec) for spec in specs)), ())
    profiler.tick(0)


def sample(profiler: Profiler, now_ns: int = 0, rows: int = 1, length: int = 0, **fields: Any) -> None:
    message = Sample(fields.get("model", "sum/1"), (a_tensor(rows),), rows, length, fields.get("application", "chat"))
    profiler.handle(now_ns, FRONTEND, message, [fields.get("data", some_bytes(rows))])
    profiler.tick(now_ns)
    profiler.check()


def finish_run(
    profiler: Profiler, submit: Submit, now_ns: int, took_ns: int, status: int = Status.OK, slowness: float = 1.0
) -> None:
    rows = (RowStatus(submit.id, submit.rows, int(status)),)
    outputs = Outputs(1, rows, (), submit.model, submit.rows, now_ns - took_ns, now_ns, slowness=slowness)
    profiler.handle(now_ns, WORKER, outputs, ())
    profiler.tick(now_ns)
    profiler.check()


def staged_row(profiler: Profiler, submit: Submit) -> tuple[tuple[Tensor, ...], list[bytes]]:
    """Return headers and bytes of the inputs of a run."""
    held = profiler.staging.inputs_of(submit.input_id)
    assert held is not None
    return held[0], [bytes(buffer) for buffer in held[1]]


def run_sample(profiler: Profiler, now_ns: int, took_ns: int, **fields: Any) -> int:
    """Run one sample alone at once. Returns the time from which the next run may start."""
    sample(profiler, now_ns, **fields)
    (submit,) = sent(profiler, Submit)
    finish_run(profiler, submit, now_ns + took_ns, took_ns)
    return now_ns + 2 * took_ns


def published_distributions(profiler: Profiler, took_ns: int, count: int = 20, now_ns: int = 0) -> int:
    for _ in range(count):
        now_ns = run_sample(profiler, now_ns, took_ns)
    return now_ns
