"""Clients that ask again at once after refusals: each gets exactly one answer, and all refusals are counted."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

from harness.model_folders import a_folder
from harness.running_up import Up
from harness.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

WIDTH, CLIENTS, REQUESTS = 25_000, 24, 60
MANIFEST = f"""
runtime = "emulated"
batch_sizes = [1]
slo = "80ms"
inputs = [{{ name = "x", datatype = "FP32", shape = [-1, {WIDTH}] }}]
outputs = [{{ name = "y", datatype = "FP32", shape = [-1, 1] }}]
[emulated]
exec_ms = {{ 1 = 15.0 }}
load_ms = 1
"""
TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, WIDTH], "parameters": {"binary_data_size": 4 * WIDTH}}
HEAD = "POST /v2/models/full/infer HTTP/1.1\r\nHost: h\r\n{}: {}\r\nContent-Length: {}\r\n\r\n"


async def ask_again(host: str, port: int, request: bytes, statuses: Counter[int], ids: Counter[str]) -> None:
    """Send requests, each once the one before is answered. Count the statuses, and the ids of those without a place."""
    reader, writer = await asyncio.open_connection(host, port)
    for _ in range(REQUESTS):
        writer.write(request)
        status_line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines if line)
        body = (await reader.readexactly(int(headers["content-length"]))).decode()
        statuses[int(status_line.split()[1])] += 1
        if status_line.split()[1] == "429":
            assert headers["horologe-status"] == "REFUSED"
            assert int(headers["retry-after"]) >= 1
            ids[headers["horologe-request"] if "deadline: it would end" in body else "other"] += 1
    writer.close()
    await writer.wait_closed()
    assert not await reader.read(), "an answer too many"


def count(up: Up, metric: str) -> float:
    """Return the sum of a metric of the model."""
    _, page = up.get(up.ready["metrics"]["edge"])
    lines = [line for line in page.decode().splitlines() if line.startswith(f'{metric}{{model="full"')]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def test_a_flood_is_answered_once_each_and_counted_by_frontend_and_controller(tmp_path: Path) -> None:
    a_folder(tmp_path / "models", "full", MANIFEST)
    up = Up(tmp_path, "--models", "models", "--no-profiler", "--no-tuner")
    head = json.dumps({"inputs": [TENSOR]}).encode()
    body = head + bytes(4 * WIDTH)
    request = HEAD.format("Inference-Header-Content-Length", len(head), len(body)).encode() + body
    host, port = up.ready["http"].removeprefix("http://").split(":")
    statuses, ids = Counter[int](), Counter[str]()

    async def flood() -> None:
        clients: list[Any] = [ask_again(host, int(port), request, statuses, ids) for _ in range(CLIENTS)]
        await asyncio.gather(*clients)

    try:
        asyncio.run(flood())
        assert sum(statuses.values()) == CLIENTS * REQUESTS
        assert statuses.keys() <= {200, 429, 504}
        assert statuses[200] > 0
        assert statuses[429] > sum(statuses.values()) / 2
        without_place = ids.total() - ids.pop("other", 0)
        assert len(ids) < without_place, "no refusal repeats that of another request"
        until(lambda: without_place <= count(up, "horologe_refused_total") <= statuses[429])
        until(lambda: count(up, "nv_inference_request_failure") == statuses[429] + statuses[504])
    finally:
        code = up.stop(signal.SIGTERM)
    assert code == 0
