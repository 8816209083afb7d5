"""Both clients over real sockets, against a frontend that misbehaves on demand."""

from __future__ import annotations

import asyncio
import threading
import time
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import uvloop
import zmq

from fake_frontend import FakeFrontend, echo
from horologe import (
    AsyncClient,
    Cancelled,
    Client,
    HorologeError,
    InvalidInput,
    Lost,
    ProtocolMismatch,
    Refused,
    Unauthenticated,
    UnknownModel,
)
from horologe.transport.dealer import HANDSHAKES
from horologe_common.status import Status
from horologe_common.transport.keys import make_keys, service_keys
from horologe_common.wire import Answer, Cancel, Hello, ModelInfo, Predict
from proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from horologe.transport.blocking_link import Handle

X = np.arange(4, dtype=np.float32).reshape(1, 4)
RUNNERS = {"asyncio": asyncio.run, "uvloop": uvloop.run}


def SILENT(message: Any, buffers: Any) -> list[Any] | None:
    return [] if isinstance(message, Predict) else None


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/f"


@pytest.fixture(params=RUNNERS)
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    return RUNNERS[request.param]


def free_endpoint() -> str:
    context = zmq.Context()
    sock = context.socket(zmq.ROUTER)
    port = sock.bind_to_random_port("tcp://127.0.0.1")
    sock.close(0)
    context.term()
    return f"tcp://127.0.0.1:{port}"


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not come about"
        time.sleep(0.005)


# the blocking client


def test_arrays_in_arrays_out(endpoint: str) -> None:
    with FakeFrontend(endpoint), Client(endpoint) as client:
        assert np.array_equal(client.predict("echo", X, slo_ms=5000), X)
        outputs = client.predict("pair", {"a": [[1.0, 2.0]], "b": [[1, 2, 3]]})
        assert {name: array.dtype.name for name, array in outputs.items()} == {"a": "float32", "b": "int64"}
        reply = client.predict_full("echo", X)
        assert (reply.model, reply.version, reply.batch_size, reply.cached) == ("echo", "1", 1, False)
        many = client.predict_many("echo", [X + at for at in range(100)], timeout=10)
        assert all(np.array_equal(y, X + at) for at, y in enumerate(many))


def test_models_admit_and_describe(endpoint: str) -> None:
    with FakeFrontend(endpoint), Client(endpoint) as client:
        assert [state.spec.name for state in client.models()] == ["echo", "pair", "words"]
        assert client.models("pair")[0].state == "READY"
        assert client.admit("echo", admitted=False)[0].state == "UNAVAILABLE"
        assert client.describe().scheduler == "edf"
        with pytest.raises(UnknownModel, match="nope"):
            client.models("nope")
        with pytest.raises(UnknownModel, match="nope"):
            client.predict("nope", X)


def test_a_signature_is_asked_for_once(endpoint: str) -> None:
    with FakeFrontend(endpoint) as frontend, Client(endpoint) as client:
        for _ in range(3):
            client.predict("echo", X)
        assert len(frontend.named(ModelInfo)) == 1


def test_an_error_names_the_field_and_many_may_return_theirs(endpoint: str) -> None:
    def react(message: Any, buffers: Any) -> Any:
        if isinstance(message, Predict) and message.inputs[0].shape != (1, 4):
            reason = f"input 'x': shape: got {list(message.inputs[0].shape)}, wanted [-1, 4]"
            return [(Answer(message.id, Status.INVALID_INPUT, (), reason), ())]
        return None

    with FakeFrontend(endpoint, react=react), Client(endpoint) as client:
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


def test_without_an_answer_a_request_is_lost_in_time(endpoint: str) -> None:
    with FakeFrontend(endpoint, react=SILENT), Client(endpoint) as client:
        client.models("echo")
        with pytest.raises(Lost, match="no answer came"):
            client.predict("echo", X, slo_ms=30)


def test_without_a_server_a_request_is_lost_in_time(endpoint: str) -> None:
    for nobody in (endpoint, free_endpoint()):
        with Client(nobody) as client, pytest.raises(Lost, match="could not be reached"):
            client.predict("echo", X, slo_ms=30)


