"""Three times the capacity with everything at once: models, a pipeline, an application with feedback, and reloads.

Two clients of the SDK and two of HTTP send Poisson arrivals. Before, one client of the SDK alone sends as much. Every
answer must repeat the number of its request; the mean of an application does so unless a model's answer is missing.
The exit code is 1 if an answer is wrong, comes twice or not at all, or if the four clients together get less than
`GOODPUT` of what the client alone gets.

    python benchmarks/mixed_overload.py --json overload.json     # 8 minutes, and 2 minutes alone
    python benchmarks/mixed_overload.py --minutes 1
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import uvloop

from bench.emulated_model import write_echo_model
from bench.horologe_server import Launch, start_horologe
from bench.outcomes import Outcomes
from bench.report import end_with
from bench.warm_up import warm_up
from horologe import Application, AsyncClient
from horologe_common.status import HorologeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.horologe_server import RunningHorologe

GOODPUT = 0.95
LOAD, CAPACITY = 3.0, 200.0
"""Two workers, batches of 8 in 80 ms."""
EXEC_MS = {1: 32.0, 2: 40.0, 4: 56.0, 8: 80.0}
SLO_MS, GRACE_MS = 400.0, 250.0
KINDS = ("model",) * 6 + ("pipeline",) * 2 + ("application",) * 2
RELOAD_S = 2.0
HTTP_HOSTS = ("127.0.0.1", "127.0.0.2")
"""Local addresses of the HTTP clients. Each address is a client."""
HTTP_CONNECTIONS = 128
DRIVER = '''"""Answer what the model answers."""


async def run(call, inputs):
    return {"y": (await call("echo-a", {"x": inputs["x"]}))["y"]}
'''
PIPELINE = """[twice]
slo = "400ms"
inputs = [{ name = "x", datatype = "FP32", shape = [-1, 1] }]
outputs = [{ name = "y", datatype = "FP32", shape = [-1, 1] }]
"""
APPLICATION = Application("mean", ("echo-a", "echo-b"), SLO_MS, task="regression", policy="average", cache=False)
MODELS = ("echo-a", "echo-b")


class SdkSender:
    """Sends over a connection of the SDK."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def send(self, kind: str, value: float) -> float:
        """Send `value` and return the answer. Raises `HorologeError`."""
        x = np.full((1, 1), value, np.float32)
        if kind == "application":
            reply = await self._client.ask("mean", x, slo_ms=SLO_MS)
            with contextlib.suppress(HorologeError):
                await self._client.feedback("mean", reply, value)
            return value if reply.missing else float(np.ravel(reply.prediction)[0])
        name = "twice" if kind == "pipeline" else MODELS[int(value) % 2]
        return float(np.ravel(await self._client.predict(name, x, slo_ms=SLO_MS))[0])


class HttpSender:
    """Sends over HTTP connections from one local address."""

    def __init__(self, url: str, host: str) -> None:
        parts = urlsplit(url)
        self._server = parts.hostname or "", parts.port or 80
        self._host = host
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._limit = asyncio.Semaphore(HTTP_CONNECTIONS)
        self.twice = 0
        """Responses that nobody waited for."""

    async def send(self, kind: str, value: float) -> float:
        """Send `value` and return the answer. Raises `HorologeError` with the status of the response."""
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [value]}
        body = json.dumps({"parameters": {"slo_ms": SLO_MS}, "inputs": [tensor]}).encode()
        if kind == "application":
            answer = await self._post("/v1/applications/mean/predict", body)
            return value if answer["missing"] else float(answer["prediction"][0])
        name = "twice" if kind == "pipeline" else MODELS[int(value) % 2]
        answer = await self._post(f"/v2/models/{name}/infer", body)
        return float(answer["outputs"][0]["data"][0])

    async def _post(self, path: str, body: bytes) -> Any:
        async with self._limit:
            reader, writer = connection = await self._open_connection()
            try:
                head = f"POST {path} HTTP/1.1\r\nHost: benchmark\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                answer_head = (await reader.readuntil(b"\r\n\r\n")).decode()
                fields = dict(line.lower().split(": ", 1) for line in answer_head.split("\r\n")[1:] if ": " in line)
                content = json.loads(await reader.readexactly(int(fields["content-length"])))
            except BaseException:
                writer.close()
                raise
            self.twice += len(getattr(reader, "_buffer", b"")) > 0
            self._idle.append(connection)
        code = int(answer_head.split(" ", 2)[1])
        if code != 200:
            raise HorologeError(f"{code} {content}")
        return content

    async def _open_connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return an idle connection that the server has not closed meanwhile, or a new one."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof():
                return reader, writer
            writer.close()
        return await asyncio.open_connection(*self._server, local_addr=(self._host, 0))

    def close(self) -> None:
        """Close the idle connections."""
        for _, writer in self._idle:
            writer.close()


