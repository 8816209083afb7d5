"""Turns of the server of clients: how many messages of which client each one handles."""

from __future__ import annotations

from time import monotonic_ns

import msgspec

from common.client_door import LIMITS, Door, packet, predict
from horologe_common.clock import s
from horologe_common.transport.clients.client_connection import PACKETS_WAITING, ClientConnection
from horologe_common.transport.clients.client_server import TURN_MESSAGES, TURN_MESSAGES_MIN
from horologe_common.transport.clients.zmtp import FRAMES_PER_FEED
from horologe_common.wire import Describe


def flooded_door() -> tuple[Door, ClientConnection, ClientConnection]:
    """Return a door at which the first client floods, beside a second one that sends little."""
    door = Door()
    (flooder, _), (quiet, _) = door.connect(), door.connect()
    flooder.data_received(packet(predict(1)) * 3000)
    quiet.data_received(packet(predict(1)))
    door.turn()
    door.measure_rates()
    return door, flooder, quiet


def test_a_client_alone_has_no_small_share() -> None:
    door = Door()
    client, _ = door.connect()
    client.data_received(packet(predict(1)) * 3000)
    assert len(door.turn()) == 3000


def test_a_turn_handles_a_bounded_number_of_messages_of_a_client() -> None:
    door = Door()
    client, _ = door.connect()
    client.data_received(packet(*[Describe(number) for number in range(9000)]))
    turns = []
    while messages := door.turn():
        turns.append(len(messages))
    assert sum(turns) == 9000
    assert max(turns) <= TURN_MESSAGES // 64


def test_a_client_that_sends_much_more_than_others_gets_short_turns_and_pauses() -> None:
    door, flooder, quiet = flooded_door()
    for _ in range(20):
        flooder.data_received(packet(predict(1)) * 2000)
        door.turn()
        now_ns = monotonic_ns()
        door.server.end_turn(now_ns, s(1))
        assert now_ns < door.server._paused_ns
        flooder.data_received(packet(predict(1)))
        quiet.data_received(packet(predict(1)))
        assert door.turn() == ["2"]
        assert door.server.wakeup_ns == door.server._paused_ns
        door.server._paused_ns = 0
    assert len(door.turn()) == TURN_MESSAGES_MIN


def test_the_client_with_less_to_say_comes_first() -> None:
    door, flooder, quiet = flooded_door()
    flooder.data_received(packet(predict(1)) * 10)
    quiet.data_received(packet(predict(2)))
    assert door.turn()[0] == "2"


def test_a_turn_handles_a_bounded_number_of_messages_of_all_clients_and_each_gets_its_turn() -> None:
    door = Door(msgspec.structs.replace(LIMITS, connections=100))
    clients = [door.connect()[0] for _ in range(80)]
    for client in clients:
        client.data_received(packet(*[Describe(number) for number in range(50)]))
    seen: set[str] = set()
    while messages := door.turn():
        assert len(messages) <= TURN_MESSAGES // 64
        seen.update(messages)
        if len(seen) == len(clients):
            break
    assert len(seen) == len(clients)
    assert any(client.arrivals for client in clients)


def test_empty_messages_are_parsed_in_turns() -> None:
    door = Door(msgspec.structs.replace(LIMITS, receive_bytes=1 << 30))
    client, transport = door.connect()
    client.data_received(bytes(2 * 10 * PACKETS_WAITING))
    assert len(client.packets) == FRAMES_PER_FEED
    assert not transport.is_read
    door.server.reads.begin_iteration()
    assert len(client.packets) == 2 * FRAMES_PER_FEED
    for _ in range(100):
        door.server.reads.begin_iteration()
    assert PACKETS_WAITING <= len(client.packets) < PACKETS_WAITING + FRAMES_PER_FEED
    for _ in range(1000):
        door.server.receive([], lambda *_: None)
        door.server.reads.begin_iteration()
    assert not client.packets
    assert transport.is_read
