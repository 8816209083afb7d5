"""Counts and durations per model, as the statistics extension of the Open Inference Protocol reports them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from horologe_common.core.counters import Stats
from horologe_common.latency import Histogram
from horologe_common.status import Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_common.models import ModelSpec
    from horologe_common.wire import Answer, Predict
    from horologe_frontend.core.applications import Declared
    from horologe_frontend.core.catalogue import Catalogue
    from horologe_frontend.core.requests import Request


@dataclass(slots=True)
class Duration:
    """How often, and how long in all."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        self.count += 1
        self.ns += ns

    def json(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


@dataclass(slots=True)
class BatchStats:
    executions: float = 0.0
    """Sum of rows / batch size: an answer knows the size of its batch, not who shared it."""
    exec_ns: float = 0.0


@dataclass(slots=True)
class ModelStats:
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    cache_hit: Duration = field(default_factory=Duration)
    cache_miss: Duration = field(default_factory=Duration)
    rows: int = 0
    last_ns: int = 0
    """Monotonic time of the last answer; 0: none yet."""
    batches: dict[int, BatchStats] = field(default_factory=dict)
    took: Histogram = field(default_factory=Histogram)
    slack: Histogram = field(default_factory=Histogram)

    def observe(self, now_ns: int, spec: ModelSpec, answer: Answer, rows: int, total_ns: int, slack_ns: int) -> None:
        self.last_ns = now_ns
        self.took.observe(total_ns)
        if answer.status != Status.OK:
            self.fail.add(total_ns)
            return
        self.slack.observe(slack_ns)
        self.success.add(total_ns)
        self.rows += rows
        if answer.cached:
            self.cache_hit.add(total_ns)
            return
        if spec.cache:
            self.cache_miss.add(total_ns)
        self.queue.add(answer.queue_ns)
        self.compute_infer.add(answer.exec_ns)
        if answer.batch_size > 0:
            share = rows / answer.batch_size
            if (batch := self.batches.get(answer.batch_size)) is None:
                batch = self.batches[answer.batch_size] = BatchStats()
            batch.executions += share
            batch.exec_ns += share * answer.exec_ns


class Statistics:
    """Per model key. Fed with models of the catalogue only, so its size is bounded by the repository's."""

    def __init__(self) -> None:
        self._models: dict[str, ModelStats] = {}

    def observe(self, now_ns: int, spec: ModelSpec, answer: Answer, rows: int, total_ns: int, slack_ns: int) -> None:
        """Count one answer; `total_ns`: from the request's arrival to it, `slack_ns`: from it to the deadline."""
        stats = self._models.get(spec.key)
        if stats is None:
            stats = self._models[spec.key] = ModelStats()
        stats.observe(now_ns, spec, answer, rows, total_ns, slack_ns)

    def publish(self, stats: Stats) -> None:
        """Set the metrics that follow from these numbers."""
        for key, model in self._models.items():
            labels = tuple(key.split("/", 1))
            stats.set("nv_inference_request_success", *labels, to=model.success.count)
            stats.set("nv_inference_request_duration_us", *labels, to=model.success.ns // 1000)
            stats.set("nv_inference_queue_duration_us", *labels, to=model.queue.ns // 1000)
            stats.histograms["horologe_request_seconds", *labels] = model.took
            if model.slack.total:
                stats.histograms["horologe_slack_seconds", *labels] = model.slack

    def of(self, key: str) -> ModelStats:
        return self._models.get(key) or ModelStats()


def stats_json(spec: ModelSpec, stats: ModelStats, epoch_minus_monotonic_ns: int) -> dict[str, Any]:
    """One element of `model_stats` (Triton's docs/protocol/extension_statistics.md)."""
    nothing = {"count": 0, "ns": 0}
    last_ns = stats.last_ns and stats.last_ns + epoch_minus_monotonic_ns
    return {
        "name": spec.name,
        "version": spec.version,
        "last_inference": last_ns // 1_000_000,
        "inference_count": stats.rows,
        "execution_count": round(sum(batch.executions for batch in stats.batches.values())),
        "inference_stats": {
            "success": stats.success.json(),
            "fail": stats.fail.json(),
            "queue": stats.queue.json(),
            "compute_input": nothing,
            "compute_infer": stats.compute_infer.json(),
            "compute_output": nothing,
            "cache_hit": stats.cache_hit.json(),
            "cache_miss": stats.cache_miss.json(),
        },
        "response_stats": {},
        "batch_stats": [
            {
                "batch_size": size,
                "compute_input": nothing,
                "compute_infer": {"count": round(batch.executions), "ns": round(batch.exec_ns)},
                "compute_output": nothing,
            }
            for size, batch in sorted(stats.batches.items())
        ],
        "memory_usage": [],
    }


PREFIX = "horologe_application_"


class Counts:
    """Labels are names of the catalogue and of declared applications only, whatever clients send."""

    def __init__(self, catalogue: Catalogue, declared: Declared) -> None:
        self.stats = Stats()
        self.statistics = Statistics()
        self._catalogue = catalogue
        self._declared = declared

    def rejected(self, message: Predict, status: Status) -> None:
        """A request that never was open."""
        if message.application and not message.model:
            name = message.application if message.application in self._declared else ""
            self.stats.count(f"{PREFIX}requests_total", name, status.name)
        else:
            labels = self._catalogue.labels(message.model, message.version)
            self.stats.count("nv_inference_request_failure", *labels, status.name)

    def ended(self, now_ns: int, request: Request, answer: Answer) -> None:
        """An open request has its one answer."""
        spec, status = request.spec, Status(answer.status).name
        took_ns, slack_ns = now_ns - request.arrival_ns, request.deadline_ns - now_ns
        if request.application is None:
            self.statistics.observe(now_ns, spec, answer, request.query.rows, took_ns, slack_ns)
            if answer.status != Status.OK:
                self.stats.count("nv_inference_request_failure", spec.name, spec.version, status)
        elif spec.name in self._declared:
            self.stats.count(f"{PREFIX}requests_total", spec.name, status)
            self.stats.observe(f"{PREFIX}request_seconds", spec.name, value=took_ns)
            if answer.defaulted:
                self.stats.count(f"{PREFIX}defaulted_total", spec.name)

    def withdrawn(self, applications: Iterable[str]) -> None:
        """Forget what was counted of these: whoever declares new names for ever would fill the memory."""
        if names := tuple(applications):
            self.stats.remove_values(PREFIX, *names)
