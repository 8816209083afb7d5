"""What became of every request of a run, and the figures that are printed of it."""

from __future__ import annotations

import math
from collections import Counter
from enum import IntEnum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence


class Code(IntEnum):
    """The end of one request, as the client saw it."""

    OK = 0
    REFUSED = 1
    """A clear no: status REFUSED, or HTTP 429 and 503."""
    LATE = 2
    """The server says that it missed the deadline: status LATE, or HTTP 504 and 408."""
    FAILED = 3
    """Anything else, a broken connection included."""
    SILENT = 4
    """No answer when the run was closed."""


class Samples:
    """One row per request: intended and actual time of sending and time of the answer (ns), and how it ended.

    `kept` holds the answers that will be checked once the run is over, by request index.
    """

    def __init__(self, keep_every: int = 32) -> None:
        self.keep_every = keep_every
        self.intended_ns: list[int] = []
        self.sent_ns: list[int] = []
        self.done_ns: list[int] = []
        self.codes: list[int] = []
        self.kept: dict[int, object] = {}
        self.reasons: Counter[str] = Counter()
        """What failed requests were told."""
        self.open = 0
        self.cached = 0

    def sent(self, intended_ns: int, sent_ns: int) -> int:
        """A request leaves now; its index, which is also its distinct input."""
        self.intended_ns.append(intended_ns)
        self.sent_ns.append(sent_ns)
        self.done_ns.append(0)
        self.codes.append(Code.SILENT)
        self.open += 1
        return len(self.codes) - 1

    def done(self, index: int, now_ns: int, code: int, answer: object) -> None:
        """The answer to request `index` is here."""
        self.done_ns[index] = now_ns
        self.codes[index] = code
        self.open -= 1
        if code == Code.OK and not index % self.keep_every:
            self.kept[index] = answer
        elif code == Code.FAILED:
            self.reasons[reason(answer)] += 1

    def latencies_ns(self, code: Code = Code.OK) -> list[int]:
        """Ascending times from the *intended* sending to the answer, of all that ended with `code`."""
        rows = zip(self.intended_ns, self.done_ns, self.codes, strict=True)
        return sorted(done - intended for intended, done, got in rows if got == code)

    def lateness_ns(self) -> list[int]:
        """Ascending delays between the intended and the actual sending: the generator's own fault."""
        return sorted(sent - meant for meant, sent in zip(self.intended_ns, self.sent_ns, strict=True))


def quantile(ascending: Sequence[float], q: float) -> float:
    """Nearest-rank quantile: the smallest value that at least `q` of all do not exceed. NaN of nothing."""
    if not ascending:
        return math.nan
    return ascending[min(len(ascending), max(1, math.ceil(q * len(ascending) - 1e-9))) - 1]


def reason(answer: object) -> str:
    """What a failure said: an exception, or head and body of a response."""
    if isinstance(answer, tuple):
        head, body = answer
        return f"{head.split(b' ', 1)[-1][:3].decode()} {body[:120].decode(errors='replace')}"
    return f"{type(answer).__name__}: {answer}"[:120] if answer is not None else "connection lost"


class Figures(msgspec.Struct, frozen=True):
    """One run in numbers. Times in ms, rates per second; NaN where there is nothing to say."""

    sent: int
    ok: int
    in_slo: int
    refused: int
    late: int
    """Answers past the SLO at the client, and those that the server itself called late."""
    failed: int
    silent: int
    requests_s: float
    """OK answers per second of the time in which requests were sent (closed loop: of the whole run)."""
    goodput_s: float
    """The same, of the OK answers inside the SLO."""
    p50_ms: float
    p99_ms: float
    p999_ms: float
    refusal_p99_ms: float
    lateness_p99_ms: float
    """Of the generator: how long after its intended time a request really left."""
    checked: int
    wrong: int
    cache_hits: int
    offered_s: float = 0.0
    """Open loop only: the rate asked for."""
    reasons: dict[str, int] = {}
    """What failed requests were told, the commonest."""

    @property
    def attained(self) -> float:
        """Share of all that was sent that came back right and inside the SLO."""
        return self.in_slo / self.sent if self.sent else 0.0


def figures(
    samples: Samples, seconds: float, slo_ms: float, checked: int = 0, wrong: int = 0, offered_s: float = 0.0
) -> Figures:
    """Sum up a run whose requests were sent within `seconds`. `slo_ms` 0: everything OK is in time."""
    answered = samples.latencies_ns()
    limit = slo_ms * 1e6 if slo_ms else math.inf
    in_slo = sum(took <= limit for took in answered)
    codes = Counter(samples.codes)
    return Figures(
        sent=len(samples.codes),
        ok=len(answered),
        in_slo=in_slo,
        refused=codes[Code.REFUSED],
        late=codes[Code.LATE] + len(answered) - in_slo,
        failed=codes[Code.FAILED],
        silent=codes[Code.SILENT],
        requests_s=len(answered) / seconds,
        goodput_s=in_slo / seconds,
        p50_ms=quantile(answered, 0.5) / 1e6,
        p99_ms=quantile(answered, 0.99) / 1e6,
        p999_ms=quantile(answered, 0.999) / 1e6,
        refusal_p99_ms=quantile(samples.latencies_ns(Code.REFUSED), 0.99) / 1e6,
        lateness_p99_ms=quantile(samples.lateness_ns(), 0.99) / 1e6,
        checked=checked,
        wrong=wrong,
        cache_hits=samples.cached,
        offered_s=offered_s,
        reasons=dict(samples.reasons.most_common(3)),
    )
