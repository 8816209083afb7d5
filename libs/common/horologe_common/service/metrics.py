"""Every metric by name, and the export of `Stats` to Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from horologe_common.core.instruments import Histogram, Stats


class Metric(NamedTuple):
    """`kind`: counter, gauge, histogram, or cumulative: a counter under Triton's name, which lacks `_total`."""

    kind: str
    help: str
    labels: tuple[str, ...] = ()


MODEL = ("model", "version")
PART = ("application", "model")
STAGE = ("pipeline", "stage")

METRICS: dict[str, Metric] = {
    "nv_inference_request_success": Metric("cumulative", "Requests answered OK", MODEL),
    "nv_inference_request_failure": Metric("cumulative", "Requests not answered OK, by status", (*MODEL, "reason")),
    "nv_inference_count": Metric("cumulative", "Rows executed", MODEL),
    "nv_inference_exec_count": Metric("cumulative", "Batches executed", MODEL),
    "nv_inference_request_duration_us": Metric("cumulative", "Cumulative time from arrival to answer", MODEL),
    "nv_inference_queue_duration_us": Metric("cumulative", "Cumulative time from arrival to execution", MODEL),
    "nv_inference_compute_infer_duration_us": Metric("cumulative", "Cumulative execution time of batches", MODEL),
    "nv_inference_pending_request_count": Metric("gauge", "Requests waiting for execution", MODEL),
    "nv_cache_num_hits_per_model": Metric("cumulative", "Prediction cache hits", MODEL),
    "nv_cache_num_misses_per_model": Metric("cumulative", "Prediction cache misses", MODEL),
    "horologe_request_seconds": Metric("histogram", "Arrival to answer at the frontend", MODEL),
    "horologe_slack_seconds": Metric("histogram", "Time left until the deadline, for requests answered in time", MODEL),
    "horologe_application_requests_total": Metric(
        "counter", "Requests of an application, by final status", ("application", "status")
    ),
    "horologe_application_defaulted_total": Metric(
        "counter", "Requests with a row answered by the declared default", ("application",)
    ),
    "horologe_application_request_seconds": Metric("histogram", "Arrival to answer at the frontend", ("application",)),
    "horologe_refused_total": Metric("counter", "Requests refused by the controller, by reason", (*MODEL, "reason")),
    "horologe_batch_rows": Metric("histogram", "Rows in a batch", MODEL),
    "horologe_prediction_error_seconds": Metric(
        "histogram", "Actual minus expected duration of an action", ("action", "side")
    ),
    "horologe_completion_error_seconds": Metric(
        "histogram", "Actual end of an action minus the end predicted when it was planned", ("action", "side")
    ),
    "horologe_start_error_seconds": Metric(
        "histogram", "EXEC begin minus the latest of: window start, end of the previous EXEC, arrival of the inputs"
    ),
    "horologe_lane_operations_total": Metric(
        "counter", "Finished operations: load, unload (on the load lane), input, exec, output", ("lane", "status")
    ),
    "horologe_lane_busy_seconds_total": Metric("counter", "Busy time of the lanes of all shares", ("lane",)),
    "horologe_lane_wait_seconds": Metric(
        "histogram", "Begin of an operation minus the later of: window start, time at which it was queued", ("lane",)
    ),
    "horologe_model_failures_total": Metric(
        "counter", "Failed operations of a model, by cause: error, crash, hang, restarting", (*MODEL, "cause")
    ),
    "horologe_actions_total": Metric("counter", "Finished actions", ("action", "status")),
    "horologe_device_slowness": Metric(
        "gauge", "Recent EXEC time divided by profiled time (median of ten)", ("worker", "share")
    ),
    "horologe_device_share_percent": Metric(
        "gauge",
        "Sum of the shares of a device that connected workers own, with standby workers",
        ("device", "type"),
    ),
    "horologe_model_dynamic": Metric(
        "gauge", "1 if batches are planned by distributions of execution times that depend on the input, else 0", MODEL
    ),
    "horologe_pages_free": Metric("gauge", "Free 16 MiB pages", ("worker", "share")),
    "horologe_staged_bytes": Metric("gauge", "Bytes of inputs held for workers"),
    "horologe_profiler_samples_total": Metric(
        "counter", "Samples by fate: queued, not_needed (enough similar rows have run), dropped", (*MODEL, "fate")
    ),
    "horologe_profiler_runs_total": Metric("counter", "Samples run alone, by status", (*MODEL, "status")),
    "horologe_profiler_published_total": Metric("counter", "Distributions sent to the controller", MODEL),
    "horologe_profiler_fit_error": Metric(
        "gauge", "Median of |c0 + c1 k l - measured| / measured over recent batches of a model", MODEL
    ),
    "horologe_profiler_queued_samples": Metric("gauge", "Samples that wait for a run"),
    "horologe_tuner_decisions_total": Metric(
        "counter", "Changes of replicas, by pipeline", ("pipeline", "direction", "mode")
    ),
    "horologe_tuner_replicas": Metric("gauge", "Replicas that a plan has at present", ("pipeline", "stage")),
    "horologe_tuner_rate": Metric(
        "gauge", "Highest rate in queries per second of the last check, by window in seconds", ("pipeline", "window")
    ),
    "horologe_tuner_workers": Metric("gauge", "Workers, wanted and running", ("hardware", "state")),
    "horologe_tuner_switches_total": Metric(
        "counter", "Workloads of the sharing plan that switched to another share", ("workload", "reason", "mode")
    ),
    "horologe_tuner_share_percent": Metric(
        "gauge", "Percent of the device that serves a workload of the sharing plan", ("workload", "device")
    ),
    "horologe_tuner_beyond_slo": Metric(
        "gauge", "Part of a workload's requests in the last second that exceeded its SLO or were refused", ("workload",)
    ),
    "horologe_tuner_rehearsals_total": Metric(
        "counter", "Comparisons of schedulers by recent requests: kept, changed, failed", ("result",)
    ),
    "horologe_tuner_rehearsal_served": Metric(
        "gauge", "Part of the requests of the last rehearsal that a scheduler would answer in time", ("candidate",)
    ),
    "horologe_scheduler_active": Metric(
        "gauge", "With controller.scheduler auto: 1 for the scheduler in use, else 0", ("scheduler",)
    ),
    "horologe_scheduler_switches_total": Metric("counter", "Changes to a scheduler (auto)", ("scheduler",)),
    "horologe_tuner_blind": Metric("gauge", "1 while the tuner sees no arrivals and changes nothing", ()),
    "horologe_tuner_scaler_errors_total": Metric("counter", "Calls of the scaler that failed", ()),
    "horologe_profiler_keys": Metric("gauge", "Models x applications x ranges of lengths that have measurements"),
    "horologe_pipeline_open": Metric("gauge", "Open queries of a pipeline", ("pipeline",)),
    "horologe_pipeline_open_limit": Metric(
        "gauge", "Limit of open queries of a pipeline, so that few are dropped behind their first stage", ("pipeline",)
    ),
    "horologe_pipeline_calls_total": Metric("counter", "Calls of a pipeline's driver with outputs", STAGE),
    "horologe_pipeline_drops_total": Metric("counter", "Calls of a pipeline's driver without outputs", STAGE),
    "horologe_pipeline_device_seconds_total": Metric(
        "counter",
        "Device time of a pipeline's finished calls, by result of the query: answered, failed",
        ("pipeline", "result"),
    ),
    "horologe_pipeline_driver_restarts_total": Metric(
        "counter", "Processes of a pipeline's driver that have ended", ("pipeline",)
    ),
    "horologe_application_model_answered_total": Metric("counter", "Predictions for an application", PART),
    "horologe_application_model_missing_total": Metric(
        "counter", "Predictions for an application that were not there in time", PART
    ),
    "horologe_application_model_agreed_total": Metric("counter", "Predictions equal to the application's answer", PART),
    "horologe_application_model_observations_total": Metric("counter", "Predictions with feedback", PART),
    "horologe_application_model_loss_total": Metric(
        "counter", "Sum of the losses of these predictions, each 0 to 1", PART
    ),
    "horologe_messages_dropped_total": Metric(
        "counter", "Messages dropped because their receiver has disconnected, restarted, or does not read"
    ),
    "horologe_clients_rejected_total": Metric(
        "counter", "Client connections closed by the server: another protocol, too many, silent, or not reading answers"
    ),
    "horologe_links_connected": Metric("gauge", "Links to other processes whose handshake is complete"),
    "horologe_links_made_total": Metric("counter", "Completed handshakes, by role of the peer", ("peer",)),
    "horologe_links_lost_total": Metric(
        "counter",
        "Lost links, by reason: closed, silent (no heartbeat), failed (the socket), refused, replaced (by a new one)",
        ("peer", "reason"),
    ),
    "horologe_links_refused_total": Metric("counter", "Refused handshakes and packets: name, version, keys"),
    "horologe_core_faults_total": Metric("counter", "Exceptions in a core, each with a log line"),
}


class MetricsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The endpoint for Prometheus."""

    bind: str = "127.0.0.1:8002"
    """host:port of /metrics, /health and /ready. Empty: off."""


def families(stats: Iterable[Stats]) -> Iterable[Any]:
    """Return the metrics of a process as Prometheus metric families."""
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        UntypedMetricFamily,
    )

    kinds = {"counter": CounterMetricFamily, "cumulative": UntypedMetricFamily, "gauge": GaugeMetricFamily}
    by_name: dict[str, Any] = {}
    for source in stats:
        for (name, *labels), value in list(source.values.items()):
            metric = METRICS[name]
            if name not in by_name:
                by_name[name] = kinds[metric.kind](name, metric.help, labels=metric.labels)
            by_name[name].add_metric(labels, value)
        for (name, *labels), histogram in list(source.histograms.items()):
            metric = METRICS[name]
            if name not in by_name:
                by_name[name] = HistogramMetricFamily(name, metric.help, labels=metric.labels)
            by_name[name].add_metric(labels, *_cumulative(name, histogram))
    return by_name.values()


def _cumulative(name: str, histogram: Histogram) -> tuple[Sequence[tuple[str, float]], float]:
    scale = 1e9 if name.endswith("_seconds") else 1
    buckets, seen = [], 0
    for bound, count in zip((*histogram.bounds, None), histogram.counts, strict=True):
        seen += count
        buckets.append(("+Inf" if bound is None else repr(bound / scale), float(seen)))
    return buckets, histogram.sum / scale


def serve(settings: MetricsSettings, stats: Callable[[], Iterable[Stats]], ready: Callable[[], bool]) -> Any:
    """Serve /metrics, /health and /ready on a thread. Return the server (`shutdown()` ends it), or None if it is off.

    Raises `SettingsError` if the address cannot be bound.
    """
    if not settings.bind:
        return None
    import threading

    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import make_wsgi_app

    from horologe_common.service.metrics_server import MetricsServer
    from horologe_common.service.settings import SettingsError

    class Collector:
        def collect(self) -> Iterable[Any]:
            return families(stats())

    registry = CollectorRegistry()
    registry.register(Collector())
    metrics = make_wsgi_app(registry)

    def app(environ: Any, start: Any) -> Any:
        if (path := environ["PATH_INFO"]) in ("/health", "/ready"):
            start(
                "200 OK" if path == "/health" or ready() else "503 Service Unavailable",
                [("Content-Type", "text/plain")],
            )
            return [b""]
        return metrics(environ, start)

    host, _, port = settings.bind.rpartition(":")
    try:
        server = MetricsServer((host, int(port)), app)
    except OSError as error:
        wanted = "wanted a free address"
        raise SettingsError(f"setting metrics.bind: got {settings.bind}, {wanted}: {error.strerror}") from error
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
