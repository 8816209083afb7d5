"""Plays recent requests under several schedulers, with the controller alone, for the tuner.

    python -m horologe_sim.rehearsal_process < call.json

Reads a `RehearsalCall`, and prints `RehearsalScores` after each candidate, as a line of JSON. It runs with the lowest
priority and ends before its limit of CPU time.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_common.clock import ms, s
from horologe_controller.core.runtime_distributions import RuntimeDistributions, store_distributions
from horologe_controller.settings import ControllerSettings
from horologe_sim.controller_only.controller_world import ClusterSettings, ControllerWorld
from horologe_sim.controller_only.direct_device import DeviceEntry
from horologe_sim.controller_only.request_load import STATIC, Chunk, DynamicRequest
from horologe_sim.engine.ledger import Ledger
from horologe_sim.engine.simulated_device import SimModel
from horologe_tuner.core.rehearsal.rehearsal_documents import RehearsalCall, RehearsalScores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from horologe_common.wire import TracedRequest
    from horologe_tuner.core.rehearsal.rehearsal_documents import Candidate

BLOCKS = 20
"""Blocks of time. The first one does not count."""
GRACE_NS = ms(500)
LOWEST_PRIORITY = 19
HARD_PART = 2
"""The kernel ends the process at this multiple of its limit, if a single candidate takes that long."""


def rehearse(call: RehearsalCall, spent_s: Callable[[], float]) -> Iterator[RehearsalScores]:
    """Yield the scores after each candidate, until `spent_s` has reached the limit of CPU time. Deterministic else.

    Raises ValueError if the call has no requests, models or shares.
    """
    if not (call.trace.requests and call.state.models and call.state.shares):
        raise ValueError("call: got no requests, models or shares, wanted some of each")
    stage = _Stage(call)
    in_time: dict[str, tuple[int, ...]] = {}
    for candidate in call.candidates:
        if in_time and spent_s() >= call.cpu_s:
            break
        counts = stage.play(candidate)
        in_time[candidate.name] = tuple(counts[1, 1:BLOCKS].tolist())
        yield RehearsalScores(tuple(counts[0, 1:BLOCKS].tolist()), dict(in_time), round(spent_s(), 3))


class _Stage:
    """The models, shares and requests of a call, the same for all candidates."""

    def __init__(self, call: RehearsalCall) -> None:
        state, trace = call.state, call.trace
        self._seed = call.seed
        self._settings = msgspec.convert(state.settings, ControllerSettings)
        self._known: dict[str, RuntimeDistributions] = {}
        for model in state.models:
            if model.distributions is not None:
                store_distributions(self._known, model.distributions)
        self._models = [
            SimModel(model.report, base_ns=max(1, self._known[key].base_ns) if key in self._known else 0)
            for model in state.models
            for key in (model.report.spec.key,)
        ]
        keys = [model.report.spec.key for model in self._models]
        self._devices = [
            DeviceEntry(
                [self._models[place] for place in share.models] or self._models,
                share.factor,
                share.pages,
                [keys[place] for place in share.resident],
            )
            for share in state.shares
        ]
        loads_ns = sum(model.report.profile.load_ns for model in self._models if model.report.profile)
        self._cluster = ClusterSettings(
            devices=len(state.shares),
            settle_ns=s(1) + int(1.2 * loads_ns),
            worker_ns=(state.dispatch_ns + state.return_ns) // 2,
            grace_ns=GRACE_NS,
        )
        self._chunk, self._span_ns = self._read_requests(trace.requests)

    def play(self, candidate: Candidate) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """Return `Ledger.table` by block, best effort last."""
        controller = self._settings.with_scheduler(candidate.scheduler, candidate.settings)
        ledger = Ledger(BLOCKS + 1)
        cluster = msgspec.structs.replace(self._cluster, controller=controller)
        world = ControllerWorld(cluster, self._models, ledger, self._seed, [self._chunk], self._devices)
        world.controller.cluster.distributions.update(self._known)
        world.run(self._span_ns)
        return ledger.table()

    def _read_requests(self, requests: tuple[TracedRequest, ...]) -> tuple[Chunk, int]:
        """Return the requests, and the time that they take. Groups are blocks of equal time."""
        first_ns = requests[0].arrival_ns
        span_ns = requests[-1].arrival_ns - first_ns + 1
        rng = np.random.default_rng(self._seed)
        times_ns, models, slos_ns, groups, inputs = [], [], [], [], []
        for request in requests:
            at_ns = request.arrival_ns - first_ns
            times_ns.append(at_ns)
            models.append(request.model)
            slos_ns.append(0 if request.best_effort else request.budget_ns + self._cluster.client_ns)
            groups.append(BLOCKS if request.best_effort else at_ns * BLOCKS // span_ns)
            inputs.append(self._draw_input(request, rng))
        return Chunk(times_ns, models, slos_ns, groups, inputs), span_ns

    def _draw_input(self, request: TracedRequest, rng: np.random.Generator) -> DynamicRequest:
        """Return the request's input. A dynamic model's time alone is drawn from the distribution of its kind."""
        known = self._known.get(self._models[request.model].report.spec.key)
        if known is None:
            return STATIC._replace(rows=request.rows)
        part = known.parts[known.kind_of(request.application, request.length)]
        solo_ns = max(1, round(part.solo.quantile_ns(rng.random())))
        return DynamicRequest(solo_ns, request.application, request.length, request.rows)


def main() -> None:
    os.nice(LOWEST_PRIORITY)
    try:
        call = msgspec.json.decode(sys.stdin.buffer.read(), type=RehearsalCall)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise SystemExit(f"rehearsal: {error}") from error
    limit_s = int(HARD_PART * call.cpu_s + time.process_time()) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    for scores in rehearse(call, time.process_time):  # imports included
        sys.stdout.buffer.write(msgspec.json.encode(scores) + b"\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
