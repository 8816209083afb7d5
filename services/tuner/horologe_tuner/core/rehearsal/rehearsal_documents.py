"""The documents of a rehearsal, in JSON: recent requests go in, and what each scheduler would have served comes out."""

from __future__ import annotations

import msgspec

from horologe_common.wire.tuning_messages import RequestTrace, SchedulingState, Setting

REHEARSAL_MODULE = "horologe_sim.rehearsal_process"
"""Module that reads a `RehearsalCall` from standard input and prints `RehearsalScores`, a line after each candidate."""


class Candidate(msgspec.Struct, frozen=True):
    """A scheduler, with settings of the controller that differ from the configured ones."""

    name: str
    scheduler: str
    settings: dict[str, Setting] = {}


class RehearsalCall(msgspec.Struct, frozen=True):
    """Play the requests of a trace under each candidate, in this order, within `cpu_s` seconds of CPU time."""

    trace: RequestTrace
    state: SchedulingState
    candidates: tuple[Candidate, ...]
    cpu_s: float
    seed: int = 0


class RehearsalScores(msgspec.Struct, frozen=True):
    """Requests with deadlines, by block of time: those sent, and those that each candidate answers in time.

    The first block is not in it: the queues are empty at its start.
    """

    sent: tuple[int, ...] = ()
    in_time: dict[str, tuple[int, ...]] = {}
    """By name of the candidate. Candidates for which there was no time are missing."""
    cpu_s: float = 0.0
    error: str = ""
