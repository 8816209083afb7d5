"""The reader of ZMTP: messages in any pieces, bounds on frames and bytes, and what is no ZMTP."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horologe_common.transport.clients.zmtp import (
    COMMAND,
    FRAMES_PER_FEED,
    GREETING,
    MORE,
    PARTS_MAX,
    PING,
    READY,
    MessageReader,
    ProtocolError,
    encode_message,
    pong,
)

LIMIT, HEADER = 100_000, 1_000


def open_reader(limit: int = LIMIT, header: int = HEADER) -> MessageReader:
    reader = MessageReader(limit, header)
    reader.feed(GREETING + READY)
    assert reader.is_ready
    return reader


def packet(*frames: bytes) -> bytes:
    return b"".join(encode_message(frames))


def feed_rest(reader: MessageReader) -> None:
    while reader.is_behind:
        reader.feed(b"")


def contents(reader: MessageReader) -> list[list[bytes]]:
    return [[bytes(frame) for frame in frames] for frames, _ in reader.messages]


@given(
    st.lists(st.lists(st.binary(max_size=600), min_size=1, max_size=5), max_size=5),
    st.lists(st.integers(1, 700), min_size=1, max_size=50),
)
def test_messages_arrive_whole_in_pieces_of_any_size(messages: list[list[bytes]], pieces: list[int]) -> None:
    reader = MessageReader(LIMIT, HEADER)
    stream, at, turn = GREETING + READY + b"".join(packet(*frames) for frames in messages), 0, 0
    while at < len(stream):
        size = pieces[turn % len(pieces)]
        reader.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert contents(reader) == messages
    assert not any(dropped for _, dropped in reader.messages)
    assert reader.held_bytes == 0


def test_large_frames_arrive_whole() -> None:
    reader, body = open_reader(1 << 20), bytes(range(256)) * 2000
    stream = packet(b"header", body)
    for at in range(0, len(stream), 70_000):
        reader.feed(stream[at : at + 70_000])
    assert contents(reader) == [[b"header", body]]


def test_a_message_without_an_end_ends_the_connection() -> None:
    reader = open_reader()
    reader.feed(bytes((MORE, 0)) * (PARTS_MAX + 1))
    with pytest.raises(ProtocolError, match=f"at most {PARTS_MAX} frames"):
        feed_rest(reader)


@given(st.integers(0, 3 * FRAMES_PER_FEED), st.integers(1, 20_000))
def test_a_read_of_many_messages_is_parsed_in_steps(count: int, piece: int) -> None:
    reader, stream = open_reader(), packet(b"") * count + packet(b"end")
    for at in range(0, len(stream), piece):
        before = len(reader.messages)
        reader.feed(stream[at : at + piece])
        assert len(reader.messages) - before <= FRAMES_PER_FEED
    feed_rest(reader)
    assert contents(reader) == [[b""]] * count + [[b"end"]]
    assert reader.unparsed_bytes == 0


@pytest.mark.parametrize("piece", [1_000, 10_000_000])
def test_a_message_beyond_the_limit_is_dropped_while_it_arrives(piece: int) -> None:
    reader, held = open_reader(), 0
    stream = packet(b"header", bytes(60_000), bytes(60_000), b"rest") + packet(b"next")
    for at in range(0, len(stream), piece):
        reader.feed(stream[at : at + piece])
        held = max(held, reader.held_bytes)
    assert contents(reader) == [[b"header"], [b"next"]]
    assert [dropped for _, dropped in reader.messages] == [True, False]
    assert held < LIMIT + 1000


def test_a_header_beyond_its_limit_is_dropped() -> None:
    reader = open_reader()
    reader.feed(packet(bytes(HEADER + 1), b"body") + packet(b"next"))
    assert contents(reader) == [[], [b"next"]]


def test_a_message_can_be_dropped_while_it_arrives() -> None:
    reader, stream = open_reader(), packet(b"header", bytes(50_000), bytes(5)) + packet(b"next")
    reader.feed(stream[:20_000])
    assert reader.held_bytes > 19_000
    reader.drop_message()
    assert reader.held_bytes < HEADER
    reader.feed(stream[20_000:])
    assert contents(reader) == [[b"header"], [b"next"]]


@pytest.mark.parametrize("piece", range(1, 12))
def test_a_ping_may_arrive_in_pieces_inside_a_message_that_is_dropped(piece: int) -> None:
    reader, frames = open_reader(), [b"header", bytes(LIMIT), bytes(5)]
    parts = encode_message(frames)
    stream = b"".join(map(bytes, [*parts[:4], PING, *parts[4:]]))
    for at in range(0, len(stream), piece):
        reader.feed(stream[at : at + piece])
    assert contents(reader) == [[b"header"]]
    assert len(reader.pings) == 1


def test_frames_count_with_the_memory_that_they_take() -> None:
    reader = open_reader()
    reader.feed(bytes((MORE, 0)) * 1000)
    assert reader.held_bytes >= 50_000


def test_a_ping_is_answered_with_its_context() -> None:
    reader = open_reader()
    body = b"\x04PING\x00\x0a" + b"context"
    reader.feed(bytes((COMMAND, len(body))) + body + PING)
    assert [pong(ping) for ping in reader.pings] == [b"\x04\x0c\x04PONGcontext", b"\x04\x05\x04PONG"]


@pytest.mark.parametrize(
    "data",
    [
        b"\x01\x00" + bytes(64),
        GREETING[:11] + b"\x00" + b"CURVE".ljust(20, b"\0") + bytes(32),
        b"\xff" + bytes(8) + b"\x7f\x01\x05" + bytes(60),
        b"GET / HTTP/1.1\r\n\r\n",
        GREETING + packet(b"before the handshake"),
        GREETING + b"\x06" + (1 << 40).to_bytes(8, "big"),
        GREETING + READY + b"\x04\x05\x04NOPE",
        GREETING + READY + b"\xf0\x00",
    ],
)
def test_other_protocols_and_unknown_commands_end_the_connection(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        MessageReader(LIMIT, HEADER).feed(data)
