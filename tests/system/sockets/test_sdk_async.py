"""The asynchronous client over real sockets, in the loops of asyncio and uvloop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import uvloop

from fakes.frontend import FakeFrontend, free_endpoint, stay_silent
from fakes.proxy import Proxy
from harness.waiting import until
from horologe import (
    AsyncClient,
    Cancelled,
    HorologeError,
    InvalidInput,
    Lost,
    ProtocolMismatch,
    Unauthenticated,
    UnknownModel,
)
from horologe_common.transport.keys import make_keys
from horologe_common.wire import Cancel, Hello, Predict

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path


X = np.arange(4, dtype=np.float32).reshape(1, 4)
RUNNERS = {"asyncio": asyncio.run, "uvloop": uvloop.run}


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/f"


@pytest.fixture(params=RUNNERS)
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    return RUNNERS[request.param]


def test_async_arrays_in_arrays_out(endpoint: str, run: Any) -> None:
    async def scenario() -> None:
        async with AsyncClient(endpoint) as client:
            assert np.array_equal(await client.predict("echo", X, slo_ms=5000), X)
            assert (await client.predict_full("echo", X)).exec_ns == 20
            assert set(await client.predict("pair", {"a": [[1.0, 2.0]], "b": [[1, 2, 3]]})) == {"a", "b"}
            assert [state.spec.name for state in await client.models()] == ["echo", "pair", "words"]
            assert (await client.admit("echo", admitted=False))[0].state == "UNAVAILABLE"
            assert (await client.describe()).requests_pending == 0
            with pytest.raises(UnknownModel):
                await client.predict("nope", X)
            values = await client.predict_many("echo", [X, np.ones(1, complex)], return_exceptions=True)
            assert isinstance(values[1], InvalidInput)

    with FakeFrontend(endpoint):
        run(scenario())


def test_async_requests_of_one_turn_leave_in_one_packet(endpoint: str, run: Any) -> None:
    async def scenario(frontend: FakeFrontend) -> None:
        async with AsyncClient(endpoint) as client:
            await client.predict("echo", X)
            before = len(frontend.packets)
            await asyncio.gather(*(client.predict("echo", X) for _ in range(32)))
            assert len(frontend.packets) == before + 1

    with FakeFrontend(endpoint) as frontend:
        run(scenario(frontend))


def test_async_cancelling_the_task_tells_the_frontend(endpoint: str, run: Any) -> None:
    async def scenario(frontend: FakeFrontend) -> None:
        async with AsyncClient(endpoint) as client:
            task = asyncio.create_task(client.predict("echo", X, timeout=60))
            await asyncio.to_thread(until, lambda: bool(frontend.named(Predict)))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(until, lambda: bool(frontend.named(Cancel)))
            assert frontend.named(Cancel)[0].ids == (frontend.named(Predict)[0].id,)

    with FakeFrontend(endpoint, react=stay_silent) as frontend:
        run(scenario(frontend))


def test_async_without_an_answer_or_a_server_a_request_is_lost(endpoint: str, run: Any) -> None:
    async def scenario(reason: str) -> None:
        async with AsyncClient(endpoint) as client:
            with pytest.raises(Lost, match=reason):
                await client.predict("echo", X, slo_ms=300)

    run(scenario("could not be reached"))
    with FakeFrontend(endpoint, react=stay_silent):
        run(scenario("no answer came"))


def test_async_a_frontend_that_dies_loses_what_it_had_and_the_next_one_serves(endpoint: str, run: Any) -> None:
    async def scenario() -> None:
        async with AsyncClient(endpoint) as client:
            with FakeFrontend(endpoint, react=stay_silent) as first:
                request = client.submit("echo", X, timeout=60)
                await asyncio.to_thread(until, lambda: bool(first.named(Predict)))
            with pytest.raises(Lost, match="has disconnected"):
                await request
            waiting = client.submit("echo", X, timeout=20)
            await asyncio.sleep(0.05)
            with FakeFrontend(endpoint) as second:
                assert np.array_equal((await waiting).value, X)
                assert len(second.named(Hello)) == 1

    run(scenario())


def test_async_a_connection_that_libzmq_gives_up_is_made_anew(run: Any) -> None:
    async def scenario() -> None:
        with FakeFrontend(free_endpoint()) as frontend, Proxy(int(frontend.endpoint.rpartition(":")[2])) as proxy:
            async with AsyncClient(f"tcp://127.0.0.1:{proxy.port}") as client:
                assert np.array_equal(await client.predict("echo", X, timeout=20), X)
                proxy.inject(b"\xff" * 9)
                await asyncio.to_thread(until, lambda: not client._session.handshake.is_ready)
                assert np.array_equal(await client.predict("echo", X, timeout=20), X)

    run(scenario())


def test_async_closing_cancels_what_is_open(endpoint: str, run: Any) -> None:
    async def scenario() -> None:
        client = AsyncClient(endpoint)
        request = client.submit("echo", X)
        await asyncio.sleep(0.05)
        await client.close()
        with pytest.raises(Cancelled):
            await request
        with pytest.raises(Cancelled):
            await client.predict("echo", X)
        await client.close()

    with FakeFrontend(endpoint, react=stay_silent):
        run(scenario())


def test_async_a_refused_key_is_told_and_a_new_protocol_too(tmp_path: Path, endpoint: str, run: Any) -> None:
    make_keys(tmp_path / "keys")

    async def scenario(where: str, kind: type[HorologeError]) -> None:
        async with AsyncClient(where) as client:
            with pytest.raises(kind):
                await client.predict("echo", X, timeout=30)

    tcp = free_endpoint()
    with FakeFrontend(tcp, keys=tmp_path / "keys"):
        run(scenario(tcp, Unauthenticated))
    with FakeFrontend(endpoint, protocol=2):
        run(scenario(endpoint, ProtocolMismatch))


def test_an_async_client_belongs_to_one_loop(endpoint: str) -> None:
    async def first(client: AsyncClient) -> None:
        client.submit("echo", X).cancel()

    async def second(client: AsyncClient) -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            await client.predict("echo", X)

    client = AsyncClient(endpoint)
    loops = [asyncio.new_event_loop() for _ in range(2)]
    loops[0].run_until_complete(first(client))
    loops[1].run_until_complete(second(client))
    loops[0].run_until_complete(client.close())
    for loop in loops:
        loop.close()
