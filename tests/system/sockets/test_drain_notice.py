"""SIGTERM: the notice, in which load balancers notice (`links.notice_ns`), and the clients of a draining process."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
import zmq

from harness.waiting import until
from horologe_cli.local.ports import free_port
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerConnected
from horologe_common.transport.keys import load_keys, make_keys
from horologe_common.wire import PROTOCOL, Envelope, Hello, Ping, Pong, Welcome, decode, encode

if TYPE_CHECKING:
    from pathlib import Path

    from system.reactors import Running


class Drain:
    """A core's drain, which ends when `finished` is set."""

    def __init__(self, running: Running) -> None:
        self.begun, self.finished = threading.Event(), threading.Event()
        for name, method in (("drain", self.begun.set), ("drained", self.finished.is_set)):
            setattr(running.core, name, method)


def test_a_process_accepts_connections_and_works_until_the_notice_is_over(start: Any, tmp_path: Path) -> None:
    service = start("controller", bind=(f"unix://{tmp_path}/c",), notice_ns=s(60), drain_ns=s(60))
    drain = Drain(service)
    service.signal()
    until(lambda: service.reactor.is_stopping)
    peer = start("worker", connect=(f"unix://{tmp_path}/c",))
    peer.core.wait_for(PeerConnected)
    peer.say(service.core.address, Ping(3))
    assert peer.core.wait_for(Pong)[0].sent_ns == 3
    assert not drain.begun.is_set()
    assert not service.reactor.draining.is_set()
    service.stop()  # a second signal ends it at once


@pytest.mark.parametrize("notice_ns", [0, ms(50)])
def test_the_drain_begins_after_the_notice(start: Any, tmp_path: Path, notice_ns: int) -> None:
    service = start("controller", bind=(f"unix://{tmp_path}/c",), notice_ns=notice_ns, drain_ns=s(60))
    drain = Drain(service)
    service.signal()
    assert drain.begun.wait(10)
    assert service.reactor.draining.is_set()
    assert service.reactor.is_running
    drain.finished.set()
    service.join()


def test_the_notice_is_a_part_of_the_time_to_drain(start: Any, tmp_path: Path) -> None:
    service = start("controller", bind=(f"unix://{tmp_path}/c",), notice_ns=s(3600), drain_ns=ms(50))
    drain = Drain(service)
    service.signal()
    service.join()
    assert drain.begun.is_set()
    assert not drain.finished.is_set()


def test_a_core_has_its_clients_before_it_is_asked_whether_it_is_drained(start: Any, tmp_path: Path) -> None:
    """Otherwise a frontend without a request in flight would end before its clients send their next one elsewhere."""
    service = start("frontend", clients=(f"ipc://{tmp_path}/clients",), drain_ns=s(60))
    client = start("worker", connect=(f"ipc://{tmp_path}/clients",))
    until(lambda: client.links.is_ready())
    drain, heard = Drain(service), service.core.heard
    before, known = len(heard), []

    def is_drained() -> bool:
        known.append(len(heard) > before)
        return drain.finished.is_set()

    service.core.drained = is_drained
    service.signal()
    until(lambda: bool(known))
    drain.finished.set()
    service.join()
    assert known[0]


def test_clients_with_keys_stay_connected_while_a_process_drains(start: Any, tmp_path: Path) -> None:
    keys, port = tmp_path / "keys", free_port("127.0.0.1")
    make_keys(keys)
    endpoint = f"tcp://127.0.0.1:{port}"
    service = start("frontend", clients=(endpoint,), keys=str(keys), drain_ns=s(60))
    drain = Drain(service)
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger, client.rcvtimeo = 0, 10_000
        client.curve_serverkey = load_keys(keys / "service" / "service.key_secret")[0]
        client.curve_publickey, client.curve_secretkey = load_keys(keys / "clients" / "client.key_secret")
        client.connect(endpoint)
        assert isinstance(ask(client, Hello(PROTOCOL, ())), Welcome)
        service.signal()
        assert drain.begun.wait(10)
        assert isinstance(ask(client, Ping(3)), Pong)
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 10):
            pass
        drain.finished.set()
        service.join()


def ask(sock: zmq.Socket[bytes], message: Hello | Ping) -> Any:
    """Send a message, and return the reply."""
    sock.send(encode([Envelope("", "", [message])]))
    return decode(sock.recv_multipart()[0])[0].messages[0]
