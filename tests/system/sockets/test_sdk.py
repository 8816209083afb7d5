"""The clients of the SDK over real sockets, against a frontend that misbehaves on demand."""

from __future__ import annotations

import asyncio
import threading
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fakes.frontend import FakeFrontend, free_endpoint, stay_silent
from fakes.proxy import Proxy
from harness.waiting import until
from horologe import (
    AsyncClient,
    Cancelled,
    Client,
    HorologeError,
    InvalidInput,
    Lost,
    ProtocolMismatch,
    UnknownModel,
)
from horologe_common.status import Status
from horologe_common.wire import Answer, Cancel, Hello, Predict

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from horologe.transport.blocking_link import Handle

X = np.arange(4, dtype=np.float32).reshape(1, 4)


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/f"


def test_arrays_in_arrays_out(connect: Any, endpoint: str) -> None:
    with FakeFrontend(endpoint), connect(endpoint) as client:
        assert np.array_equal(client.predict("echo", X, slo_ms=5000), X)
        outputs = client.predict("pair", {"a": [[1.0, 2.0]], "b": [[1, 2, 3]]})
        assert {name: array.dtype.name for name, array in outputs.items()} == {"a": "float32", "b": "int64"}
        reply = client.predict_full("echo", X)
        assert (reply.model, reply.version, reply.batch_size, reply.cached) == ("echo", "1", 1, False)
        many = client.predict_many("echo", [X + at for at in range(100)], timeout=10)
        assert all(np.array_equal(y, X + at) for at, y in enumerate(many))


def test_many_requests_are_more_than_may_be_open(connect: Any, endpoint: str) -> None:
    with FakeFrontend(endpoint), connect(endpoint, max_open=8) as client:
        many = client.predict_many("echo", (X + at for at in range(50)), timeout=10)
        assert [int(y[0, 0]) for y in many] == list(range(50))
        with pytest.raises(InvalidInput):
            client.predict_many("echo", (X if at else [[1], [1, 2]] for at in range(50)), timeout=10)


def test_models_admit_and_describe(connect: Any, endpoint: str) -> None:
    with FakeFrontend(endpoint), connect(endpoint) as client:
        assert [state.spec.name for state in client.models()] == ["echo", "pair", "words"]
        assert client.models("pair")[0].state == "READY"
        assert client.admit("echo", admitted=False)[0].state == "UNAVAILABLE"
        assert client.describe().scheduler == "edf"
        with pytest.raises(UnknownModel, match="nope"):
            client.models("nope")
        with pytest.raises(UnknownModel, match="nope"):
            client.predict("nope", X)


def test_an_error_names_the_field_and_many_may_return_theirs(connect: Any, endpoint: str) -> None:
    def react(message: Any, buffers: Any) -> Any:
        if isinstance(message, Predict) and message.inputs[0].shape != (1, 4):
            reason = f"input 'x': shape: got {list(message.inputs[0].shape)}, wanted [-1, 4]"
            return [(Answer(message.id, Status.INVALID_INPUT, (), reason), ())]
        return None

    with FakeFrontend(endpoint, react=react), connect(endpoint) as client:
        with pytest.raises(InvalidInput, match=r"input 'x': shape: got \[4\], wanted \[-1, 4\]"):
            client.predict("echo", X[0])
        values = client.predict_many("echo", [X, X[0], X], return_exceptions=True)
        assert [isinstance(value, InvalidInput) for value in values] == [False, True, False]
        with pytest.raises(InvalidInput):
            client.predict_many("echo", [X, X[0], X])


