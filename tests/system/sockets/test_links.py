"""Links that break in every way: both ends notice it, and the link is made anew."""

from __future__ import annotations

import socket
from functools import partial
from typing import Any

import pytest

from fakes.proxy import Proxy
from harness.waiting import until
from horologe_cli.local.ports import free_port
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.transport.keys import make_keys
from horologe_common.wire import Ping, Pong, Sample, Tensor
from system.reactors import Running

NOT_A_FRAME = b"\xff" * 9
"""A frame of ZMTP with an impossible length: a protocol error, after which libzmq does not reconnect."""


def exchange(left: Running, right: Running) -> None:
    """Send a Ping each way over the link, and wait for both Pongs.

    On a busy machine a link may be lost once more, and a message with it. So the Ping is sent each second.
    """

    def answers(near: Running, far: Running, answered: int) -> bool:
        near.say(far.core.address, Ping(answered))
        return near.core.hears(Pong, answered + 1, 1)

    for near, far in ((left, right), (right, left)):
        until(partial(answers, near, far, len(near.core.of_kind(Pong))))


def wait_until_remade(left: Running, right: Running) -> None:
    """Wait until both ends have lost their peer and found it again, and use the link."""
    for end in (left, right):
        end.core.wait_for(PeerDisconnected)
        end.core.wait_for(PeerConnected, 2)
        assert lost_links(end)
    exchange(left, right)


def lost_links(end: Running) -> list[str]:
    """Return the reasons for which the process has lost links."""
    values = end.links.peers.stats.values
    return [key[-1] for key, value in values.items() if key[0] == "horologe_links_lost_total" and value]


@pytest.mark.parametrize("encrypted", [False, True], ids=["open", "keys"])
@pytest.mark.parametrize("to_target", [False, True], ids=["to the end that connected", "to the end that is bound"])
def test_a_link_is_made_anew_after_a_protocol_error(
    start: Any, tmp_path: Any, to_target: bool, encrypted: bool
) -> None:
    port, keys = free_port("127.0.0.1"), str(tmp_path) if encrypted else ""
    if encrypted:
        make_keys(tmp_path)
    left = start("controller", bind=(f"tcp://127.0.0.1:{port}",), keys=keys)
    with Proxy(port) as proxy:
        right = start("profiler", connect=(f"tcp://127.0.0.1:{proxy.port}",), keys=keys)
        left.core.wait_for(PeerConnected)
        right.core.wait_for(PeerConnected)
        exchange(left, right)
        proxy.inject(NOT_A_FRAME, to_target=to_target)
        wait_until_remade(left, right)
        right.stop()
        left.stop()


@pytest.mark.parametrize("to_target", [False, True], ids=["to the end that connected", "to the end that is bound"])
def test_a_link_that_is_silent_in_one_direction_is_lost_at_both_ends_and_made_anew(start: Any, to_target: bool) -> None:
    port = free_port("127.0.0.1")
    left = start("controller", bind=(f"tcp://127.0.0.1:{port}",))
    with Proxy(port) as proxy:
        right = start("worker", connect=(f"tcp://127.0.0.1:{proxy.port}",))
        left.core.wait_for(PeerConnected)
        right.core.wait_for(PeerConnected)
        proxy.mute(to_target=to_target)
        wait_until_remade(left, right)
        right.stop()
        left.stop()


def test_a_link_is_made_anew_after_a_frame_that_is_too_long(pair: Any) -> None:
    """The end that connected refuses the frame: for libzmq a protocol error, like a frame without memory for it."""
    left, right = pair(max_frame_bytes=1 << 16)
    size = 1 << 20
    left.say(right.core.address, Sample("m/1", (Tensor("x", "UINT8", (1, size), size),)), [bytes(size)])
    right.core.wait_for(PeerConnected, 2)
    right.say(left.core.address, Ping(1))
    assert right.core.wait_for(Pong)


def test_a_worker_connects_to_a_holder_again_when_only_their_link_has_failed(start: Any, tmp_path: Any) -> None:
    """No Hello reaches the controller then, and no new Directory the worker."""
    port, controller = free_port("127.0.0.1"), f"ipc://{tmp_path}/c"
    hub = start("controller", bind=(controller,))
    with Proxy(port) as proxy:
        endpoints = {"bind": (f"tcp://127.0.0.1:{port}",), "advertise": f"tcp://127.0.0.1:{proxy.port}"}
        frontend = start("frontend", connect=(controller,), **endpoints)
        start("profiler", connect=(controller,), bind=(f"ipc://{tmp_path}/p",))
        hub.core.wait_for(PeerConnected, 2)
        worker = start("worker", connect=(controller,), follows=True)
        worker.core.wait_for(PeerConnected, 3)
        proxy.inject(NOT_A_FRAME)
        assert worker.core.wait_for(PeerConnected, 4)[3].address == frontend.core.address
        exchange(frontend, worker)


@pytest.mark.parametrize("scheme", ["tcp", "unix"])
def test_what_is_sent_to_a_peer_before_its_link_is_made_arrives(start: Any, tmp_path: Any, scheme: str) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port('127.0.0.1')}" if scheme == "tcp" else f"unix://{tmp_path}/c"
    right = start("worker", connect=(endpoint,))
    left = start("controller", bind=(endpoint,))
    left.say(right.core.address, Ping(1))
    right.say(left.core.address, Ping(2))
    assert [pong.sent_ns for end in (left, right) for pong in end.core.wait_for(Pong)] == [1, 2]


