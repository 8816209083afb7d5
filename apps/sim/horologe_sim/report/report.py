"""What a simulation found, as numbers and as a plain table. The same seed gives the same bytes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from horologe_sim.engine.virtual_worker import Meter
    from horologe_sim.report.tally import AnswerQuality, RequestCounts, Tally

QUANTILES = (0.5, 0.99, 0.999)


class RequestSummary(msgspec.Struct, frozen=True):
    """Requests of one model (or of all). Latencies in ms: of answers in time, and of refusals."""

    sent: int
    ok: int
    refused: int
    late: int
    lost: int
    cancelled: int
    failed: int
    """Ended in any other way."""
    unanswered: int
    """Still open when the simulation ended: always 0."""
    cold: int
    goodput: float
    """Answered in time, per second."""
    p50_ms: float
    p99_ms: float
    p999_ms: float
    refusal_p99_ms: float


class WorkerSummary(msgspec.Struct, frozen=True):
    """One worker. `utilisation`: share of the time in EXEC, over all its shares."""

    utilisation: float
    batches: int
    rows_mean: float
    loads: int
    unloads: int
    too_late: int
    violations: tuple[str, ...]


class ApplicationSummary(msgspec.Struct, frozen=True):
    """What an application's answers were made of. Its requests and latencies are a `Row` among the models'."""

    answers: int
    accuracy: float | None
    """Share of rows answered with the true label; None where the models have no `accuracy`."""
    defaulted: float
    """Share of answers with the declared default in them."""
    incomplete: float
    """Share of answers in which a model is missing."""
    missing_mean: float
    """Share of the models asked that were missing, on average."""
    missing_p99: float


class Report(msgspec.Struct, frozen=True):
    """The result of a scenario. Times are virtual: how long the simulation took is for whoever ran it to measure."""

    scenario: str
    seed: int
    scheduler: str
    path: str
    seconds: float
    """Of load that was counted."""
    total: RequestSummary
    models: dict[str, RequestSummary]
    workers: dict[str, WorkerSummary]
    batches: dict[int, int]
    """How often a batch of so many rows was run."""
    packets: int
    strays: int
    """Answers beyond the first."""
    swapped: int
    """Answers with somebody else's outputs."""
    overdue_ms: float
    """The latest that an answer came after its deadline."""
    applications: dict[str, ApplicationSummary] = {}

    @property
    def attainment(self) -> float:
        """Share of the requests that were answered in time."""
        return self.total.ok / self.total.sent if self.total.sent else 1.0

    @property
    def utilisation(self) -> float:
        """Mean share of the time in EXEC."""
        return sum(one.utilisation for one in self.workers.values()) / max(1, len(self.workers))

    def summary(self) -> str:
        """One line."""
        cold = self.total.cold / max(1, self.total.sent)
        return (
            f"attainment {self.attainment:.3%}, goodput {self.total.goodput:.1f}/s, utilisation "
            f"{self.utilisation:.1%} of {len(self.workers)} device(s), cold starts {cold:.2%}"
        )

    def to_json(self) -> str:
        """Indented, in a fixed order."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()

    def table(self) -> str:
        """Plain text."""
        head = f"{self.scenario}: {self.scheduler}, {self.path}, {self.seconds:g} s, seed {self.seed}"
        names = ("model", "sent", "ok", "refused", "late", "lost", "failed", "cold", "ok/s", "p50", "p99", "p99.9 ms")
        rows = [names, *(_cells(name, row) for name, row in {**self.models, "total": self.total}.items())]
        workers: list[tuple[str, ...]] = [("worker", "busy", "batches", "rows/batch", "loads", "unloads", "too late")]
        for name, one in self.workers.items():
            counts = (one.loads, one.unloads, one.too_late)
            workers.append(
                (name, f"{one.utilisation:.0%}", str(one.batches), f"{one.rows_mean:.2f}", *map(str, counts))
            )
        applications = _table(self.applications)
        sizes = ", ".join(f"{count} of {rows}" for rows, count in self.batches.items())
        parts = (
            head,
            "",
            *aligned(rows),
            "",
            *applications,
            *aligned(workers),
            "",
            f"batches by rows: {sizes}",
            "",
            self.summary(),
        )
        return "\n".join(parts)


def _table(applications: Mapping[str, ApplicationSummary]) -> list[str]:
    if not applications:
        return []
    lines: list[tuple[str, ...]] = [
        ("application", "answers", "accuracy", "defaulted", "incomplete", "missing", "missing p99")
    ]
    for name, one in applications.items():
        shares = (one.accuracy, one.defaulted, one.incomplete, one.missing_mean, one.missing_p99)
        lines.append((name, str(one.answers), *("" if share is None else f"{share:.2%}" for share in shares)))
    return [*aligned(lines), ""]


def _cells(name: str, row: RequestSummary) -> tuple[str, ...]:
    counts = (row.sent, row.ok, row.refused, row.late, row.lost, row.failed + row.cancelled, row.cold)
    times = (row.p50_ms, row.p99_ms, row.p999_ms)
    return (name, *map(str, counts), f"{row.goodput:.1f}", *(f"{time:.2f}" for time in times))


def aligned(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Lines of a plain table: the first column to the left, the others to the right."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def summarize_by_model(
    tally: Tally, groups: Mapping[str, str], seconds: float
) -> tuple[RequestSummary, dict[str, RequestSummary]]:
    """All requests together, and by group; `groups`: model name -> group."""
    by_group: dict[str, list[RequestCounts]] = {}
    for model, line in sorted(tally.counts.items()):
        by_group.setdefault(groups.get(model, model), []).append(line)
    total = summarize_requests([line for lines in by_group.values() for line in lines], seconds)
    return total, {group: summarize_requests(lines, seconds) for group, lines in by_group.items()}


def summarize_requests(lines: list[RequestCounts], seconds: float) -> RequestSummary:
    """Lines added up."""
    ended: Counter[str] = Counter()
    for line in lines:
        ended.update(line.statuses)
    sent, ok = sum(line.sent for line in lines), ended["OK"]
    refused, late, lost, cancelled = (ended[name] for name in ("REFUSED", "LATE", "LOST", "CANCELLED"))
    failed = ended.total() - ok - refused - late - lost - cancelled
    p50, p99, p999 = _quantiles_ms([line.latencies_ns for line in lines], QUANTILES)
    (refusal,) = _quantiles_ms([line.refusal_latencies_ns for line in lines], (0.99,))
    return RequestSummary(
        sent,
        ok,
        refused,
        late,
        lost,
        cancelled,
        failed,
        sent - ended.total(),
        sum(line.cold for line in lines),
        round(ok / seconds, 3) if seconds else 0.0,
        p50,
        p99,
        p999,
        refusal,
    )


def summarize_application(judged: AnswerQuality) -> ApplicationSummary:
    """Of the answers of one application."""
    missing = np.asarray(judged.missing)
    if not len(missing):
        return ApplicationSummary(0, None, 0.0, 0.0, 0.0, 0.0)
    shares = judged.defaulted / len(missing), (missing > 0).mean(), missing.mean(), _high(missing)
    accuracy = round(judged.right / judged.rows, 5) if judged.rows else None
    return ApplicationSummary(len(missing), accuracy, *(round(float(share), 5) for share in shares))


def _high(shares: NDArray[np.float64]) -> float:
    return float(np.quantile(shares, 0.99, method="inverted_cdf"))


def summarize_worker(meter: Meter, shares: int, seconds: float) -> WorkerSummary:
    """One worker's meter, over `seconds` in all."""
    batches = sum(meter.rows.values())
    rows = sum(size * count for (_, size), count in meter.rows.items())
    return WorkerSummary(
        round(sum(meter.busy_ns.values()) / 1e9 / (shares * seconds), 4) if seconds else 0.0,
        batches,
        round(rows / batches, 3) if batches else 0.0,
        meter.ended["load", "OK"],
        meter.ended["unload", "OK"],
        sum(count for (_, status), count in meter.ended.items() if status == "TOO_LATE"),
        tuple(meter.violations[:20]),
    )


def count_batch_sizes(meters: Iterable[Meter]) -> dict[int, int]:
    """Batches by true rows."""
    found: Counter[int] = Counter()
    for meter in meters:
        for (_, size), count in meter.rows.items():
            found[size] += count
    return dict(sorted(found.items()))


def _quantiles_ms(parts: Iterable[object], quantiles: tuple[float, ...]) -> list[float]:
    taken = np.concatenate([np.empty(0, np.int64), *(np.asarray(part, np.int64) for part in parts)])
    if not taken.size:
        return [0.0] * len(quantiles)
    return [round(float(value) / 1e6, 4) for value in np.quantile(taken, quantiles, method="inverted_cdf")]
