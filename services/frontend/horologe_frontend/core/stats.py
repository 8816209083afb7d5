"""Statistics of requests: per model as in Triton's statistics extension, and the metrics of the frontend."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from horologe_common.core.buckets import bucket_bounds
from horologe_common.core.instruments import Exemplar, Histogram, ModelCounters, Stats
from horologe_common.status import STATUS_NAMES, Status
from horologe_frontend.core.application_requests import APPLICATION_RUNTIME

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_common.models import ModelSpec
    from horologe_common.wire import Answer, Predict
    from horologe_frontend.core.application_requests import DeclaredApplications
    from horologe_frontend.core.model_versions import ModelVersions
    from horologe_frontend.core.requests import ClientRequest

OK = int(Status.OK)
APPLICATION_PREFIX = "horologe_application_"
FAILURE = "nv_inference_request_failure"
LATENCY, SLACK = "horologe_request_seconds", "horologe_slack_seconds"
FAILED_STATUSES = tuple(
    status.name for status in Status if OK < status <= Status.FAILED and status != Status.UNAUTHENTICATED
)
"""Statuses of failed requests. Their counters start at 0."""


@dataclass(slots=True)
class DurationTotal:
    """A number of events and their total duration."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        self.count += 1
        self.ns += ns


@dataclass(slots=True)
class BatchStats:
    """Batches of one size. A request counts as its share of the batch: an answer has the batch size, not an id."""

    size: int
    rows: int = 0
    rows_exec_ns: int = 0
    """Sum of rows x execution time."""

    @property
    def executions(self) -> float:
        """Sum of rows / batch size."""
        return self.rows / self.size

    @property
    def exec_ns(self) -> float:
        """Execution time of these batches."""
        return self.rows_exec_ns / self.size


@dataclass(slots=True)
class ModelStats:
    """Answers of one model. Totals that follow from others are computed when they are read."""

    fail: DurationTotal = field(default_factory=DurationTotal)
    cache_hit: DurationTotal = field(default_factory=DurationTotal)
    cache_miss: DurationTotal = field(default_factory=DurationTotal)
    rows: int = 0
    queue_ns: int = 0
    exec_ns: int = 0
    last_ns: int = 0
    """Monotonic time of the last answer. 0: no answer yet."""
    batches: dict[int, BatchStats] = field(default_factory=dict)
    latency: Histogram = field(default_factory=lambda: Histogram(bucket_bounds(LATENCY)))
    """Arrival to answer."""
    slack: Histogram = field(default_factory=lambda: Histogram(bucket_bounds(SLACK)))
    """Answer to deadline, for requests answered OK."""

    @property
    def success(self) -> DurationTotal:
        """Requests answered OK."""
        return DurationTotal(self.slack.total, self.latency.sum - self.fail.ns)

    @property
    def queue(self) -> DurationTotal:
        """Queueing delay of the requests answered OK by a model, not by the cache."""
        return DurationTotal(self.slack.total - self.cache_hit.count, self.queue_ns)

    @property
    def compute_infer(self) -> DurationTotal:
        """Execution time of the same requests."""
        return DurationTotal(self.slack.total - self.cache_hit.count, self.exec_ns)

    def count_answer(
        self, now_ns: int, answer: Answer, rows: int, total_ns: int, slack_ns: int, has_cache: bool = False
    ) -> None:
        """Count an answer. `total_ns`: arrival to answer. `slack_ns`: answer to deadline."""
        self.last_ns = now_ns
        self.latency.observe(total_ns)
        if answer.status != OK:
            self.fail.add(total_ns)
            return
        self.slack.observe(slack_ns)
        self.rows += rows
        if answer.cached:
            self.cache_hit.add(total_ns)
            return
        if has_cache:
            self.cache_miss.add(total_ns)
        exec_ns, size = answer.exec_ns, answer.batch_size
        self.queue_ns += answer.queue_ns
        self.exec_ns += exec_ns
        if size > 0:
            if (batch := self.batches.get(size)) is None:
                batch = self.batches[size] = BatchStats(size)
            batch.rows += rows
            batch.rows_exec_ns += rows * exec_ns


