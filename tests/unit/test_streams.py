"""Streams pass on what one read has brought together, so that a process which falls behind handles it in one turn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from horologe_common.service.parent_link import COUNT
from horologe_common.transport.streams import Stream

PACKETS = [[b"header", b"tensor"], [b"header"], [b"", b"tensor"]]


def a_packet(frames: list[bytes]) -> bytes:
    lengths = b"".join(len(frame).to_bytes(8, "little") for frame in frames)
    return COUNT.pack(len(frames)) + lengths + b"".join(frames)


@pytest.fixture
def calls() -> list[list[list[bytes]]]:
    return []


@pytest.fixture
def stream(calls: list[list[list[bytes]]]) -> Stream:
    def record(_: Stream, packets: list[list[memoryview]]) -> None:
        calls.append([[bytes(frame) for frame in frames] for frames in packets])

    streams: Any = SimpleNamespace(max_frame_bytes=1000, on_packets=record)
    return Stream(streams)


def test_all_packets_of_one_read_are_passed_on_in_one_call(stream: Stream, calls: list[list[list[bytes]]]) -> None:
    stream.data_received(b"".join(map(a_packet, PACKETS)))
    assert calls == [PACKETS]


def test_a_packet_in_two_reads_comes_with_the_second_and_the_first_is_a_heartbeat(
    stream: Stream, calls: list[list[list[bytes]]]
) -> None:
    data = b"".join(map(a_packet, PACKETS))
    cut = len(a_packet(PACKETS[0])) + 3
    stream.data_received(data[:cut])
    stream.data_received(data[cut : cut + 2])
    stream.data_received(data[cut + 2 :])
    assert calls == [PACKETS[:1], [], PACKETS[1:]]


def test_a_packet_without_frames_is_a_heartbeat(stream: Stream, calls: list[list[list[bytes]]]) -> None:
    stream.data_received(a_packet([]))
    assert calls == [[]]
