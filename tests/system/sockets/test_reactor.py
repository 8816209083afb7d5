"""Reactors talk over real sockets: handshake, routes, coming and going, garbage, keys, work of other threads."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.proxy import Proxy
from harness.waiting import until
from horologe_cli.local.ports import free_port
from horologe_common.core.protocol import Out, PeerConnected, PeerDisconnected
from horologe_common.wire import PROTOCOL, Directory, Hello, Ping, Pong, Predict, Rejected, Sample, Tensor, Welcome
from horologe_common.wire.message import MAX_FRAME_BYTES
from system.reactors import packet, reply

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("scheme", ["ipc", "unix"])
def test_both_ends_of_a_link_learn_of_each_other_and_of_its_end(start: Any, tmp_path: Path, scheme: str) -> None:
    left = start("controller", bind=(f"{scheme}://{tmp_path}/c",))
    right = start("worker", connect=(f"{scheme}://{tmp_path}/c",))
    assert left.core.wait_for(PeerConnected)[0] == PeerConnected(right.core.address, "host", MAX_FRAME_BYTES)
    assert right.core.wait_for(PeerConnected)[0] == PeerConnected(left.core.address, "host", MAX_FRAME_BYTES)
    left.say(right.core.address, Ping(5))
    assert left.core.wait_for(Pong)[0].sent_ns == 5
    right.stop()
    assert left.core.wait_for(PeerDisconnected) == [PeerDisconnected(right.core.address)]


@pytest.mark.parametrize("scheme", ["ipc", "unix"])
def test_a_restarted_process_is_a_new_one_and_nothing_reaches_the_old(start: Any, tmp_path: Path, scheme: str) -> None:
    right = start("worker", connect=(f"{scheme}://{tmp_path}/c",))
    left = start("controller", bind=(f"{scheme}://{tmp_path}/c",))
    right.core.wait_for(PeerConnected)
    left.stop()
    right.core.wait_for(PeerDisconnected)
    again = start("controller", bind=(f"{scheme}://{tmp_path}/c",))
    joined = right.core.wait_for(PeerConnected, 2)
    assert [one.address for one in joined] == [left.core.address, again.core.address]
    right.say(left.core.address, Ping(1))
    right.say(again.core.address, Ping(2))
    assert [ping.sent_ns for ping in again.core.wait_for(Ping)] == [2]
    assert right.reactor.core_host.dropped == 1


def test_a_connection_made_anew_is_news_to_both_ends(start: Any) -> None:
    """The one that was bound has not noticed that the old one broke; what was under way on it is lost."""
    port = free_port("127.0.0.1")
    left = start("controller", bind=(f"tcp://127.0.0.1:{port}",), allow_open=True)
    with Proxy(port) as proxy:
        right = start("worker", connect=(f"tcp://127.0.0.1:{proxy.port}",), allow_open=True)
        left.core.wait_for(PeerConnected)
        right.core.wait_for(PeerConnected)
        proxy.cut()
        right.core.wait_for(PeerConnected, 2)
        left.say(right.core.address, Ping(5))
        assert left.core.wait_for(Pong)[0].sent_ns == 5
        news = [
            type(message) for _, message in left.core.heard if isinstance(message, PeerConnected | PeerDisconnected)
        ]
        assert news == [PeerConnected, PeerDisconnected, PeerConnected]
        right.stop()
        left.stop()


def test_large_and_many_packets_arrive_whole_and_in_order_over_a_stream(pair: Any) -> None:
    left, right = pair("unix")
    big = bytes(range(256)) * 40_000
    tensor = Tensor("x", "UINT8", (1, len(big)), len(big))
    for number in range(20):
        data, header = (big, tensor) if number % 5 == 0 else (b"abcd", Tensor("x", "UINT8", (1, 4), 4))
        right.core.out.append(Out(left.core.address, Sample(f"m/{number}", (header,)), [data]))
    right.reactor.post_threadsafe("test", right.core.address, None)
    assert [sample.model for sample in left.core.wait_for(Sample, 20)] == [f"m/{number}" for number in range(20)]


def test_a_stream_that_sends_nonsense_is_closed_and_others_go_on(pair: Any, tmp_path: Path) -> None:
    left, right = pair("unix")
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(10)
        stranger.connect(f"{tmp_path}/c")
        stranger.sendall(b"\xff" * 4096)
        assert stranger.recv(1) == b""
    left.say(right.core.address, Ping(5))
    assert left.core.wait_for(Pong)[0].sent_ns == 5


@pytest.mark.parametrize("scheme", ["ipc", "unix"])
def test_a_worker_hears_of_its_controller_after_its_holders(start: Any, tmp_path: Path, scheme: str) -> None:
    """Also of one that no holder answers, a moment later."""
    controller = start("controller", bind=(f"{scheme}://{tmp_path}/c",))
    start("frontend", bind=(f"{scheme}://{tmp_path}/f",), connect=(f"{scheme}://{tmp_path}/c",))
    controller.core.wait_for(PeerConnected)
    worker = start("worker", connect=(f"{scheme}://{tmp_path}/c",), follows=True)
    assert [peer.address[:8] for peer in worker.core.wait_for(PeerConnected, 2)] == ["frontend", "controll"]
    start("selector", bind=("tcp://127.0.0.1:0",), connect=(f"{scheme}://{tmp_path}/c",), advertise="tcp://127.0.0.1:9")
    controller.core.wait_for(PeerConnected, 3)
    other = start("worker", connect=(f"{scheme}://{tmp_path}/c",), follows=True, number="1")
    assert [peer.address[:8] for peer in other.core.wait_for(PeerConnected, 2)] == ["frontend", "controll"]


@pytest.mark.parametrize("scheme", ["ipc", "unix"])
def test_workers_find_the_holders_through_the_directory(start: Any, tmp_path: Path, scheme: str) -> None:
    controller = start("controller", bind=(f"{scheme}://{tmp_path}/c",))
    worker = start("worker", connect=(f"{scheme}://{tmp_path}/c",), follows=True)
    worker.core.wait_for(PeerConnected)
    frontend = start("frontend", bind=(f"{scheme}://{tmp_path}/f",), connect=(f"{scheme}://{tmp_path}/c",))
    assert frontend.core.address in [joined.address for joined in worker.core.wait_for(PeerConnected, 2)]
    assert controller.core.wait_for(PeerConnected, 2)


@pytest.mark.parametrize("scheme", ["ipc", "unix"])
def test_turns_that_raise_again_and_again_lose_no_message_and_fill_no_log(
    pair: Any, scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    left, right = pair(scheme)
    receive, broken = left.links.receive, True

    def receive_and_raise(inbox: list[Any]) -> bool:
        more = receive(inbox)
        if broken:
            raise RuntimeError("broken")
        return bool(more)

    left.links.receive = receive_and_raise
    for number in range(20):
        right.say(left.core.address, Ping(number))
        left.core.wait_for(Ping, number + 1)
    until(lambda: left.reactor.core_host.faults >= 10)
    broken = False
    right.say(left.core.address, Ping(20))
    assert [ping.sent_ns for ping in left.core.wait_for(Ping, 21)] == list(range(21))
    assert len([record for record in caplog.records if record.message == "turn fault"]) == 1


def test_clients_shake_hands_and_their_end_is_noticed(start: Any, client: Any, tmp_path: Path) -> None:
    frontend = start("frontend", clients=(f"ipc://{tmp_path}/clients",))
    sock = client(f"ipc://{tmp_path}/clients")
    sock.send(packet(Hello(PROTOCOL, ())))
    assert isinstance(reply(sock), Welcome)
    sock.send(packet(Predict(1, "m", "", 0, ())))
    frontend.core.wait_for(Predict)
    (address,) = {sender for sender, message in frontend.core.heard if isinstance(message, Predict)}
    sock.close()
    assert frontend.core.wait_for(PeerDisconnected) == [PeerDisconnected(address)]


def test_another_protocol_version_is_a_clear_error(start: Any, client: Any, tmp_path: Path) -> None:
    start("frontend", clients=(f"ipc://{tmp_path}/clients",))
    sock = client(f"ipc://{tmp_path}/clients")
    sock.send(packet(Hello(PROTOCOL + 1, ())))
    rejected = reply(sock)
    assert isinstance(rejected, Rejected)
    assert f"got version {PROTOCOL + 1}, wanted {PROTOCOL}" in rejected.reason


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\xc1garbage"],
        [bytes(100_000)],
        [packet(Predict(1, "m", "", 0, (Tensor("x", "FP32", (1, 4), 16),)))],
        [packet(Predict(1, "m", "", 0, (Tensor("x", "FP32", (1, 4), 16),))), bytes(15)],
        [packet(Predict(1, "m", "", 0, (Tensor("x", "FP32", (1, 4), 8),))), bytes(8)],
        [packet(Predict(1, "m", "", 0, ())), b"unannounced"],
    ],
)
def test_packets_that_lie_are_rejected_with_a_reason(start: Any, client: Any, tmp_path: Path, frames: Any) -> None:
    frontend = start("frontend", clients=(f"ipc://{tmp_path}/clients",))
    sock = client(f"ipc://{tmp_path}/clients")
    sock.send_multipart(frames)
    rejected = reply(sock)
    assert isinstance(rejected, Rejected)
    assert "got" in rejected.reason or "header" in rejected.reason
    sock.send(packet(Ping(1)))
    assert isinstance(reply(sock), Pong)
    assert not any(isinstance(message, Predict) for _, message in frontend.core.heard)


def test_random_bytes_on_every_socket_do_no_harm(start: Any, client: Any, tmp_path: Path) -> None:
    frontend = start("frontend", clients=(f"ipc://{tmp_path}/clients",), bind=(f"ipc://{tmp_path}/peers",))
    public, internal = client(f"ipc://{tmp_path}/clients"), client(f"ipc://{tmp_path}/peers")

    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.binary(max_size=200), min_size=1, max_size=4))
    def attack(frames: list[bytes]) -> None:
        public.send_multipart(frames)
        internal.send_multipart(frames)

    attack()
    public.send(packet(Ping(77)))
    while not isinstance(pong := reply(public), Pong):
        pass
    assert pong.sent_ns == 77
    assert frontend.reactor.core_host.faults == 0


@pytest.mark.parametrize(
    "noise",
    [
        b"\x01\x00\x04\x00abc" * 20,  # an anonymous peer of ZMTP 1.0, and messages of it
        b"\xff" + bytes(8) + b"\x7f\x03",
        b"\xff" + bytes(8) + b"\x7f\x01\x05\x00\x00" + b"\x00\x03abc" * 20,  # of ZMTP 2.0
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes(range(256)),
    ],
    ids=["zmtp1", "greeting", "zmtp2", "http", "bytes"],
)
def test_a_connection_that_is_not_of_our_kind_silences_nobody(
    start: Any, client: Any, tmp_path: Path, noise: bytes
) -> None:
    ends = [f"{tmp_path}/clients", f"{tmp_path}/peers"]
    frontend = start("frontend", clients=(f"ipc://{ends[0]}",), bind=(f"ipc://{ends[1]}",))
    known = client(f"ipc://{ends[0]}")
    known.send(packet(Ping(1)))
    assert reply(known).sent_ns == 1
    for end in ends * 3:
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(end)
            stranger.sendall(noise)
            known.send(packet(Ping(2)))
            assert reply(known).sent_ns == 2
    later = client(f"ipc://{ends[0]}")
    later.send(packet(Ping(3)))
    assert reply(later).sent_ns == 3
    assert frontend.reactor.core_host.faults == 0


def test_the_directory_is_only_believed_from_those_one_connected_to(start: Any, client: Any, tmp_path: Path) -> None:
    worker = start("worker", bind=(f"ipc://{tmp_path}/w",), follows=True)
    sock = client(f"ipc://{tmp_path}/w")
    sock.send(packet(Directory((f"ipc://{tmp_path}/evil",)), Hello(PROTOCOL, ())))
    assert isinstance(reply(sock), Welcome)
    assert f"ipc://{tmp_path}/evil" not in worker.links.outgoing._dealers


def test_work_of_another_thread_runs_on_the_thread_of_the_loop(start: Any, tmp_path: Path) -> None:
    running = start("controller", bind=(f"ipc://{tmp_path}/c",))
    threads: list[threading.Thread] = []
    until(lambda: running.reactor.is_running)
    running.reactor.call_between_turns(lambda: threads.append(threading.current_thread()), 5)
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()


def test_errors_of_the_work_reach_the_caller_and_a_stalled_loop_is_a_timeout(start: Any, tmp_path: Path) -> None:
    running = start("controller", bind=(f"ipc://{tmp_path}/c",))
    until(lambda: running.reactor.is_running)
    with pytest.raises(ZeroDivisionError):
        running.reactor.call_between_turns(lambda: 1 // 0, 5)
    with pytest.raises(TimeoutError):
        running.reactor.call_between_turns(lambda: time.sleep(0.3), 0.01)


def test_nothing_runs_in_a_loop_that_has_ended(start: Any, tmp_path: Path) -> None:
    running = start("controller", bind=(f"ipc://{tmp_path}/c",))
    until(lambda: running.reactor.is_running)
    running.stop()
    done: list[int] = []
    running.reactor.call_between_turns(lambda: done.append(1), 5)
    assert not done