def test_a_frontend_that_dies_loses_what_it_had_and_the_next_one_serves(endpoint: str) -> None:
    with Client(endpoint) as client:
        with FakeFrontend(endpoint, react=SILENT) as first:
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


@pytest.mark.parametrize("break_link", [lambda proxy: proxy.inject(b"\xff" * 9), Proxy.mute], ids=["bytes", "silence"])
def test_a_connection_that_libzmq_gives_up_is_made_anew(break_link: Callable[[Proxy], None]) -> None:
    endpoint = free_endpoint()
    port = int(endpoint.rpartition(":")[2])
    with FakeFrontend(endpoint), Proxy(port) as proxy, Client(f"tcp://127.0.0.1:{proxy.port}") as client:
        assert np.array_equal(client.predict("echo", X, timeout=20), X)
        break_link(proxy)
        handle = client.submit("echo", X, timeout=60)
        with pytest.raises(Lost, match="has disconnected"):
            handle.result()
        assert np.array_equal(client.predict("echo", X, timeout=20), X)


def test_a_request_waits_for_a_frontend_within_its_deadline(endpoint: str) -> None:
    frontend = FakeFrontend(endpoint)
    starter = threading.Timer(0.2, frontend.__enter__)
    starter.start()
    with Client(endpoint) as client:
        assert np.array_equal(client.predict("echo", X, timeout=20), X)
    starter.join()
    frontend.stop()


def test_cancelling_a_handle_tells_the_frontend(endpoint: str) -> None:
    with FakeFrontend(endpoint, react=SILENT) as frontend, Client(endpoint) as client:
        client.models()
        handle = client.submit("echo", X, timeout=60)
        until(lambda: bool(client.models()) and bool(frontend.named(Predict)))
        assert handle.cancel()
        assert not handle.cancel()
        with pytest.raises(Cancelled):
            handle.result()
        until(lambda: frontend.named(Cancel) == [Cancel((frontend.named(Predict)[0].id,))])


@pytest.mark.parametrize("protocol", [2])
def test_another_protocol_version_is_said_to_be_so(endpoint: str, protocol: int) -> None:
    with FakeFrontend(endpoint, protocol=protocol), Client(endpoint) as client:
        for _ in range(2):
            with pytest.raises(ProtocolMismatch, match="wanted 2"):
                client.predict("echo", X, timeout=20)


def test_garbage_from_the_server_is_ignored(endpoint: str) -> None:
    def react(message: Any, buffers: Any) -> Any:
        if isinstance(message, Predict):
            return [(b"", ()), (b"\xc1garbage", ()), (Answer(999, 0), ()), echo(message, buffers)]
        return None

    with FakeFrontend(endpoint, react=react), Client(endpoint) as client:
        assert np.array_equal(client.predict("echo", X, timeout=20), X)


def test_closing_from_another_thread_cancels_who_waits(endpoint: str) -> None:
    ends: list[BaseException] = []

    def wait(client: Client) -> None:
        try:
            client.predict("echo", X, timeout=60)
        except HorologeError as error:
            ends.append(error)

    with FakeFrontend(endpoint, react=SILENT) as frontend:
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


def test_closing_ends_what_was_submitted(endpoint: str) -> None:
    with FakeFrontend(endpoint, react=SILENT):
        with Client(endpoint) as client:
            handle = client.submit("echo", X)
        with pytest.raises(Cancelled):
            handle.result()
        assert not handle.cancel()
        with pytest.raises(Cancelled):
            client.models()


def test_large_arrays_travel(endpoint: str) -> None:
    large = np.random.default_rng(1).random((64, 4096)).astype(np.float32)
    with FakeFrontend(endpoint), Client(endpoint) as client:
        assert np.array_equal(client.predict("echo", large, timeout=20), large)


# CURVE


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys")
    return tmp_path / "keys"


def test_with_its_keys_a_client_is_let_in(keys: Path) -> None:
    endpoint = free_endpoint()
    with FakeFrontend(endpoint, keys=keys), Client(endpoint, keys=keys) as client:
        assert np.array_equal(client.predict("echo", X, timeout=20), X)


