"""Peers: who owns a name, and what a refused process is told. No sockets: routes are plain values."""

from __future__ import annotations

from typing import Any

import pytest

from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.status import Status
from horologe_common.transport.awaited_peers import MOST_FORMER, MOST_PACKETS
from horologe_common.transport.peers import Peers, Route
from horologe_common.wire import MAX_FRAME_BYTES, PROTOCOL, Directory, Hello, Rejected, Welcome

FIRST, SECOND, DIALLED = (Route(name, identity) for name, identity in (("r", b"1"), ("r", b"2"), ("d", None)))  # type: ignore[arg-type]


class Ends:
    """The peers of a process with one core, and what they send and report."""

    def __init__(self, address: str = "controller/0#1") -> None:
        self.sent: list[tuple[Route, Any]] = []
        self.refused: list[tuple[Route, str]] = []
        self.awaited: list[str] = []
        self.peers = Peers(
            "host",
            lambda route, message: self.sent.append((route, message)),
            lambda route: None,
            lambda route, reason: self.refused.append((route, reason)),
            lambda endpoints: None,
            self.awaited.append,
            lambda route, packet: self.sent.append((route, packet)),
        )
        self.peers.addresses = (address,)

    def hello(self, route: Route, *addresses: str) -> Any:
        """Return the answer to a Hello."""
        self.sent.clear()
        self.peers.on_handshake(route, Hello(PROTOCOL, addresses, "host"), public=False)
        return next(message for to, message in self.sent if to == route)


def test_a_name_belongs_to_the_first_process_until_it_is_lost() -> None:
    ends = Ends()
    assert isinstance(ends.hello(FIRST, "worker/0#a"), Welcome)
    for _ in range(2):
        rejected = ends.hello(SECOND, "worker/0#b")
        assert (type(rejected), rejected.status) == (Rejected, Status.REFUSED)
        assert all(text in rejected.reason for text in ("'worker/0'", "worker/0#b", "worker/0#a"))
    ends.peers.on_router_disconnected(SECOND)
    assert ends.peers.routes == {"worker/0#a": FIRST}
    ends.peers.on_router_disconnected(FIRST)
    assert isinstance(ends.hello(SECOND, "worker/0#b"), Welcome)
    assert ends.peers.events == [
        ("worker/0#a", PeerConnected("worker/0#a", "host", MAX_FRAME_BYTES)),
        ("worker/0#a", PeerDisconnected("worker/0#a")),
        ("worker/0#b", PeerConnected("worker/0#b", "host", MAX_FRAME_BYTES)),
    ]
    assert {key: value for key, value in ends.peers.stats.values.items() if value} == {
        ("horologe_links_made_total", "worker"): 2,
        ("horologe_links_lost_total", "worker", "closed"): 1,
        ("horologe_links_refused_total",): 2,
    }


def test_counters_of_failures_begin_at_zero() -> None:
    ends = Ends()
    assert ends.peers.stats.values == {("horologe_links_refused_total",): 0}
    ends.hello(FIRST, "worker/0#a")
    lost = {key[1:]: value for key, value in ends.peers.stats.values.items() if key[0] == "horologe_links_lost_total"}
    assert lost == {("worker", reason): 0 for reason in ("closed", "silent", "failed", "refused", "replaced")}


def test_one_of_several_names_in_use_refuses_the_whole_process() -> None:
    ends = Ends()
    ends.hello(FIRST, "frontend/0#a", "selector/0#a")
    assert isinstance(ends.hello(SECOND, "frontend/1#b", "selector/0#b"), Rejected)
    assert isinstance(ends.hello(SECOND, "controller/0#2"), Rejected), "the name of this process"


def test_the_same_process_may_connect_again_before_its_loss_is_noticed() -> None:
    ends = Ends()
    ends.hello(FIRST, "worker/0#a")
    assert isinstance(ends.hello(SECOND, "worker/0#a"), Welcome)
    assert [type(event) for _, event in ends.peers.events] == [PeerConnected, PeerDisconnected, PeerConnected]
    ends.peers.on_router_disconnected(FIRST)
    assert ends.peers.routes == {"worker/0#a": SECOND}


def test_the_welcome_of_a_second_process_of_a_name_is_refused() -> None:
    ends = Ends()
    ends.hello(FIRST, "selector/0#a")
    ends.peers.on_handshake(DIALLED, Welcome(PROTOCOL, ("selector/0#b",), "host"), public=False)
    assert isinstance(ends.sent[-1][1], Rejected)
    assert ends.refused == [(DIALLED, "refused")]
    assert ends.peers.routes == {"selector/0#a": FIRST}


def test_a_rejected_packet_does_not_end_the_link_and_a_client_cannot_end_one() -> None:
    ends = Ends()
    ends.hello(FIRST, "worker/0#a")
    ends.peers.on_handshake(FIRST, Rejected(int(Status.INVALID_INPUT), "header"), public=False)
    ends.peers.on_handshake(FIRST, Rejected(int(Status.REFUSED), "name"), public=True)
    assert ends.refused == []
    ends.peers.on_handshake(FIRST, Rejected(int(Status.LOST), "no heartbeat"), public=False)
    assert ends.refused == [(FIRST, "silent")]