class MixedLoad:
    """Poisson arrivals of several senders, each with requests of all kinds."""

    def __init__(self, seed: int) -> None:
        self.outcomes = Outcomes()
        self.by_client: Counter[int] = Counter()
        self._random = random.Random(seed)

    async def run(self, senders: Sequence[SdkSender | HttpSender], seconds: float) -> None:
        """Send three times the capacity, and wait for the answers."""
        tasks: set[asyncio.Future[None]] = set()
        next_s = begin_s = self.outcomes.now_s()
        while next_s < begin_s + seconds:
            next_s += self._random.expovariate(LOAD * CAPACITY)
            await asyncio.sleep(max(0.0, next_s - self.outcomes.now_s()))
            number, client = self.outcomes.sent, self._random.randrange(len(senders))
            self.outcomes.sent += 1
            task = asyncio.ensure_future(self._ask(senders[client], client, number))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        if tasks:
            await asyncio.wait(tasks, timeout=10 * (SLO_MS + GRACE_MS) / 1000)

    async def _ask(self, sender: SdkSender | HttpSender, client: int, number: int) -> None:
        outcomes, kind = self.outcomes, self._random.choice(KINDS)
        value = float(1 + number % (1 << 20))
        try:
            answer = await sender.send(kind, value)
        except HorologeError as error:
            outcomes.statuses[number] = type(error).__name__
            outcomes.reasons[str(error)[:60]] += 1
        except (OSError, EOFError, asyncio.IncompleteReadError) as error:
            outcomes.statuses[number] = "NO ANSWER"
            outcomes.reasons[repr(error)[:60]] += 1
        else:
            outcomes.statuses[number] = "OK"
            self.by_client[client] += 1
            if abs(answer - value) > 1e-3 * value:
                outcomes.wrong.append(f"{kind} {number}: got {answer}, wanted {value}")


async def reload_models(client: AsyncClient, reloads: Counter[str]) -> None:
    """Load a model again every few seconds, until cancelled."""
    while True:
        for model in MODELS:
            await asyncio.sleep(RELOAD_S)
            try:
                await client.admit(model, timeout=60)
                reloads["READY"] += 1
            except HorologeError as error:
                reloads[error.status.name] += 1


async def send_load(server: RunningHorologe, minutes: float, seed: int, alone: bool) -> dict[str, Any]:
    """Return the outcomes of one client alone, or of two clients of the SDK and two of HTTP."""
    load, reloads = MixedLoad(seed), Counter[str]()
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncClient(server.sdk, grace_ms=GRACE_MS)) for _ in range(3)]
        manager, *others = clients
        if alone:
            others = others[:1]
        for number, client in enumerate(others):
            load.outcomes.count_answers(number, client)
        web = [] if alone else [HttpSender(server.http, host) for host in HTTP_HOSTS]
        task = asyncio.ensure_future(reload_models(manager, reloads))
        await load.run([*map(SdkSender, others), *web], 60 * minutes)
        task.cancel()
        for sender in web:
            sender.close()
    violations = load.outcomes.violations()
    violations["twice"] += sum(sender.twice for sender in web)
    violations["no answer"] = sum(status == "NO ANSWER" for status in load.outcomes.statuses.values())
    return {
        "requests": load.outcomes.sent,
        "goodput": sum(load.by_client.values()) / (60 * minutes),
        "by client": dict(sorted(load.by_client.items())),
        "statuses": dict(Counter(load.outcomes.statuses.values())),
        "reasons": dict(load.outcomes.reasons.most_common(10)),
        "reloads": dict(reloads),
        "wrong": load.outcomes.wrong[:5],
        "violations": violations,
    }


def measure(minutes: float, warm_up_s: float, seed: int) -> dict[str, Any]:
    """Start a system, warm it up, and send both loads."""
    with tempfile.TemporaryDirectory() as folder:
        for model in MODELS:
            write_echo_model(Path(folder), model, 1, EXEC_MS, 3)
        pipelines = Path(folder, "pipelines")
        pipelines.mkdir()
        (pipelines / "pipeline.toml").write_text(PIPELINE)
        (pipelines / "twice.py").write_text(DRIVER)
        with start_horologe(Launch(Path(folder), workers=2)) as server:
            uvloop.run(_declare(server))
            warm_up("mixed overload", server, warm_up_s)
            alone = uvloop.run(send_load(server, minutes / 4, seed, alone=True))
            together = uvloop.run(send_load(server, minutes, seed + 1, alone=False))
    ratio = together["goodput"] / alone["goodput"] if alone["goodput"] else 0.0
    violations = {name: count + alone["violations"][name] for name, count in together["violations"].items()}
    violations["goodput below one client's"] = int(ratio < GOODPUT)
    return {"alone": alone, "together": together, "together / alone": ratio, "violations": violations}


async def _declare(server: RunningHorologe) -> None:
    async with AsyncClient(server.sdk) as client:
        await client.declare(APPLICATION)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--warm-up", type=float, default=120.0, help="seconds of mixed traffic before")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result")
    options = parser.parse_args()
    end_with(measure(options.minutes, options.warm_up, options.seed), options.json)


if __name__ == "__main__":
    main()
