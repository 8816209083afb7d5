"""Dashboards, alerts and pages of metrics on real processes under load, with a real Prometheus.

`DASHBOARD_PICTURES=1 pytest tests/system/up/test_dashboards_live.py` draws docs/dashboards/*.png.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from harness import prometheus_server
from harness.model_folders import an_emulated_model
from harness.pipeline_folders import CHAIN, write_pipelines
from harness.prometheus_server import MISSING, Prometheus
from harness.running_up import Up
from harness.waiting import until
from horologe import Application, AsyncClient, Client
from horologe_common.clock import ms, s
from horologe_common.status import HorologeError
from horologe_planning.envelope import TrafficEnvelope
from horologe_planning.plan import Placement, Plan, encode_plans

import dashboard_queries  # isort: skip  # its folder is on the path of prometheus_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.skipif(prometheus_server.BINARY is None, reason=MISSING),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]
SECONDS = 16.0
"""One second more than `RATE_INTERVAL`."""
MORE_S = 15.0
"""Time within which a panel that has no data yet must have some."""
PATIENCE_S, PAUSE_S = 90.0, 0.2
INTERVAL_S = 0.02
RATE_INTERVAL = "15s"
SLO_MS, TIGHT_MS = 5_000, 0.2
MODELS = ("a", "b", "single")
X = np.zeros((1, 4), np.float32)
STAGES = tuple(Placement(model, model, "cpu", 2, throughput=5_000.0) for model in ("a", "b"))
PLAN = Plan("chain", ms(SLO_MS), 1_000.0, STAGES, TrafficEnvelope((ms(100), s(1)), (1_000, 5_000)))
SHARE = Placement("single", "single", "cpu", 2, percent=50.0, device="device-0", slo_ns=ms(SLO_MS), latency_ns=ms(2))
SHARING = Plan("single", ms(SLO_MS), 100.0, (SHARE,))


class Load:
    """Requests to models, a pipeline and an application, with feedback, from a thread until `stop`."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._stopping = False
        self.answered = 0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    async def _run(self) -> None:
        async with AsyncClient(self._endpoint) as client, asyncio.TaskGroup() as group:
            number = 0
            while not self._stopping:
                number += 1
                group.create_task(self._send(client, number))
                await asyncio.sleep(INTERVAL_S)

    async def _send(self, client: AsyncClient, number: int) -> None:
        inputs = X + number % 50
        try:
            if number % 5 == 0:
                reply = await client.ask("vote", {"x": inputs}, slo_ms=SLO_MS)
                await client.feedback("vote", reply, [0])
            else:
                target = ("chain", *MODELS)[number % 4]
                await client.predict(target, inputs, slo_ms=TIGHT_MS if number % 20 == 1 else SLO_MS)
            self.answered += 1
        except HorologeError:
            pass

    def stop(self) -> None:
        self._stopping = True
        self._thread.join()


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    for model in MODELS:
        an_emulated_model(folder / "models", model, cache="true" if model == "b" else "false")
    write_pipelines(folder / "models" / "pipelines", {"chain": CHAIN}, "5s", "FP32", 4)
    states = {f"HOROLOGE_{name}": str(folder / name) for name in ("WORKER_CACHE", "PROFILER_STATE", "TUNER_STATE")}
    sets = ("frontend.sample_ns=50ms", "worker.pages_bytes=256MiB")
    up = Up(folder, "--split", *(f"--set={text}" for text in sets), **states)
    yield up
    up.stop(signal.SIGTERM)


@pytest.fixture(scope="module")
def prometheus(up: Up) -> Iterator[str]:
    """Yield the URL of a Prometheus that has scraped the system under load."""
    with Client(up.ready["clients"][0]) as client:
        client.declare(Application("vote", ("a", "b"), slo_ms=SLO_MS, default=0.0))
        until(lambda: client.tune("status"), PATIENCE_S, (HorologeError,), PAUSE_S)
        client.tune("apply", encode_plans([PLAN]))
        client.tune("apply", encode_plans([SHARING]), dry_run=True)
    load = Load(up.ready["clients"][0])
    server = Prometheus(up.folder / "prometheus", up.ready["metrics"])
    try:
        time.sleep(SECONDS)
        yield server.url
    finally:
        load.stop()
        server.stop()
        assert load.answered


def empty_queries(url: str) -> list[str]:
    """Return the queries of all panels that have no value."""
    empty = []
    for path in sorted(dashboard_queries.DASHBOARDS.glob("*.json")):
        for panel in dashboard_queries.read_panels(path):
            for query in dashboard_queries.read_queries(panel, RATE_INTERVAL):
                result = dashboard_queries.ask(url, "query", query=query.expression)["result"]
                if not any(float(series["value"][1]) == float(series["value"][1]) for series in result):
                    empty.append(f"{path.stem}: {query.title}: {query.expression}")
    return empty


def test_every_panel_has_data(prometheus: str) -> None:
    end_s = time.monotonic() + MORE_S
    while (empty := empty_queries(prometheus)) and time.monotonic() < end_s:
        time.sleep(1)
    assert not empty, "\n".join(empty)


def test_no_alert_fires_under_normal_load(prometheus: str) -> None:
    alerts = dashboard_queries.ask(prometheus, "alerts")["alerts"]
    assert not [alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"]


def test_draw_dashboards(prometheus: str) -> None:
    if not os.environ.get("DASHBOARD_PICTURES"):
        pytest.skip("DASHBOARD_PICTURES is not set: no pictures are wanted")
    import draw

    now_s = time.time()
    for path in sorted(dashboard_queries.DASHBOARDS.glob("*.json")):
        assert draw.draw(path, prometheus, draw.Span(now_s - SECONDS, now_s), RATE_INTERVAL).exists()


@pytest.mark.skipif(shutil.which("promtool") is None, reason=MISSING)
def test_promtool_has_nothing_to_say_about_any_process(up: Up, prometheus: str) -> None:
    for name, url in up.ready["metrics"].items():
        status, page = up.get(url)
        assert status == 200
        command = ["promtool", "check", "metrics"]
        result = subprocess.run(command, input=page.decode(), capture_output=True, text=True, timeout=30)
        assert (result.returncode, result.stdout, result.stderr) == (0, "", ""), name


def test_native_histograms_arrive(up: Up, prometheus: str, tmp_path: Path) -> None:
    flags = "--enable-feature=native-histograms"
    server = Prometheus(tmp_path / "native", {"frontend": up.ready["metrics"]["frontend"]}, flags)
    try:
        query = "histogram_quantile(0.99, sum(rate(horologe_request_seconds[10s])))"

        def has_data() -> bool:
            result = dashboard_queries.ask(server.url, "query", query=query)["result"]
            return bool(result) and 0 < float(result[0]["value"][1]) < 60

        until(has_data, PATIENCE_S, pause_s=PAUSE_S)
        (target,) = dashboard_queries.ask(server.url, "targets")["activeTargets"]
        assert target["lastError"] == ""
    finally:
        server.stop()