@pytest.mark.parametrize("operation", ["getsockopt", "send"])
def test_a_socket_that_fails_is_replaced(pair: Any, operation: str) -> None:
    left, right = pair()
    right.break_dealers(operation)
    right.say(left.core.address, Ping(1))
    wait_until_remade(left, right)
    assert right.reactor.core_host.faults == 0


@pytest.mark.parametrize("scheme", ["ipc", "unix"])
def test_a_process_is_ready_while_its_links_are_up(start: Any, tmp_path: Any, scheme: str) -> None:
    worker = start("worker", connect=(f"{scheme}://{tmp_path}/c",))
    assert not worker.links.is_ready()
    controller = start("controller", bind=(f"{scheme}://{tmp_path}/c",))
    worker.core.wait_for(PeerConnected)
    assert worker.links.is_ready()
    controller.stop()
    worker.core.wait_for(PeerDisconnected)
    assert not worker.links.is_ready()


def test_a_stream_that_is_broken_by_strange_bytes_is_made_anew(pair: Any) -> None:
    left, right = pair("unix")
    for end in (left, right):
        (stream,) = end.links.streams.open
        end.reactor.loop.call_soon_threadsafe(stream._transport.write, NOT_A_FRAME)
        joined = len(end.core.of_kind(PeerConnected))
        for other in (left, right):
            other.core.wait_for(PeerConnected, joined + 1)
    exchange(left, right)


def test_a_stream_without_memory_for_a_packet_is_made_anew(pair: Any) -> None:
    left, right = pair("unix")
    streams = right.links.streams
    on_packets = streams.on_packets

    def fail_once(*_: Any) -> None:
        streams.on_packets = on_packets
        raise MemoryError

    streams.on_packets = fail_once
    left.say(right.core.address, Ping(1))
    wait_until_remade(left, right)


def test_a_stream_to_a_process_that_does_not_run_is_lost(start: Any, tmp_path: Any) -> None:
    """A process that is stopped accepts connections, but sends no heartbeat."""
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(f"{tmp_path}/c")
        stopped.listen()
        worker = start("worker", connect=(f"unix://{tmp_path}/c",))
        for _ in range(2):
            connection, _ = stopped.accept()
            connection.settimeout(10)
            while connection.recv(4096):
                pass
            connection.close()
        assert not worker.links.is_ready()


@pytest.mark.parametrize("scheme", ["ipc", "unix"])
def test_a_second_process_of_a_name_is_refused_until_the_first_is_lost(start: Any, tmp_path: Any, scheme: str) -> None:
    left = start("controller", bind=(f"{scheme}://{tmp_path}/c",))
    first = start("worker", connect=(f"{scheme}://{tmp_path}/c",))
    left.core.wait_for(PeerConnected)
    second = start("worker", connect=(f"{scheme}://{tmp_path}/c",))
    until(lambda: second.links.peers.stats.values.get(("horologe_links_refused_total",), 0) >= 2)
    assert not second.links.is_ready()
    exchange(left, first)
    first.stop()
    assert left.core.wait_for(PeerConnected, 2)[1].address == second.core.address
    exchange(left, second)


def test_the_end_of_a_second_process_of_a_name_does_not_affect_the_first(start: Any, tmp_path: Any) -> None:
    left = start("controller", bind=(f"ipc://{tmp_path}/c",))
    first = start("worker", connect=(f"ipc://{tmp_path}/c",))
    first.core.wait_for(PeerConnected)
    second = start("worker", connect=(f"ipc://{tmp_path}/c",))
    until(lambda: bool(second.links.peers.stats.values))
    second.stop()
    exchange(left, first)
    assert not left.core.of_kind(PeerDisconnected)


def test_one_of_two_selectors_of_one_name_is_used(start: Any, tmp_path: Any) -> None:
    """The frontend connects to both, so it refuses the Welcome of the second."""
    ends = [start("selector", bind=(f"ipc://{tmp_path}/{number}",)) for number in "ab"]
    frontend = start("frontend", connect=(f"ipc://{tmp_path}/a", f"ipc://{tmp_path}/b"))
    (used,) = [end for end in ends if end.core.address == frontend.core.wait_for(PeerConnected)[0].address]
    (other,) = [end for end in ends if end is not used]
    until(lambda: other.links.peers.stats.values[("horologe_links_refused_total",)] >= 1)
    exchange(frontend, used)
    assert not frontend.links.is_ready()
    used.stop()
    assert frontend.core.wait_for(PeerConnected, 2)[1].address == other.core.address
    exchange(frontend, other)


def test_a_refused_worker_leaves_its_name_to_the_other_everywhere(start: Any, tmp_path: Any) -> None:
    """Otherwise the controller would plan for the one, and the frontend send the inputs to the other."""
    port = free_port("127.0.0.1")
    controller = start("controller", bind=(f"tcp://127.0.0.1:{port}",))
    frontend = start("frontend", bind=(f"ipc://{tmp_path}/f",), connect=(f"tcp://127.0.0.1:{port}",))
    with Proxy(port) as proxy:
        first = start("worker", connect=(f"tcp://127.0.0.1:{proxy.port}",), follows=True)
        first.core.wait_for(PeerConnected, 2)
        proxy.refuses = True
        proxy.cut(both_ends=True)
        controller.core.wait_for(PeerDisconnected)
        second = start("worker", connect=(f"tcp://127.0.0.1:{port}",), follows=True)
        second.core.wait_for(PeerConnected)
        proxy.refuses = False
        second.core.wait_for(PeerConnected, 2)
        exchange(frontend, second)
        first.stop()
