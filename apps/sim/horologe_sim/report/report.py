"""The result of a simulation, as numbers and as plain text. The same seed gives the same bytes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_sim.report.tables import Table
from horologe_sim.report.tally import quantiles_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from horologe_sim.engine.virtual_worker import Meter
    from horologe_sim.report.tally import AnswerQuality, ClientCounts, Tally

QUANTILES = (0.5, 0.99, 0.999)


class RequestSummary(msgspec.Struct, frozen=True):
    """Requests of one model, or of all. `p50_ms`, `p99_ms` and `p999_ms` are latencies of answers in time."""

    sent: int
    ok: int
    refused: int
    late: int
    lost: int
    cancelled: int
    failed: int
    """Requests that ended with any other status."""
    unanswered: int
    """Requests still open when the simulation ended. Always 0."""
    cold: int
    goodput: float
    """Requests answered in time, per second."""
    p50_ms: float
    p99_ms: float
    p999_ms: float
    refusal_p99_ms: float


class WorkerSummary(msgspec.Struct, frozen=True):
    """One worker. `utilisation`: mean share of the time in EXEC, over all shares of the device."""

    utilisation: float
    batches: int
    rows_mean: float
    loads: int
    unloads: int
    too_late: int
    violations: tuple[str, ...]


class ApplicationSummary(msgspec.Struct, frozen=True):
    """Answers of one application. Its requests and latencies are in `Report.models`, under the application's name."""

    answers: int
    accuracy: float | None
    """Share of rows answered with the true label. None if the models have no `accuracy`."""
    defaulted: float
    """Share of answers that contain the default value."""
    incomplete: float
    """Share of answers without the prediction of some model."""
    missing_mean: float
    """Share of the queried models that were missing, mean over the answers."""
    missing_p99: float


class Report(msgspec.Struct, frozen=True):
    """The result of a scenario. All times are virtual."""

    scenario: str
    seed: int
    scheduler: str
    path: str
    seconds: float
    """Duration of the load without warm-up."""
    total: RequestSummary
    models: dict[str, RequestSummary]
    workers: dict[str, WorkerSummary]
    batches: dict[int, int]
    """Number of batches by number of rows."""
    packets: int
    strays: int
    """Answers to requests that had an answer already."""
    swapped: int
    """Answers with the outputs of another request."""
    overdue_ms: float
    """Longest time between a deadline and its answer."""
    applications: dict[str, ApplicationSummary] = {}
    clients: dict[str, RequestSummary] = {}
    """Requests of the clients that the load names."""

    @property
    def attainment(self) -> float:
        """Return the share of the requests that were answered in time."""
        return self.total.ok / self.total.sent if self.total.sent else 1.0

    @property
    def utilisation(self) -> float:
        """Return the mean share of the time that the workers spent in EXEC."""
        return sum(worker.utilisation for worker in self.workers.values()) / max(1, len(self.workers))

    def summary(self) -> str:
        """Return attainment, goodput, utilisation and cold starts in one line."""
        cold = self.total.cold / max(1, self.total.sent)
        return (
            f"attainment {self.attainment:.3%}, goodput {self.total.goodput:.1f}/s, utilisation "
            f"{self.utilisation:.1%} of {len(self.workers)} device(s), cold starts {cold:.2%}"
        )

    def to_json(self) -> str:
        """Return the report as indented JSON with a fixed order of keys."""
        shares = {"attainment": self.attainment, "utilisation": self.utilisation}
        return msgspec.json.format(msgspec.json.encode(msgspec.to_builtins(self) | shares), indent=2).decode()

    def table(self) -> str:
        """Return the report as plain text."""
        title = f"{self.scenario}: {self.scheduler}, {self.path}, {self.seconds:g} s, seed {self.seed}"
        tables = [self._request_table(), self._application_table(), self._worker_table()]
        sizes = ", ".join(f"{count} of {rows}" for rows, count in self.batches.items())
        parts = [title, *(table.text() for table in tables if table), f"batches by rows: {sizes}", self.summary()]
        return "\n\n".join(parts)

    def _request_table(self) -> Table:
        names = ("model", "sent", "ok", "refused", "late", "lost", "failed", "cold", "ok/s", "p50", "p99", "p99.9 ms")
        table = Table(names)
        clients = {f"client {name}": row for name, row in sorted(self.clients.items())}
        for name, row in {**self.models, **clients, "total": self.total}.items():
            counts = (row.sent, row.ok, row.refused, row.late, row.lost, row.failed + row.cancelled, row.cold)
            times = (f"{time_ms:.2f}" for time_ms in (row.p50_ms, row.p99_ms, row.p999_ms))
            table.add_row(name, *map(str, counts), f"{row.goodput:.1f}", *times)
        return table

    def _application_table(self) -> Table | None:
        if not self.applications:
            return None
        table = Table(("application", "answers", "accuracy", "defaulted", "incomplete", "missing", "missing p99"))
        for name, row in self.applications.items():
            shares = (row.accuracy, row.defaulted, row.incomplete, row.missing_mean, row.missing_p99)
            table.add_row(name, str(row.answers), *("" if share is None else f"{share:.2%}" for share in shares))
        return table

    def _worker_table(self) -> Table:
        table = Table(("worker", "busy", "batches", "rows/batch", "loads", "unloads", "too late"))
        for name, row in self.workers.items():
            counts = map(str, (row.loads, row.unloads, row.too_late))
            table.add_row(name, f"{row.utilisation:.0%}", str(row.batches), f"{row.rows_mean:.2f}", *counts)
        return table


