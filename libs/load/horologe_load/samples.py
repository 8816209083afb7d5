"""The outcome of every request of a run, and its summary: counts, rates, latency quantiles."""

from __future__ import annotations

import gc
import math
import re
from collections import Counter
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING

import msgspec

from horologe_common.core.instruments import quantile
from horologe_common.status import HorologeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

REASONS = 5
"""Reasons in a summary, the most frequent ones."""
REASON_LENGTH = 120
FIGURE = re.compile(r"\d+(\.\d+)?")


class ClientOutcome(IntEnum):
    """The end of a request, as seen by the client."""

    OK = 0
    REFUSED = 1
    """Refused by the server: status REFUSED, or HTTP 429 and 503."""
    LATE = 2
    """Reported by the server as past its deadline: status LATE, or HTTP 504 and 408."""
    FAILED = 3
    """Any other error, including a broken connection."""
    UNANSWERED = 4
    """Still in flight when the run was closed."""
    UNSENT = 5
    """Not sent, because its deadline had passed when the generator reached it."""


class Samples:
    """Due, sent and done times of requests in nanoseconds, and their outcomes, by index.

    `kept` holds every `keep_every`-th OK answer, by index, for checks after the run.
    """

    def __init__(self, keep_every: int = 32) -> None:
        self.keep_every = keep_every
        self.due_ns: list[int] = []
        """Intended time of sending."""
        self.sent_ns: list[int] = []
        self.done_ns: list[int] = []
        self.outcomes: list[int] = []
        self.kept: dict[int, object] = {}
        self.reasons: Counter[str] = Counter()
        """Error texts of refused and failed requests."""
        self.in_flight = 0

    def add_request(self, due_ns: int, sent_ns: int) -> int:
        """Record a request that is sent now. Return its index, which is also the number of its distinct input."""
        self.due_ns.append(due_ns)
        self.sent_ns.append(sent_ns)
        self.done_ns.append(0)
        self.outcomes.append(ClientOutcome.UNANSWERED)
        self.in_flight += 1
        return len(self.outcomes) - 1

    def add_answer(self, index: int, now_ns: int, outcome: int, answer: object) -> None:
        """Record the answer to request `index`: a reply, or the error."""
        self.done_ns[index] = now_ns
        self.outcomes[index] = outcome
        self.in_flight -= 1
        if outcome == ClientOutcome.OK:
            if not index % self.keep_every:
                self.kept[index] = answer
        elif outcome in (ClientOutcome.REFUSED, ClientOutcome.FAILED):
            self.reasons[error_text(answer)] += 1

    def latencies_ns(self, outcome: ClientOutcome = ClientOutcome.OK) -> list[int]:
        """Return the ascending times from due time to answer of all requests with this outcome."""
        rows = zip(self.due_ns, self.done_ns, self.outcomes, strict=True)
        return sorted(done - due for due, done, ended in rows if ended == outcome)

    def delays_ns(self) -> list[int]:
        """Return the ascending delays between due and actual time of sending: how late the generator was."""
        return sorted(sent - due for due, sent in zip(self.due_ns, self.sent_ns, strict=True))


class LoadSummary(msgspec.Struct, frozen=True):
    """A run in numbers. Times in milliseconds from the due time, 0 where there is no sample."""

    rate: float
    """Offered requests per second; 0 for a closed loop."""
    seconds: float
    """Time in which requests were sent (closed loop: of the whole run)."""
    slo_ms: float
    """0: none; every OK answer is in time."""
    sent: int = 0
    ok: int = 0
    in_time: int = 0
    """OK answers within the SLO."""
    late: int = 0
    """OK answers past the SLO, and those that the server reported late."""
    refused: int = 0
    failed: int = 0
    unanswered: int = 0
    unsent: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    p999_ms: float = 0.0
    refusal_p99_ms: float = 0.0
    delay_p99_ms: float = 0.0
    """Between due and actual sending: the generator's own delay."""
    cached: int = 0
    """Answers from the server's prediction cache."""
    checked: int = 0
    wrong: int = 0
    reasons: dict[str, int] = {}
    """Most frequent error texts of refused and failed requests."""

    @property
    def attained(self) -> float:
        """Return the share of the requests that were answered in time."""
        return self.in_time / self.sent if self.sent else 0.0

    @property
    def throughput(self) -> float:
        """Return the OK answers per second."""
        return self.ok / self.seconds

    @property
    def goodput(self) -> float:
        """Return the requests answered in time, per second."""
        return self.in_time / self.seconds


def summarize(
    samples: Samples,
    seconds: float,
    slo_ms: float = 0.0,
    rate: float = 0.0,
    cached: int = 0,
    checked: int = 0,
    wrong: int = 0,
) -> LoadSummary:
    """Sum up a run. The arguments have the meaning of the fields of `LoadSummary`."""
    answered = samples.latencies_ns()
    limit_ns = slo_ms * 1e6 if slo_ms else math.inf
    in_time = sum(took_ns <= limit_ns for took_ns in answered)
    counts = Counter(samples.outcomes)
    return LoadSummary(
        rate=rate,
        seconds=seconds,
        slo_ms=slo_ms,
        sent=len(samples.outcomes),
        ok=len(answered),
        in_time=in_time,
        late=counts[ClientOutcome.LATE] + len(answered) - in_time,
        refused=counts[ClientOutcome.REFUSED],
        failed=counts[ClientOutcome.FAILED],
        unanswered=counts[ClientOutcome.UNANSWERED],
        unsent=counts[ClientOutcome.UNSENT],
        p50_ms=_quantile_ms(answered, 0.5),
        p99_ms=_quantile_ms(answered, 0.99),
        p999_ms=_quantile_ms(answered, 0.999),
        refusal_p99_ms=_quantile_ms(samples.latencies_ns(ClientOutcome.REFUSED), 0.99),
        delay_p99_ms=_quantile_ms(samples.delays_ns(), 0.99),
        cached=cached,
        checked=checked,
        wrong=wrong,
        reasons=dict(samples.reasons.most_common(REASONS)),
    )


def _quantile_ms(ascending_ns: Sequence[int], share: float) -> float:
    return quantile(ascending_ns, share) / 1e6 if ascending_ns else 0.0


def error_text(answer: object) -> str:
    """Return the text of an error, a response (head, body) or a text, without the figures of the one request."""
    if isinstance(answer, HorologeError):
        return answer.reason.partition(":")[0]  # the figures of this one request follow the colon
    if isinstance(answer, tuple):
        head, body = answer
        text = FIGURE.sub("#", body[:REASON_LENGTH].decode(errors="replace"))
        return f"{head.split(b' ', 1)[-1][:3].decode()} {text}"
    if isinstance(answer, str):
        return FIGURE.sub("#", answer[:REASON_LENGTH])
    return f"{type(answer).__name__}: {answer}"[:REASON_LENGTH] if answer is not None else "connection lost"


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Switch garbage collection off while times are taken."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
