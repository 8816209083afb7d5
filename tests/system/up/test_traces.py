"""Traces of a running system arrive at an OpenTelemetry collector."""

from __future__ import annotations

import json
import signal
import time
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

import pytest

from harness import prometheus_server
from harness.model_folders import an_emulated_model
from harness.prometheus_server import MISSING, Prometheus
from harness.running_up import Up
from horologe import Client

from dashboard_queries import ask  # isort: skip  # its folder is on the path of prometheus_server

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs horologe[tracing]")

from fakes.otlp_collector import WAIT_S, Collector, attributes

PARENT = "00f067aa0ba902b7"
NAMES = ["EXEC", "INPUT", "OUTPUT", "predict", "queue"]


def traceparent(number: int) -> str:
    return f"00-{number:032x}-{PARENT}-01"


def test_spans_of_a_request_reach_the_collector(tmp_path: Path) -> None:
    an_emulated_model(tmp_path / "models")
    with Collector() as collector:
        sets = ("tracing.own_per_second=0", f"tracing.endpoint={collector.endpoint}", f"worker.cache={tmp_path}/cache")
        up = Up(tmp_path, "--models", "models", "--split", *(f"--set={text}" for text in sets))
        try:
            with Client(up.ready["clients"][0]) as client:
                client.predict("pretend", [[1.0] * 4], timeout=20)
                client.predict("pretend", [[1.0] * 4], timeout=20, traceparent=traceparent(1))
            post(up.ready["http"], traceparent(2))
            for trace_id in (f"{1:032x}", f"{2:032x}"):
                check_trace(collector, trace_id)
            assert {span.trace_id.hex() for _, span in collector.spans} == {f"{1:032x}", f"{2:032x}"}
        finally:
            up.stop(signal.SIGTERM)


@pytest.mark.skipif(prometheus_server.BINARY is None, reason=MISSING)
def test_prometheus_stores_the_trace_of_a_latency(tmp_path: Path) -> None:
    """In a system with one process for all services but the worker, with and without native histograms."""
    an_emulated_model(tmp_path / "models")
    with Collector() as collector:
        sets = ("tracing.own_per_second=0", f"tracing.endpoint={collector.endpoint}", f"worker.cache={tmp_path}/cache")
        up = Up(tmp_path, "--models", "models", *(f"--set={text}" for text in sets))
        servers = [
            Prometheus(tmp_path / features, up.ready["metrics"], f"--enable-feature={features}")
            for features in ("exemplar-storage", "exemplar-storage,native-histograms")
        ]
        try:
            with Client(up.ready["clients"][0]) as client:
                for context in (traceparent(1), "", ""):
                    client.predict("pretend", [[1.0] * 4], timeout=20, traceparent=context)
            span = collector.wait_for(f"{1:032x}", len(NAMES))["predict"][1]
            took_s = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
            for server in servers:
                exemplar = wait_for_exemplar(server.url, "horologe_request_seconds")
                assert exemplar["labels"] == {"trace_id": f"{1:032x}"}
                assert float(exemplar["value"]) == pytest.approx(took_s)
                assert exemplar["timestamp"] == pytest.approx(span.end_time_unix_nano / 1e9, abs=1)
                wait_for_scrapes(server.url)
        finally:
            for server in servers:
                server.stop()
            up.stop(signal.SIGTERM)


def wait_for_exemplar(prometheus: str, metric: str) -> dict[str, Any]:
    """Return the only exemplar of a histogram."""
    end_s = time.monotonic() + WAIT_S
    query = f'{{__name__=~"{metric}|{metric}_bucket"}}'
    while True:
        now_s = time.time()
        found = ask(prometheus, "query_exemplars", query=query, start=now_s - 600, end=now_s + 60)
        exemplars = [exemplar for series in found for exemplar in series["exemplars"]]
        if exemplars:
            (exemplar,) = exemplars
            return dict(exemplar)
        assert time.monotonic() < end_s, "no exemplar"
        time.sleep(0.2)


def wait_for_scrapes(prometheus: str) -> None:
    """Return once the last scrape of each process succeeded. On a busy machine one takes longer than its second."""
    end_s = time.monotonic() + WAIT_S
    while errors := list(filter(None, (target["lastError"] for target in ask(prometheus, "targets")["activeTargets"]))):
        assert time.monotonic() < end_s, errors
        time.sleep(0.5)


def post(url: str, context: str) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    connection = HTTPConnection(url.removeprefix("http://"), timeout=20)
    headers = {"traceparent": context}
    connection.request("POST", "/v2/models/pretend/infer", json.dumps({"inputs": [tensor]}), headers)
    response = connection.getresponse()
    assert response.status == 200, response.read()
    connection.close()


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
