"""Two selector processes on one Redis behind one frontend: each serves its contexts, and one may be killed."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from bench.service_processes import ServiceProcesses, clients_of, one_of_each
from harness.model_folders import an_emulated_model
from harness.redis_server import RedisServer, a_redis
from horologe import Application, AsyncClient
from horologe_common.application_answers import MARK_BYTES
from horologe_common.status import HorologeError, Lost, Refused, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horologe import Reply

SLO_MS = 10_000.0
"""Long enough for a machine that is busy."""
SETTLE_S = 60
CONTEXTS = [f"user-{number}" for number in range(24)]
APPLICATION = "digits"

server = pytest.fixture(name="server")(a_redis)


@pytest.fixture
def processes(server: RedisServer) -> Iterator[ServiceProcesses]:
    """Run a process for each service, two of the selector. Killed ones are not restarted."""
    an_emulated_model(server.folder / "models", cache="true")
    services = one_of_each(server.folder, 0, frontends=1, workers=1, middle=False)
    for name in ("selector-0", "selector-1"):
        sets = (*services[name].settings, "selector.store=redis", f"selector.redis={server.url}")
        services[name] = services[name]._replace(settings=sets)
    with ServiceProcesses(server.folder, services) as processes:
        yield processes


def rows(number: int) -> Any:
    """Return inputs of class `number % 4`."""
    inputs = np.full((1, 4), number, np.float32)
    inputs[0, number % 4] += 1
    return inputs


async def until_both_serve(client: AsyncClient) -> dict[str, Reply]:
    """Wait until both selectors serve contexts and no context has moved. Return an answer for each context."""
    end, reason, before = time.monotonic() + SETTLE_S, "", dict[str, bytes]()
    declared = False
    while True:
        try:
            if not declared:
                await client.declare(Application(APPLICATION, ("pretend",), policy="static", slo_ms=SLO_MS))
                declared = True
            replies = {context: await client.ask(APPLICATION, rows(1), context=context) for context in CONTEXTS}
            marks = {context: selector_mark_of(reply) for context, reply in replies.items()}
            if len(set(marks.values())) == 2 and marks == before:
                return replies
            reason, before = "one selector serves all contexts", marks
        except HorologeError as error:
            reason = error.reason
        assert time.monotonic() < end, f"the two selectors do not serve: {reason}"
        await asyncio.sleep(0.1)


def selector_mark_of(reply: Reply) -> bytes:
    """Return the mark of the selector that made the prediction."""
    assert reply.prediction_id is not None
    return reply.prediction_id[:MARK_BYTES]


async def load(client: AsyncClient, ends: Counter[int], stop: asyncio.Event) -> None:
    """Send requests to the application and its model in ten sequences until `stop` is set."""

    async def sequence(first: int) -> None:
        number = first
        while not stop.is_set():
            number += 10
            try:
                if number % 2:
                    reply = await client.ask(APPLICATION, rows(number), context=f"user-{number % 24}")
                    assert reply.prediction.tolist() == [number % 4]
                else:
                    y = await client.predict("pretend", rows(number), slo_ms=SLO_MS)
                    np.testing.assert_array_equal(y, rows(number))
            except (Lost, Refused):
                pass
            ends[number] += 1

    await asyncio.gather(*[sequence(first) for first in range(10)])


async def wait_for_requests(ends: Counter[int], count: int) -> None:
    """Wait until `count` more requests have ended."""
    wanted = len(ends) + count
    while len(ends) < wanted:  # noqa: ASYNC110 -- bounded by the scenario
        await asyncio.sleep(0.01)


async def observed(client: AsyncClient, reply: Reply, inputs: Any = None) -> Status:
    try:
        await client.feedback(APPLICATION, reply, 1, inputs=inputs)
    except HorologeError as error:
        return Status(error.status)
    return Status.OK


def test_one_of_two_selectors_may_be_killed_and_the_other_serves_all_requests(
    processes: ServiceProcesses, server: RedisServer
) -> None:
    async def scenario() -> None:
        async with AsyncClient(clients_of(server.folder, 1)) as client:
            before = await until_both_serve(client)
            second = {context: await client.ask(APPLICATION, rows(2), context=context) for context in CONTEXTS}
            assert {context: selector_mark_of(reply) for context, reply in second.items()} == {
                context: selector_mark_of(reply) for context, reply in before.items()
            }, "a context keeps its selector"
            assert [await observed(client, reply) for reply in second.values()] == [Status.OK] * len(CONTEXTS)

            ends, stop = Counter[int](), asyncio.Event()
            task = asyncio.ensure_future(load(client, ends, stop))
            await wait_for_requests(ends, 100)
            processes.stop("selector-0", signal.SIGKILL)
            await wait_for_requests(ends, 200)
            stop.set()
            await asyncio.wait_for(task, SETTLE_S)
            assert set(ends.values()) == {1}

            after = {context: await client.ask(APPLICATION, rows(3), context=context) for context in CONTEXTS}
            (left,) = {selector_mark_of(reply) for reply in after.values()}
            for context, reply in before.items():
                assert selector_mark_of(after[context]) in (left, selector_mark_of(reply))
                forgotten = selector_mark_of(reply) != left
                assert await observed(client, reply) == (Status.MISSING_INPUT if forgotten else Status.OK)
                assert await observed(client, reply, rows(1)) == Status.OK, "predicted again if its selector is lost"
            assert await observed(client, before["user-0"], rows(2)) == Status.INVALID_INPUT

    asyncio.run(asyncio.wait_for(scenario(), 4 * SETTLE_S))