def summarize_by_model(
    tally: Tally, groups: Mapping[str, str], seconds: float
) -> tuple[RequestSummary, dict[str, RequestSummary]]:
    """Return a summary of all requests and of each group. `groups`: group by model name."""
    by_group: dict[str, list[ClientCounts]] = {}
    for model, counts in sorted(tally.counts.items()):
        by_group.setdefault(groups.get(model, model), []).append(counts)
    total = summarize_requests([counts for members in by_group.values() for counts in members], seconds)
    return total, {group: summarize_requests(members, seconds) for group, members in by_group.items()}


def summarize_requests(counts: list[ClientCounts], seconds: float) -> RequestSummary:
    """Return the sum of `counts`."""
    statuses: Counter[str] = Counter()
    for part in counts:
        statuses.update(part.statuses)
    sent, cold = sum(part.sent for part in counts), sum(part.cold for part in counts)
    ok, refused, late, lost, cancelled = (statuses[name] for name in ("OK", "REFUSED", "LATE", "LOST", "CANCELLED"))
    failed, unanswered = statuses.total() - ok - refused - late - lost - cancelled, sent - statuses.total()
    goodput = round(ok / seconds, 3) if seconds else 0.0
    p50, p99, p999 = _round_times(quantiles_ms([part.times for part in counts], QUANTILES))
    (refusal,) = _round_times(quantiles_ms([part.refusal_times for part in counts], (0.99,)))
    rest = failed, unanswered, cold, goodput, p50, p99, p999, refusal
    return RequestSummary(sent, ok, refused, late, lost, cancelled, *rest)


def summarize_application(quality: AnswerQuality) -> ApplicationSummary:
    """Return the summary of the answers of one application."""
    missing = np.asarray(quality.missing)
    if not len(missing):
        return ApplicationSummary(0, None, 0.0, 0.0, 0.0, 0.0)
    high = np.quantile(missing, 0.99, method="inverted_cdf")
    shares = quality.defaulted / len(missing), (missing > 0).mean(), missing.mean(), high
    accuracy = round(quality.right / quality.rows, 5) if quality.rows else None
    return ApplicationSummary(len(missing), accuracy, *(round(float(share), 5) for share in shares))


def summarize_worker(meter: Meter, shares: int, seconds: float) -> WorkerSummary:
    """Return the summary of a worker. `seconds`: duration of the load."""
    batches, rows = sum(meter.rows.values()), sum(size * count for (_, size), count in meter.rows.items())
    busy = round(sum(meter.busy_ns.values()) / 1e9 / (shares * seconds), 4) if seconds else 0.0
    too_late = sum(count for (_, status), count in meter.ended.items() if status == "TOO_LATE")
    loads, unloads = meter.ended["load", "OK"], meter.ended["unload", "OK"]
    rows_mean = round(rows / batches, 3) if batches else 0.0
    return WorkerSummary(busy, batches, rows_mean, loads, unloads, too_late, tuple(meter.violations[:20]))


def count_batch_sizes(meters: Iterable[Meter]) -> dict[int, int]:
    """Return the number of batches by number of rows, without padding."""
    sizes: Counter[int] = Counter()
    for meter in meters:
        for (_, size), count in meter.rows.items():
            sizes[size] += count
    return dict(sorted(sizes.items()))


def _round_times(times_ms: Iterable[float]) -> list[float]:
    return [round(time_ms, 4) for time_ms in times_ms]