def test_a_proxy_whose_frontend_restarts_refuses_no_key(keys: Path) -> None:
    """Docker's proxy accepts connections, and closes them while the container does not listen."""
    endpoint = free_endpoint()
    port = int(endpoint.rpartition(":")[2])
    with (
        FakeFrontend(endpoint, keys=keys),
        Proxy(port) as proxy,
        Client(f"tcp://127.0.0.1:{proxy.port}", keys=keys) as client,
    ):
        assert np.array_equal(client.predict("echo", X, timeout=20), X)
        proxy.refuses = True
        proxy.cut()
        until(lambda: proxy.refused > 0)
        handle = client.submit("echo", X, timeout=20)
        until(lambda: proxy.refused > 2 * HANDSHAKES)
        proxy.refuses = False
        assert np.array_equal(handle.result().value, X)


@pytest.mark.parametrize("whose", ["no key at all", "a key nobody knows", "the wrong server's key"])
def test_without_a_valid_key_a_client_is_told_so(keys: Path, whose: str) -> None:
    endpoint = free_endpoint()
    server = service_keys(keys)[0]
    how: dict[str, Any] = {
        "no key at all": {},
        "a key nobody knows": {"server_key": server},
        "the wrong server's key": {"server_key": zmq.curve_keypair()[0], "client_key": zmq.curve_keypair()[1]},
    }[whose]
    with FakeFrontend(endpoint, keys=keys) as frontend, Client(endpoint, **how) as client:
        with pytest.raises(Unauthenticated):
            client.predict("echo", X, timeout=30)
        with pytest.raises(Unauthenticated):
            client.predict("echo", X, timeout=30)
        assert frontend.seen == []


def test_a_key_that_is_none_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="server_key"):
        Client(server_key="short")
    with pytest.raises(HorologeError):
        Client(keys=tmp_path / "nowhere")


# the asynchronous client


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


def test_async_answers_shuffled_among_many_in_flight_find_their_requests(endpoint: str, run: Any) -> None:
    held: list[Any] = []

    def react(message: Any, buffers: Any) -> Any:
        if not isinstance(message, Predict):
            return None
        held.append(echo(message, [bytes(buffer) for buffer in buffers]))
        if len(held) < 50:
            return []
        batch = [held[(7 * at) % 50] for at in range(50)]
        held.clear()
        return batch + batch[:3]

    async def scenario() -> None:
        async with AsyncClient(endpoint) as client:
            results = await asyncio.gather(*(client.predict("echo", X + at, timeout=20) for at in range(500)))
            assert all(np.array_equal(y, X + at) for at, y in enumerate(results))

    with FakeFrontend(endpoint, react=react):
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

    with FakeFrontend(endpoint, react=SILENT) as frontend:
        run(scenario(frontend))


def test_async_without_an_answer_or_a_server_a_request_is_lost(endpoint: str, run: Any) -> None:
    async def scenario(reason: str) -> None:
        async with AsyncClient(endpoint) as client:
            with pytest.raises(Lost, match=reason):
                await client.predict("echo", X, slo_ms=300)

    run(scenario("could not be reached"))
    with FakeFrontend(endpoint, react=SILENT):
        run(scenario("no answer came"))


def test_async_a_frontend_that_dies_loses_what_it_had_and_the_next_one_serves(endpoint: str, run: Any) -> None:
    async def scenario() -> None:
        async with AsyncClient(endpoint) as client:
            with FakeFrontend(endpoint, react=SILENT) as first:
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

    with FakeFrontend(endpoint, react=SILENT):
        run(scenario())


def test_async_more_than_may_be_open_is_refused(endpoint: str, run: Any) -> None:
    async def scenario() -> None:
        async with AsyncClient(endpoint, max_open=11) as client:  # one is the question for the signature
            results = await client.predict_many("echo", [X] * 20, timeout=0.3, return_exceptions=True)
            assert [type(result) for result in results] == [Lost] * 10 + [Refused] * 10

    run(scenario())


def test_async_a_refused_key_is_told_and_a_new_protocol_too(keys: Path, endpoint: str, run: Any) -> None:
    async def scenario(where: str, kind: type[HorologeError]) -> None:
        async with AsyncClient(where) as client:
            with pytest.raises(kind):
                await client.predict("echo", X, timeout=30)

    tcp = free_endpoint()
    with FakeFrontend(tcp, keys=keys):
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