def test_threads_share_a_client(endpoint: str) -> None:
    wrong: list[Any] = []

    def work(client: Client, base: int) -> None:
        inputs = [X + base + at for at in range(20)]
        wrong.extend(x for x in inputs if not np.array_equal(client.predict("echo", x, timeout=20), x))

    with FakeFrontend(endpoint) as frontend, Client(endpoint) as client:
        threads = [threading.Thread(target=work, args=(client, 1000 * number)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert wrong == []
        assert len(frontend.clients) == 8


def test_a_forked_process_has_a_connection_of_its_own(endpoint: str) -> None:
    def work(client: Client, pending: Handle) -> None:
        assert np.array_equal(client.predict("echo", X + 1, timeout=20), X + 1)
        with pytest.raises(Cancelled):
            pending.result()

    with FakeFrontend(endpoint) as frontend, Client(endpoint) as client:
        client.predict("echo", X, timeout=20)
        child = get_context("fork").Process(target=work, args=(client, client.submit("echo", X, timeout=20)))
        child.start()
        child.join(20)
        child.kill()
        assert child.exitcode == 0
        assert np.array_equal(client.predict("echo", X, timeout=20), X)
        assert len(frontend.clients) == 2


def test_without_an_answer_a_request_is_lost_in_time(connect: Any, endpoint: str) -> None:
    with FakeFrontend(endpoint, react=stay_silent), connect(endpoint) as client:
        client.models("echo")
        with pytest.raises(Lost, match="no answer came"):
            client.predict("echo", X, slo_ms=30)


def test_without_a_server_a_request_is_lost_in_time(connect: Any, endpoint: str) -> None:
    for nobody in (endpoint, free_endpoint()):
        with connect(nobody) as client, pytest.raises(Lost, match="could not be reached"):
            client.predict("echo", X, slo_ms=30)


def test_a_frontend_that_dies_loses_what_it_had_and_the_next_one_serves(connect: Any, endpoint: str) -> None:
    with connect(endpoint) as client:
        with FakeFrontend(endpoint, react=stay_silent) as first:
            handle = client.submit("echo", X, timeout=60)
            killer = threading.Timer(0.1, first.stop)
            killer.start()
            with pytest.raises(Lost, match="has disconnected"):
                handle.result()
            killer.join()
        with FakeFrontend(endpoint) as second:
            assert np.array_equal(client.predict("echo", X, timeout=20), X)
            assert len(second.named(Hello)) == 1
            assert isinstance(second.seen[0], Hello)


def test_a_request_that_may_run_twice_survives_its_frontend(connect: Any, endpoint: str) -> None:
    first, second = FakeFrontend(endpoint, react=stay_silent), FakeFrontend(endpoint)

    def replace() -> None:
        until(lambda: first.named(Predict))
        first.stop()
        second.__enter__()

    with first, connect(endpoint) as client:
        handle = client.submit("echo", X, timeout=30, idempotent=True)
        replacer = threading.Thread(target=replace)
        replacer.start()
        assert np.array_equal(handle.result().value, X)
        replacer.join()
        second.stop()


@pytest.mark.parametrize("break_link", [lambda proxy: proxy.inject(b"\xff" * 9), Proxy.mute], ids=["bytes", "silence"])
def test_a_connection_that_libzmq_gives_up_is_made_anew(connect: Any, break_link: Callable[[Proxy], None]) -> None:
    endpoint = free_endpoint()
    port = int(endpoint.rpartition(":")[2])
    with FakeFrontend(endpoint), Proxy(port) as proxy, connect(f"tcp://127.0.0.1:{proxy.port}") as client:
        assert np.array_equal(client.predict("echo", X, timeout=20), X)
        break_link(proxy)
        handle = client.submit("echo", X, timeout=60)
        with pytest.raises(Lost, match="has disconnected"):
            handle.result()
        assert np.array_equal(client.predict("echo", X, timeout=20), X)


def test_a_request_waits_for_a_frontend_within_its_deadline(connect: Any, endpoint: str) -> None:
    frontend = FakeFrontend(endpoint)
    starter = threading.Timer(0.2, frontend.__enter__)
    starter.start()
    with connect(endpoint) as client:
        assert np.array_equal(client.predict("echo", X, timeout=20), X)
    starter.join()
    frontend.stop()


def test_cancelling_a_handle_tells_the_frontend(endpoint: str) -> None:
    with FakeFrontend(endpoint, react=stay_silent) as frontend, Client(endpoint) as client:
        client.models()
        handle = client.submit("echo", X, timeout=60)
        until(lambda: bool(client.models()) and bool(frontend.named(Predict)))
        assert handle.cancel()
        assert not handle.cancel()
        with pytest.raises(Cancelled):
            handle.result()
        until(lambda: frontend.named(Cancel) == [Cancel((frontend.named(Predict)[0].id,))])


def test_another_protocol_version_is_said_to_be_so(connect: Any, endpoint: str) -> None:
    with FakeFrontend(endpoint, protocol=2), connect(endpoint) as client:
        for _ in range(2):
            with pytest.raises(ProtocolMismatch, match="wanted 2"):
                client.predict("echo", X, timeout=20)


def test_closing_from_another_thread_cancels_who_waits(endpoint: str) -> None:
    ends: list[BaseException] = []

    def wait(client: Client) -> None:
        try:
            client.predict("echo", X, timeout=60)
        except HorologeError as error:
            ends.append(error)

    with FakeFrontend(endpoint, react=stay_silent) as frontend:
        client = Client(endpoint)
        thread = threading.Thread(target=wait, args=(client,))
        thread.start()
        until(lambda: bool(frontend.named(Predict)))
        client.close()
        thread.join(10)
        assert [type(end) for end in ends] == [Cancelled]
        for _ in range(2):
            with pytest.raises(Cancelled):
                client.predict("echo", X)
            client.close()


def test_closing_ends_what_was_submitted(connect: Any, endpoint: str) -> None:
    with FakeFrontend(endpoint, react=stay_silent):
        with connect(endpoint) as client:
            handle = client.submit("echo", X)
        with pytest.raises(Cancelled):
            handle.result()
        assert not handle.cancel()
        with pytest.raises(Cancelled):
            client.models()


def test_large_arrays_travel(connect: Any, endpoint: str) -> None:
    large = np.random.default_rng(1).random((64, 4096)).astype(np.float32)
    with FakeFrontend(endpoint), connect(endpoint) as client:
        assert np.array_equal(client.predict("echo", large, timeout=20), large)


def test_async_requests_of_one_turn_leave_in_one_packet(endpoint: str) -> None:
    async def scenario(frontend: FakeFrontend) -> None:
        async with AsyncClient(endpoint) as client:
            await client.predict("echo", X)
            before = len(frontend.packets)
            await asyncio.gather(*(client.predict("echo", X) for _ in range(32)))
            assert len(frontend.packets) == before + 1

    with FakeFrontend(endpoint) as frontend:
        asyncio.run(scenario(frontend))


def test_async_cancelling_the_task_tells_the_frontend(endpoint: str) -> None:
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
        asyncio.run(scenario(frontend))


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