def test_workers_get_a_directory_of_the_present_holders() -> None:
    """Without it, workers would resolve the name of a holder that has ended, again and again."""
    ends = Ends()
    ends.peers.on_handshake(FIRST, Hello(PROTOCOL, ("worker/0#a",), "host", "", ("worker",)), public=False)
    ends.peers.on_handshake(SECOND, Hello(PROTOCOL, ("frontend/0#a",), "host", "tcp://f:1"), public=False)
    ends.peers.on_router_disconnected(SECOND)
    directories = [message.endpoints for to, message in ends.sent if to == FIRST and isinstance(message, Directory)]
    assert directories == [(), ("tcp://f:1",), ()]


def test_a_worker_gets_its_controller_once_it_is_linked_to_the_holders() -> None:
    ends, linked = Ends("worker/0#1"), False
    ends.peers.follows_directory, ends.peers.is_linked = True, lambda: linked
    ends.peers.on_handshake(DIALLED, Welcome(PROTOCOL, ("controller/0#a",), "host"), public=False)
    ends.peers.on_handshake(DIALLED, Directory(("tcp://f:1",)), public=False)
    assert ends.peers.routes == {"controller/0#a": DIALLED}
    assert ends.peers.events == []
    linked = True
    holder = Route("f", None)  # type: ignore[arg-type]
    ends.peers.on_handshake(holder, Welcome(PROTOCOL, ("frontend/0#a",), "host"), public=False)
    assert [address for address, _ in ends.peers.events] == ["frontend/0#a", "controller/0#a"]


def test_a_controller_that_is_lost_before_the_links_to_the_holders_is_not_reported() -> None:
    ends = Ends("worker/0#1")
    ends.peers.follows_directory, ends.peers.is_linked = True, lambda: False
    ends.peers.on_handshake(DIALLED, Welcome(PROTOCOL, ("controller/0#a",), "host"), public=False)
    ends.peers.on_dealer_disconnected(DIALLED.socket)
    ends.peers.introduce_controllers()
    assert ends.peers.events == []


@pytest.mark.parametrize("address", ["frontend/0#1", "selector/0#1", "profiler/0#1"])
def test_a_process_without_the_controller_sends_no_directory(address: str) -> None:
    """It is not linked to all holders, and a worker would not connect again to those that it does not name."""
    ends = Ends(address)
    ends.peers.on_handshake(FIRST, Hello(PROTOCOL, ("worker/0#a",), "host", "", ("worker",)), public=False)
    assert [type(message) for _, message in ends.sent] == [Welcome]


def keep(ends: Ends, address: str, packet: Any) -> bool:
    """Send a packet to an address without a link. Return whether it is kept."""
    route = ends.peers.routes[address]
    return route is not None and route.socket.send(packet)


def test_what_is_sent_to_a_peer_before_its_link_is_made_follows_the_welcome() -> None:
    ends = Ends()
    assert keep(ends, "selector/0#a", [b"1"])
    assert keep(ends, "selector/0#a", [b"2"])
    assert keep(ends, "selector/1#b", [b"3"])
    assert ends.awaited == ["selector/0#a", "selector/1#b"]
    ends.hello(FIRST, "selector/0#a")
    assert [message for _, message in ends.sent][1:] == [[b"1"], [b"2"]]
    ends.hello(SECOND, "selector/1#b")
    assert [message for _, message in ends.sent][1:] == [[b"3"]]


def test_the_end_that_has_connected_sends_what_it_has_kept_when_it_is_welcome() -> None:
    ends = Ends("worker/0#1")
    assert keep(ends, "selector/0#a", [b"1"])
    ends.peers.on_handshake(DIALLED, Welcome(PROTOCOL, ("selector/0#a",), "host"), public=False)
    assert ends.sent == [(DIALLED, [b"1"])]


def test_nothing_is_kept_for_clients_lost_peers_and_peers_that_do_not_come() -> None:
    ends = Ends()
    assert not keep(ends, "client/1", [b"1"])
    assert not keep(ends, "http/0#a", [b"1"])
    ends.hello(FIRST, "selector/0#a")
    ends.peers.on_router_disconnected(FIRST)
    assert not keep(ends, "selector/0#a", [b"1"])
    assert keep(ends, "selector/0#b", [b"1"])
    assert ends.peers.awaited.give_up("selector/0#b") == 1
    assert not keep(ends, "selector/0#b", [b"2"])
    ends.hello(FIRST, "selector/0#b")
    assert ends.peers.routes["selector/0#b"] == FIRST
    assert len(ends.sent) == 1
    assert ends.peers.awaited.give_up("selector/0#b") == 0


def test_the_packets_for_a_peer_and_the_lost_peers_are_bounded() -> None:
    ends = Ends()
    assert [keep(ends, "selector/0#a", [b"1"]) for _ in range(MOST_PACKETS + 1)] == [True] * MOST_PACKETS + [False]
    for number in range(MOST_FORMER + 1):
        ends.peers.awaited.add_former(f"selector/0#{number}")
    assert keep(ends, "selector/0#0", [b"1"])
    assert not keep(ends, "selector/0#1", [b"1"])
