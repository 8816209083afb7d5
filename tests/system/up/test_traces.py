"""Traces of a running system arrive at an OpenTelemetry collector."""

from __future__ import annotations

import operator
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from harness import prometheus_server
from harness.model_folders import an_emulated_model
from harness.prometheus_server import MISSING, Prometheus
from harness.running_up import Up
from harness.waiting import until
from horologe import Client

from dashboard_queries import ask  # isort: skip  # its folder is on the path of prometheus_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs horologe[tracing]")

from fakes.otlp_collector import WAIT_S, Collector, attributes

PARENT = "00f067aa0ba902b7"
X = [[1.0] * 4]
NAMES = ["EXEC", "INPUT", "OUTPUT", "predict", "queue"]


def traceparent(number: int) -> str:
    return f"00-{number:032x}-{PARENT}-01"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def up(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    an_emulated_model(folder / "models")
    sets = ("tracing.own_per_second=0", f"tracing.endpoint={collector.endpoint}", f"worker.cache={folder}/cache")
    up = Up(folder, "--split", *(f"--set={text}" for text in sets))
    yield up
    up.stop(signal.SIGTERM)


def test_spans_of_a_request_reach_the_collector(up: Up, collector: Collector) -> None:
    with Client(up.ready["clients"][0]) as client:
        client.predict("pretend", X, timeout=20)
        client.predict("pretend", X, timeout=20, traceparent=traceparent(1))
    assert up.infer("pretend", headers={"traceparent": traceparent(2)})[0] == 200
    for trace_id in (f"{1:032x}", f"{2:032x}"):
        check_trace(collector, trace_id)
    assert {span.trace_id.hex() for _, span in collector.spans} == {f"{1:032x}", f"{2:032x}"}


@pytest.mark.skipif(prometheus_server.BINARY is None, reason=MISSING)
def test_prometheus_stores_the_trace_of_a_latency(up: Up, collector: Collector, tmp_path: Path) -> None:
    """With and without native histograms, of which older servers store the exemplar of the lowest bucket alone."""
    servers = [
        Prometheus(tmp_path / features, up.ready["metrics"], f"--enable-feature={features}")
        for features in ("exemplar-storage", "exemplar-storage,native-histograms")
    ]
    try:
        with Client(up.ready["clients"][0]) as client:
            for context in (traceparent(3), "", ""):
                client.predict("pretend", X, timeout=20, traceparent=context)
        for server in servers:
            exemplar = wait_for_exemplar(server.url, "horologe_request_seconds")
            span = collector.wait_for(exemplar["labels"]["trace_id"], len(NAMES))["predict"][1]
            took_s = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
            assert float(exemplar["value"]) == pytest.approx(took_s)
            assert exemplar["timestamp"] == pytest.approx(span.end_time_unix_nano / 1e9, abs=1)
            until(partial(has_scraped, server.url), WAIT_S, pause_s=0.5)
    finally:
        for server in servers:
            server.stop()


def wait_for_exemplar(prometheus: str, metric: str) -> dict[str, Any]:
    """Return the latest exemplar of a histogram. Its only label is the trace."""
    query = f'{{__name__=~"{metric}|{metric}_bucket"}}'

    def exemplars() -> list[dict[str, Any]]:
        found = ask(prometheus, "query_exemplars", query=query, start=time.time() - 600, end=time.time() + 60)
        return sorted(
            (exemplar for series in found for exemplar in series["exemplars"]), key=operator.itemgetter("timestamp")
        )

    exemplar = until(exemplars, WAIT_S, pause_s=0.2)[-1]
    assert exemplar["labels"].keys() == {"trace_id"}
    return exemplar


def has_scraped(prometheus: str) -> bool:
    """Return whether the last scrape of each process succeeded. On a busy machine one takes longer than its second."""
    return not any(target["lastError"] for target in ask(prometheus, "targets")["activeTargets"])


def check_trace(collector: Collector, trace_id: str) -> None:
    """Assert that the trace has each span, within that of the request, with the predicted time of the EXEC."""
    spans = collector.wait_for(trace_id, len(NAMES))
    resource, request = spans["predict"]
    assert sorted(spans) == NAMES
    assert resource["service.namespace"] == "horologe"
    assert request.parent_span_id.hex() == PARENT
    assert attributes(request)["horologe.status"] == "OK"
    for name, (_, span) in spans.items():
        assert request.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        if name != "predict":
            assert span.parent_span_id == request.span_id
    queue, execution = spans["queue"][1], spans["EXEC"][1]
    assert queue.start_time_unix_nano <= execution.start_time_unix_nano
    assert 0.5 < attributes(execution)["horologe.predicted_ms"] < 1000
