"""Alerts in a rolling restart of real processes: none fires.

`RECORD_ROLLING_RESTART=1 pytest tests/system/processes/test_rolling_alerts.py` writes tests/rolling_restart.json, which
tests/repository/test_alerts.py plays.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from bench.service_processes import ServiceProcesses, clients_of, one_of_each
from harness import prometheus_server
from harness.model_folders import an_emulated_model
from harness.offered_load import run_beside_load
from harness.prometheus_server import MISSING, RULES, Prometheus
from horologe_cli.local.ports import free_port

from dashboard_queries import ask  # isort: skip  # its folder is on the path of prometheus_server

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

RECORDING = Path(__file__).resolve().parents[2] / "rolling_restart.json"
INTERVAL_S = 5
"""The scrape interval of deploy/prometheus/prometheus.yml."""
STEADY_S, PAUSE_S = 15.0, float(INTERVAL_S)
DOWN_S = 8.0
"""A container takes longer to start than a process. Each process misses a scrape."""
RATE, SLO_MS = 20.0, 20_000.0


def restart_all(processes: ServiceProcesses) -> None:
    """Restart every service, one after the other."""
    time.sleep(STEADY_S)
    for name in processes.services:
        processes.stop(name)
        time.sleep(DOWN_S)
        processes.start(name)
        processes.wait_ready(name)
        time.sleep(PAUSE_S)
    time.sleep(STEADY_S)


def record_series(
    prometheus: str, metrics: Iterable[str], start_s: float, scrapes: int, interval_s: int, instances: Mapping[str, str]
) -> dict[str, str]:
    """Return the values of each series in promtool's notation, one for each scrape from `start_s` on.

    `instances`: names to put in the place of addresses.
    """
    recorded = {}
    for metric in sorted(metrics):
        query = f"{metric}[{scrapes * interval_s}s]"
        for series in ask(prometheus, "query", query=query, time=start_s + scrapes * interval_s)["result"]:
            labels = series["metric"] | {"instance": instances[series["metric"]["instance"]]}
            text = ",".join(f"{name}={json.dumps(labels[name])}" for name in sorted(labels) if name != "__name__")
            values = {int((at_s - start_s) // interval_s): float(value) for at_s, value in series["values"]}
            recorded[f"{metric}{{{text}}}"] = encode_values([values.get(number) for number in range(scrapes)])
    return recorded


def encode_values(values: Sequence[float | None]) -> str:
    """Return values in promtool's notation. None: the scrape failed, which ends the series with a stale marker."""
    words = []
    ended = True
    for value, group in groupby(values):
        count = len(list(group))
        if value is None:
            missing = count if ended else count - 1
            words += [] if ended else ["stale"]
            words += [f"_x{missing}"] if missing else []
        else:
            number = f"{value:.9f}".rstrip("0").rstrip(".")
            words.append(f"{number}x{count - 1}" if count > 1 else number)
        ended = value is None
    return " ".join(words)


@pytest.mark.skipif(not os.environ.get("RECORD_ROLLING_RESTART"), reason="RECORD_ROLLING_RESTART is not set")
@pytest.mark.skipif(prometheus_server.BINARY is None, reason=MISSING)
@pytest.mark.slow
@pytest.mark.timeout(420)
def test_no_alert_fires_while_every_service_restarts(tmp_path: Path) -> None:
    an_emulated_model(tmp_path / "models")
    with ServiceProcesses(tmp_path, one_of_each(tmp_path, free_port("127.0.0.1"))) as processes:
        processes.wait_ready()
        addresses = {name: f"127.0.0.1:{service.port}" for name, service in processes.services.items()}
        targets = {name: f"http://{address}/metrics" for name, address in addresses.items()}
        server = Prometheus(tmp_path / "prometheus", targets, interval_s=INTERVAL_S)
        try:
            start_s = time.time()
            counts = run_beside_load(clients_of(tmp_path), partial(restart_all, processes), RATE, SLO_MS)
            scrapes = int((time.time() - start_s) / INTERVAL_S)
            firing = ask(server.url, "query", query='ALERTS{alertstate="firing"}[10m]')["result"]
            metrics = {"up", *re.findall(r"\b(?:nv|horologe)_\w+", RULES.read_text())}
            instances = {address: name for name, address in addresses.items()}
            series = record_series(server.url, metrics, start_s, scrapes, INTERVAL_S, instances)
        finally:
            server.stop()
    assert [alert["metric"]["alertname"] for alert in firing] == []
    assert counts.keys() == {"OK"}
    ups = {name: values for name, values in series.items() if name.startswith("up{")}
    assert len(ups) == len(processes.services)
    assert all(any(word.startswith("0") for word in values.split()) for values in ups.values())
    if os.environ.get("RECORD_ROLLING_RESTART"):
        RECORDING.write_text(json.dumps({"interval_s": INTERVAL_S, "series": series}, indent=0) + "\n")
