"""Every metric by name, the plain counters that cores keep, and their export to Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from horologe_common.core.counters import Stats
    from horologe_common.latency import Histogram


class Metric(NamedTuple):
    """`kind`: counter, gauge or histogram; cumulative is a counter under Triton's name, which lacks `_total`."""

    kind: str
    help: str
    labels: tuple[str, ...] = ()


MODEL = ("model", "version")
PART = ("application", "model")

METRICS: dict[str, Metric] = {
    "nv_inference_request_success": Metric("cumulative", "Requests answered OK", MODEL),
    "nv_inference_request_failure": Metric("cumulative", "Requests not answered OK, by reason", (*MODEL, "reason")),
    "nv_inference_count": Metric("cumulative", "Rows executed", MODEL),
    "nv_inference_exec_count": Metric("cumulative", "Batches executed", MODEL),
    "nv_inference_request_duration_us": Metric("cumulative", "Cumulative time from arrival to answer", MODEL),
    "nv_inference_queue_duration_us": Metric("cumulative", "Cumulative time from arrival to execution", MODEL),
    "nv_inference_compute_infer_duration_us": Metric("cumulative", "Cumulative execution time of batches", MODEL),
    "nv_inference_pending_request_count": Metric("gauge", "Requests waiting for execution", MODEL),
    "nv_cache_num_hits_per_model": Metric("cumulative", "Prediction cache hits", MODEL),
    "nv_cache_num_misses_per_model": Metric("cumulative", "Prediction cache misses", MODEL),
    "horologe_request_seconds": Metric("histogram", "Arrival to answer at the frontend", MODEL),
    "horologe_slack_seconds": Metric("histogram", "Deadline less answer time, of requests answered in time", MODEL),
    "horologe_application_requests_total": Metric(
        "counter", "Requests of an application, by how they ended", ("application", "status")
    ),
    "horologe_application_defaulted_total": Metric(
        "counter", "Requests of which a row was answered by the declared default", ("application",)
    ),
    "horologe_application_request_seconds": Metric("histogram", "Arrival to answer at the frontend", ("application",)),
    "horologe_refused_total": Metric("counter", "Requests refused by the controller, by reason", (*MODEL, "reason")),
    "horologe_batch_rows": Metric("histogram", "Rows in a batch", MODEL),
    "horologe_prediction_error_seconds": Metric("histogram", "Actual less expected duration", ("action", "side")),
    "horologe_completion_error_seconds": Metric(
        "histogram", "End of an action less the end predicted when it was planned", ("action", "side")
    ),
    "horologe_start_error_seconds": Metric(
        "histogram", "EXEC begin less the latest of window start, end of the EXEC before it and arrival of its inputs"
    ),
    "horologe_lane_operations_total": Metric(
        "counter", "Operations that ended: load, unload (on the lane of load), input, exec, output", ("lane", "status")
    ),
    "horologe_lane_busy_seconds_total": Metric("counter", "Time spent on operations, all shares together", ("lane",)),
    "horologe_lane_wait_seconds": Metric(
        "histogram", "Begin of an operation less the later of window start and its being given to the lane", ("lane",)
    ),
    "horologe_actions_total": Metric("counter", "Finished actions", ("action", "status")),
    "horologe_device_slowness": Metric(
        "gauge", "How many times as long as profiled EXECs lately took (median of ten)", ("worker", "share")
    ),
    "horologe_pages_free": Metric("gauge", "Free 16 MiB pages", ("worker", "share")),
    "horologe_staged_bytes": Metric("gauge", "Tensors held for workers"),
    "horologe_profiler_samples_total": Metric(
        "counter", "Samples by fate: queued, not_needed (enough similar rows have run), dropped", (*MODEL, "fate")
    ),
    "horologe_profiler_runs_total": Metric("counter", "Samples run alone, by how it ended", (*MODEL, "status")),
    "horologe_profiler_published_total": Metric("counter", "Distributions told the controller", MODEL),
    "horologe_profiler_fit_error": Metric(
        "gauge", "Median of |c0 + c1 k l - measured| / measured over what a model's batches lately took", MODEL
    ),
    "horologe_profiler_queued_samples": Metric("gauge", "Samples that wait for a run"),
    "horologe_profiler_keys": Metric("gauge", "Models x applications x ranges of lengths that have measurements"),
    "horologe_application_model_answered_total": Metric("counter", "Predictions for an application", PART),
    "horologe_application_model_missing_total": Metric("counter", "Models that were asked and not there in time", PART),
    "horologe_application_model_agreed_total": Metric("counter", "Predictions equal to the application's answer", PART),
    "horologe_application_model_observations_total": Metric("counter", "Predictions that feedback has judged", PART),
    "horologe_application_model_loss_total": Metric("counter", "Loss of these predictions, each 0 to 1", PART),
    "horologe_messages_dropped_total": Metric("counter", "Messages without a route (receiver has left or restarted)"),
    "horologe_core_faults_total": Metric("counter", "Exceptions in a core, each with a log line"),
}


class MetricsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where Prometheus scrapes."""

    bind: str = "127.0.0.1:8002"
    """host:port of /metrics and /health; empty: none."""


def families(stats: Iterable[Stats]) -> Iterable[Any]:
    """The stats of a process as Prometheus metric families."""
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        UntypedMetricFamily,
    )

    kinds = {"counter": CounterMetricFamily, "cumulative": UntypedMetricFamily, "gauge": GaugeMetricFamily}
    found: dict[str, Any] = {}
    for source in stats:
        for (name, *labels), value in list(source.values.items()):
            metric = METRICS[name]
            if name not in found:
                found[name] = kinds[metric.kind](name, metric.help, labels=metric.labels)
            found[name].add_metric(labels, value)
        for (name, *labels), histogram in list(source.histograms.items()):
            metric = METRICS[name]
            if name not in found:
                found[name] = HistogramMetricFamily(name, metric.help, labels=metric.labels)
            found[name].add_metric(labels, *_cumulative(name, histogram))
    return found.values()


def _cumulative(name: str, histogram: Histogram) -> tuple[Sequence[tuple[str, float]], float]:
    scale = 1e9 if name.endswith("_seconds") else 1
    buckets, seen = [], 0
    for bound, count in zip((*histogram.bounds, None), histogram.counts, strict=True):
        seen += count
        buckets.append(("+Inf" if bound is None else repr(bound / scale), float(seen)))
    return buckets, histogram.sum / scale


def serve(settings: MetricsSettings, stats: Callable[[], Iterable[Stats]], live: Callable[[], bool]) -> Any:
    """Serve /metrics and /health from a thread of its own; returns the server (`shutdown()` ends it), None if off.

    Raises `SettingsError` for an address that cannot be had.
    """
    if not settings.bind:
        return None
    import threading
    from wsgiref.simple_server import WSGIRequestHandler, make_server

    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import make_wsgi_app

    from horologe_common.service.settings import SettingsError

    class Quiet(WSGIRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Scrapes are not news."""

    class Collector:
        def collect(self) -> Iterable[Any]:
            return families(stats())

    registry = CollectorRegistry()
    registry.register(Collector())
    metrics = make_wsgi_app(registry)

    def app(environ: Any, start: Any) -> Any:
        if environ["PATH_INFO"] == "/health":
            start("200 OK" if live() else "503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b""]
        return metrics(environ, start)

    host, _, port = settings.bind.rpartition(":")
    try:
        server = make_server(host, int(port), app, handler_class=Quiet)
    except OSError as error:
        wanted = "wanted an address that is free"
        raise SettingsError(f"setting metrics.bind: got {settings.bind}, {wanted}: {error.strerror}") from error
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