class RequestMetrics:
    """Count every request. Labels are names of the catalogue and of declared applications, never names of clients."""

    def __init__(self, catalogue: ModelVersions, declared: DeclaredApplications) -> None:
        self.stats = Stats()
        self.by_model: dict[str, ModelStats] = {}
        """By the key of the model. Only models of the catalogue are counted, which bounds its size."""
        self.by_application: dict[str, ModelStats] = {}
        """By name, of declared applications. Their models have statistics of their own."""
        self._catalogue = catalogue
        self._declared = declared
        self._failures = ModelCounters(self.stats, FAILURE, FAILED_STATUSES)
        self._failures.create("", "")
        self.stats.create_counters(f"{APPLICATION_PREFIX}requests_total", ("",), FAILED_STATUSES)

    def of_spec(self, spec: ModelSpec) -> ModelStats:
        """Return the statistics of a model, or of an application by its signature."""
        found = (
            self.by_application.get(spec.name) if spec.runtime == APPLICATION_RUNTIME else self.by_model.get(spec.key)
        )
        return found or ModelStats()

    def create_model_counters(self) -> None:
        """Create the counters of failures of the models of the catalogue."""
        self._failures.announce(state.spec for state in self._catalogue.model_states())

    def refresh(self) -> None:
        """Set the metrics that are computed from the answers. Called on the exporter's thread."""
        stats = self.stats
        for key, model in list(self.by_model.items()):
            name, _, version = key.partition("/")
            labels = name, version
            self._failures.create(*labels)
            success = model.success
            stats.set("nv_inference_request_success", *labels, to=success.count)
            stats.set("nv_inference_request_duration_us", *labels, to=success.ns // 1000)
            stats.set("nv_inference_queue_duration_us", *labels, to=model.queue_ns // 1000)
            stats.set("horologe_queue_seconds_total", *labels, to=model.queue_ns / 1e9)
            stats.histograms[LATENCY, *labels] = model.latency
            if success.count:
                stats.histograms[SLACK, *labels] = model.slack

    def count_rejected(self, message: Predict, status: Status) -> None:
        """Count a request that was rejected before it was opened."""
        if message.application and not message.model:
            name = message.application if message.application in self._declared else ""
            self.stats.count(f"{APPLICATION_PREFIX}requests_total", name, status.name)
        else:
            self._failures.count(*self._catalogue.metric_labels(message.model, message.version), status.name)

    def count_refused_again(self, now_ns: int, counts: Iterable[tuple[str, int]]) -> None:
        """Count requests by model (key) that were refused at once, in no time."""
        for key, count in counts:
            if (model := self.by_model.get(key)) is None:
                model = self.by_model[key] = ModelStats()
            model.last_ns = now_ns
            model.latency.observe(0, count)
            model.fail.count += count
            name, _, version = key.partition("/")
            self._failures.count(name, version, Status.REFUSED.name, count)

    def count_finished(self, now_ns: int, request: ClientRequest, answer: Answer) -> None:
        """Count an open request that gets its answer."""
        spec = request.spec
        total_ns, slack_ns = now_ns - request.arrival_ns, request.deadline_ns - now_ns
        if request.application is None:
            if (model := self.by_model.get(spec.key)) is None:
                model = self.by_model[spec.key] = ModelStats()
            model.count_answer(now_ns, answer, request.query.rows, total_ns, slack_ns, spec.cache)
            if answer.status != OK:
                self._failures.count(spec.name, spec.version, STATUS_NAMES[answer.status])
        elif spec.name in self._declared:
            if (totals := self.by_application.get(spec.name)) is None:
                totals = self.by_application[spec.name] = ModelStats()
            totals.count_answer(now_ns, answer, request.query.rows, total_ns, slack_ns, spec.cache)
            status = STATUS_NAMES[answer.status]
            self.stats.count(f"{APPLICATION_PREFIX}requests_total", spec.name, status)
            self.stats.observe(f"{APPLICATION_PREFIX}request_seconds", spec.name, value=total_ns)
            if answer.defaulted:
                self.stats.count(f"{APPLICATION_PREFIX}defaulted_total", spec.name)

    def add_exemplar(self, now_ns: int, request: ClientRequest, answer: Answer, trace_id: str) -> None:
        """Link the latency and the slack of a traced request to its trace, after `count_finished`."""
        latency = Exemplar(trace_id, now_ns - request.arrival_ns, now_ns)
        if request.application is None:
            model = self.by_model[request.spec.key]
            model.latency.add_exemplar(latency)
            if answer.status == OK:
                model.slack.add_exemplar(Exemplar(trace_id, request.deadline_ns - now_ns, now_ns))
        elif histogram := self.stats.histograms.get((f"{APPLICATION_PREFIX}request_seconds", request.spec.name)):
            histogram.add_exemplar(latency)

    def replace_applications(self, withdrawn: Iterable[str]) -> None:
        """Create the counters of the declared applications. Those of withdrawn ones would fill the memory."""
        if names := tuple(withdrawn):
            self.stats.remove_values(APPLICATION_PREFIX, *names)
            for name in names:
                self.by_application.pop(name, None)
        self.stats.create_counters(f"{APPLICATION_PREFIX}requests_total", self._declared, FAILED_STATUSES)
        self.stats.create_counters(f"{APPLICATION_PREFIX}defaulted_total", self._declared)
