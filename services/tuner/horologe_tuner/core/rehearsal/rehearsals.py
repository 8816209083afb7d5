"""Rehearsals of one controller: collect requests, have them played under each scheduler, choose, wait.

RequestTrace -> window -> DescribeScheduling -> SchedulingState -> RehearsalCall (to the process) -> RehearsalScores ->
UseScheduler. One rehearsal runs at a time, and the next one waits until they have had their share of a core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.clock import s
from horologe_common.core.message_checks import INVALID_MESSAGES
from horologe_common.core.protocol import Out
from horologe_common.wire import DescribeScheduling, RequestTrace, SchedulingState, UseScheduler
from horologe_tuner.core.controller_checks import valid_requests
from horologe_tuner.core.rehearsal.comparison import choose_candidate, range_served, share_served
from horologe_tuner.core.rehearsal.recent_traffic import ServedRecord, TrafficWindow
from horologe_tuner.core.rehearsal.rehearsal_documents import Candidate, RehearsalCall, RehearsalScores

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horologe_common.core.instruments import Stats
    from horologe_common.wire import Events
    from horologe_common.wire.tuning_messages import Setting
    from horologe_tuner.core.journal import Note
    from horologe_tuner.settings import TunerSettings

DEFAULT = Candidate("horologe", "horologe")
OTHERS = ("orloj", "clockwork", "edf", "nexus", "deferred")
VARIANTS: dict[str, dict[str, Setting]] = {
    "horologe, deadlines": {"policy": {"advance": 0.5}},
    "horologe, value": {"policy": {"advance": 8.0}},
    "horologe, no admission": {"admission": False},
}
"""Settings of the default that are played too: more like the order of deadlines, more like that of the value of a
batch, and without refusals on arrival."""
CANDIDATES = (
    DEFAULT,
    *(Candidate(name, name) for name in OTHERS),
    *(Candidate(name, DEFAULT.scheduler, settings) for name, settings in VARIANTS.items()),
)
WINDOW, MOST_REQUESTS = 6, 5_000
"""Intervals whose requests are played, and the most requests: 5,000 under seven schedulers take about 6 s of CPU."""
LEAST_REQUESTS = 200
"""Requests without which nothing is compared. The fewer there are, the larger a gain must be to be clear."""
NEW_REQUESTS = 100
"""Requests that must have arrived since the rehearsal before. To play the same ones again, with other random numbers,
until another scheduler seems better would be a change by chance."""
WATCHED_REQUESTS = 200
WATCHED_PART = 0.05
"""The traffic is of another kind if, of this many requests, a part is in time that is this much smaller or larger than
in any block of the last rehearsal. The earlier requests are then discarded. If it is smaller, the default is used."""
MISMATCH = 0.1
"""Without confidence in the replay there is no change to another scheduler: if the part that the controller has served
differs by more than this from what the scheduler in use serves in the replay of the same time."""
RESULTS = ("kept", "changed", "failed")
ANSWER_NS = s(10)
"""Time after which a controller that has not described its scheduling is asked again."""


class RehearsalStatus(msgspec.Struct, frozen=True):
    """State of the rehearsals for operators."""

    scheduler: str
    """Candidate in use."""
    served: dict[str, float]
    """Share of the requests of the last rehearsal that each candidate would have answered in time."""
    requests: int
    """Requests of the last rehearsal."""
    error: str = ""


class Rehearsals:
    """`process`: address that RehearsalCalls are sent to; empty if no simulator is installed."""

    def __init__(self, settings: TunerSettings, process: str, stats: Stats, note: Note) -> None:
        self._settings = settings
        self._process = process
        self._stats = stats
        self._note = note
        self._window = TrafficWindow(WINDOW * settings.rehearsal_interval_ns, MOST_REQUESTS)
        self._controller = ""
        self._due_ns = 0
        self._running = False
        self._number = self._arrived = 0
        self._current = DEFAULT
        self._scores = RehearsalScores()
        self._served = ServedRecord()
        self._called_ns = self._span_ns = 0
        """When the last rehearsal was started, and the time of its requests."""
        self._discarded = self._stable = False
        """Whether the requests of the last rehearsal have been discarded, and whether its scores are those of the
        present traffic."""
        if process:
            stats.create_counters("horologe_tuner_rehearsals_total", RESULTS)

    def connect(self, now_ns: int, controller: str) -> None:
        """Start again with another controller, which uses the default. No address: the controller is lost."""
        self._controller, self._current = controller, DEFAULT
        self._discard_traffic(now_ns)

    def on_events(self, now_ns: int, events: Events) -> Iterator[Out]:
        """Start again if the traffic is not the rehearsed one, with the default if less of it is served."""
        self._served.add(now_ns, events)
        part, name = self._served.latest(WATCHED_REQUESTS), self._current.name
        if part is None or not self._stable:
            return
        least, most = range_served(self._scores, name)
        if least - WATCHED_PART <= part <= most + WATCHED_PART:
            return
        self._discard_traffic(now_ns)
        if self._current != DEFAULT and part < least:
            text = f"{name} serves {part:.2%} of the requests, in its rehearsal at least {least:.2%}"
            yield from self._change(now_ns, DEFAULT, text)

    def _discard_traffic(self, now_ns: int) -> None:
        """Rehearse as soon as there are enough new requests."""
        self._window.clear()
        self._served.restart(now_ns)
        self._discarded, self._stable, self._due_ns = True, False, now_ns

    def next_ns(self) -> int | None:
        """Return when `start` has something to do; None while a rehearsal runs or there are too few requests."""
        ready = self._process and self._controller and not self._running
        enough = len(self._window) >= LEAST_REQUESTS and self._arrived >= NEW_REQUESTS
        return self._due_ns if ready and enough else None

    def start(self, now_ns: int) -> Iterator[Out]:
        """Ask the controller for its state if a rehearsal is due."""
        due_ns = self.next_ns()
        if due_ns is not None and now_ns >= due_ns:
            self._due_ns = now_ns + ANSWER_NS
            yield Out(self._controller, DescribeScheduling(self._window.models()))

    def handle(self, now_ns: int, sender: str, message: Any) -> Iterator[Out]:
        """Handle a trace or a state of the controller, or the scores of the process."""
        match message:
            case RequestTrace() if sender == self._controller and self._process:
                trace = valid_requests(message)
                if trace is not message:
                    self._stats.count(INVALID_MESSAGES, "RequestTrace")
                self._window.add(trace)
                self._arrived += len(trace.requests)
            case SchedulingState() if sender == self._controller and not self._running and message.models:
                self._running = True
                yield Out(self._process, self._build_call(now_ns, message))
            case RehearsalScores():
                yield from self._on_scores(now_ns, message)

    def _build_call(self, now_ns: int, state: SchedulingState) -> RehearsalCall:
        """Return the call. The default and the current candidate come first, if there is no time for all."""
        self._number += 1
        self._arrived, self._discarded = 0, False
        self._called_ns, self._span_ns = now_ns, self._window.span_ns()
        keys = tuple(model.report.spec.key for model in state.models)
        ordered = tuple(sorted(CANDIDATES, key=lambda candidate: candidate not in (DEFAULT, self._current)))
        cpu_s = WINDOW * self._settings.rehearsal_interval_ns * self._settings.rehearsal_share / 1e9
        return RehearsalCall(self._window.trace(keys), state, ordered, cpu_s, self._number)

    def _on_scores(self, now_ns: int, scores: RehearsalScores) -> Iterator[Out]:
        settings = self._settings
        self._running = False
        busy_ns = round(1e9 * scores.cpu_s / settings.rehearsal_share)
        pause_ns = min(settings.rehearsal_interval_ns, self._span_ns)
        self._due_ns = max(self._called_ns + pause_ns, now_ns + busy_ns)
        served = {DEFAULT.name, self._current.name} <= scores.in_time.keys()
        if scores.error or not served:
            error = scores.error or "no time for the scheduler in use"
            if error != self._scores.error:
                self._note(now_ns, "rehearsal failed", "", error, False)
            self._scores, self._stable = RehearsalScores(error=error), False
            self._count("failed")
            if self._current != DEFAULT and self._controller:  # nothing would detect that it has become worse
                yield from self._change(now_ns, DEFAULT, f"the rehearsal failed: {error}")
            return
        before = self._scores if self._stable else RehearsalScores()
        self._scores, self._stable = scores, not self._discarded
        chosen = choose_candidate(scores, before, self._current.name, DEFAULT.name)
        if not self._stable or not self._is_confirmed(scores):
            chosen = DEFAULT.name
        if chosen == self._current.name or not self._controller:
            self._count("kept")
            return
        candidate = next(candidate for candidate in CANDIDATES if candidate.name == chosen)
        yield from self._change(now_ns, candidate, self._explain(scores, candidate))

    def _is_confirmed(self, scores: RehearsalScores) -> bool:
        """Return whether the replay serves about what the controller has served in those blocks of time."""
        blocks = len(scores.sent)
        block_ns = self._span_ns / (blocks + 1)
        lived = min(blocks, int((self._called_ns - self._served.since_ns) / max(1.0, block_ns)))
        part = self._served.part_in_time(self._called_ns - round(lived * block_ns), self._called_ns, WATCHED_REQUESTS)
        return part is None or abs(part - share_served(scores, self._current.name, blocks - lived)) <= MISMATCH

    def _change(self, now_ns: int, candidate: Candidate, reason: str) -> Iterator[Out]:
        self._count("changed")
        self._note(now_ns, "scheduler changed", "", reason, self._settings.dry_run)
        if not self._settings.dry_run:
            self._current = candidate
            self._served.restart(now_ns)
            yield Out(self._controller, UseScheduler(candidate.scheduler, candidate.settings, reason))

    def _explain(self, scores: RehearsalScores, candidate: Candidate) -> str:
        before, after = (f"{share_served(scores, name):.2%}" for name in (self._current.name, candidate.name))
        return (
            f"{candidate.name} would have served {after} of the last {sum(scores.sent):,} requests, "
            f"{self._current.name} {before}"
        )

    def _count(self, result: str) -> None:
        self._stats.count("horologe_tuner_rehearsals_total", result)
        self._stats.remove_values("horologe_tuner_rehearsal_served")
        for name in self._scores.in_time:
            self._stats.set("horologe_tuner_rehearsal_served", name, to=share_served(self._scores, name))

    def describe(self) -> RehearsalStatus | None:
        """Return the state for operators; None before the first rehearsal."""
        scores = self._scores
        if not (scores.in_time or scores.error):
            return None
        served = {name: round(share_served(scores, name), 4) for name in scores.in_time}
        return RehearsalStatus(self._current.name, served, sum(scores.sent), scores.error)
