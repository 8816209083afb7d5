"""Reactors in threads, each with a core that keeps what it receives, for tests of links with real sockets."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
import zmq

from horologe_common.core.protocol import Out, PeerConnected
from horologe_common.transport.keys import load_keys
from horologe_common.transport.links import Links
from horologe_common.transport.reactor import Reactor
from horologe_common.transport.sockets import LinkSettings
from horologe_common.wire import AnyMessage, Envelope, Ping, Pong, Predict, decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from horologe_common.core.protocol import Buffer


class Probe:
    """A core that keeps what it hears, and answers pings."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.out: list[Out] = []
        self.heard: list[tuple[str, Any]] = []
        self.news = threading.Condition()

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        with self.news:
            self.heard.append((sender, message))
            self.news.notify_all()
        if isinstance(message, Ping):
            self.out.append(Out(sender, Pong(message.sent_ns, now_ns)))
        if isinstance(message, Predict) and message.model == "fault":
            raise RuntimeError("asked for")

    def tick(self, now_ns: int) -> None:
        """Nothing to decide."""

    def wakeup_ns(self) -> int | None:
        return None

    def of_kind(self, kind: type[Any]) -> list[Any]:
        """Return the messages of a kind."""
        return [message for _, message in self.heard if isinstance(message, kind)]

    def wait_for(self, kind: type[Any], count: int = 1) -> list[Any]:
        """Return the messages of a kind, once there are so many."""
        assert self.hears(kind, count, 10), self.heard
        return self.of_kind(kind)

    def hears(self, kind: type[Any], count: int, timeout_s: float) -> bool:
        """Wait until there are so many messages of a kind. Return whether there are."""
        with self.news:
            return self.news.wait_for(lambda: len(self.of_kind(kind)) >= count, timeout_s)


class Running:
    """A reactor in a thread."""

    def __init__(self, role: str, settings: LinkSettings, clients: tuple[str, ...], follows: bool, number: str) -> None:
        self.links = Links(f"{role}/{number}", "host", settings, clients)
        self.core = Probe(self.links.address(role, number))
        self.reactor = Reactor([self.core], self.links)
        self.links.open([self.core.address], self.core.address if clients else "", follows)
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        asyncio.get_running_loop().call_soon(self._started.set)
        await self.reactor.serve()

    def stop(self) -> None:
        if self._thread.is_alive():
            self.signal()
            self.join()

    def signal(self) -> None:
        """Do what SIGTERM does: the first one drains, a second one stops at once."""
        self._started.wait(10)
        self.reactor.loop.call_soon_threadsafe(self.reactor.stop)

    def join(self) -> None:
        """Wait until the reactor has ended."""
        self._thread.join(10)
        assert not self._thread.is_alive()

    def say(self, to: str, message: AnyMessage, buffers: Sequence[Buffer] = ()) -> None:
        """Have the core put out a message."""
        self._started.wait(10)
        self.core.out.append(Out(to, message, buffers))
        self.reactor.post_threadsafe("test", self.core.address, None)

    def break_dealers(self, operation: str) -> None:
        """Let an operation fail on every socket that has connected, as if its descriptor were invalid."""
        for sock in self.links._sockets.monitors:
            if sock.type == zmq.DEALER:
                setattr(sock, operation, _fail)


@pytest.fixture(autouse=True)
def no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads cannot take signals, and these tests stop their reactors themselves."""
    monkeypatch.setattr("asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler", lambda *_: None)


@pytest.fixture
def start() -> Iterator[Any]:
    running: list[Running] = []

    def begin(
        role: str, *, clients: tuple[str, ...] = (), follows: bool = False, number: str = "0", **link: Any
    ) -> Running:
        running.append(Running(role, LinkSettings(**{"allow_open": True} | link), clients, follows, number))
        return running[-1]

    yield begin
    for one in running:
        one.stop()


@pytest.fixture
def pair(start: Any, tmp_path: Path) -> Callable[..., tuple[Running, Running]]:
    """A function that starts a controller, and a worker with a link to it. Settings are those of the worker."""

    def begin(scheme: str = "ipc", **link: Any) -> tuple[Running, Running]:
        endpoint = f"{scheme}://{tmp_path}/c"
        left, right = start("controller", bind=(endpoint,)), start("worker", connect=(endpoint,), **link)
        for end in (left, right):
            end.core.wait_for(PeerConnected)
        return left, right

    return begin


def _fail(*_: Any, **__: Any) -> None:
    raise zmq.ZMQError(zmq.ENOTSOCK)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    """A raw DEALER at `endpoint`, with keys if given."""
    context = zmq.Context()
    sockets = []

    def connect(endpoint: str, keys: Path | None = None, holder: str = "clients/client") -> zmq.Socket[bytes]:
        sock = context.socket(zmq.DEALER)
        sock.setsockopt(zmq.LINGER, 0)
        sock.setsockopt(zmq.RCVTIMEO, 5000)
        if keys:
            sock.curve_serverkey = load_keys(keys / "service" / "service.key_secret")[0]
            sock.curve_publickey, sock.curve_secretkey = load_keys(keys / f"{holder}.key_secret")
        sock.connect(endpoint)
        sockets.append(sock)
        return sock

    yield connect
    for sock in sockets:
        sock.close()
    context.term()


def packet(*messages: AnyMessage) -> bytes:
    return encode([Envelope("", "", list(messages))])


def reply(sock: zmq.Socket[bytes]) -> Any:
    return decode(sock.recv_multipart()[0])[0].messages[0]
