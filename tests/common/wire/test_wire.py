"""Packets: other msgpack implementations read and write them, and invalid ones raise the documented errors."""

from __future__ import annotations

from typing import Any, get_args

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horologe_common import wire
from horologe_common.status import HorologeError, InvalidInput, Status, TooLarge, error_for

TENSOR = wire.Tensor("x", "FP32", (1, 4), 16)


def test_another_msgpack_reads_a_packet() -> None:
    letters = [wire.Envelope("selector/0#a", "frontend/0#b", [wire.Ping(5), wire.Cancel((1,))])]
    assert msgpack.unpackb(wire.encode(letters)) == [["selector/0#a", "frontend/0#b", [[54, 5], [3, [1]]]]]


def test_what_another_msgpack_writes_is_read() -> None:
    header = msgpack.packb([["", "", [[1, 1, "m", "", 5, [["x", "FP32", [1, 4], 16]]]]]])
    assert wire.decode(header)[0].messages == [wire.Predict(1, "m", "", 5, (TENSOR,))]


def test_a_header_over_the_limit_is_not_decoded() -> None:
    with pytest.raises(TooLarge, match="got 65537 bytes, at most 65536"):
        wire.decode(b"\xc1" * (wire.HEADER_LIMIT + 1), wire.HEADER_LIMIT)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xc1",
        b"\x90\x90",
        msgpack.packb({}),
        msgpack.packb([["", "", [[99, 1]]]]),
        msgpack.packb([["", ""]]),
        msgpack.packb([["", "", [[2, "one", 0]]]]),
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 5000,
    ],
)
def test_what_is_no_packet_is_invalid_input(header: bytes) -> None:
    with pytest.raises(InvalidInput, match="header"):
        wire.decode(header)


scalars = st.none() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.text(max_size=3), scalars, max_size=2)
messages = st.tuples(st.integers(1, 60), values, values, values).map(list)
almost = st.lists(st.tuples(st.just(""), st.just(""), st.lists(messages, max_size=3)), max_size=2)


@settings(max_examples=100, deadline=None)
@given(almost)
def test_msgpack_of_the_wrong_form_raises_nothing_else(letters: Any) -> None:
    try:
        decoded = wire.decode(msgpack.packb(letters), 1 << 16)
    except InvalidInput:
        return
    assert all(isinstance(message, get_args(wire.AnyMessage)) for letter in decoded for message in letter.messages)


def test_the_numbers_of_a_status_never_change() -> None:
    names = (
        "OK INVALID_INPUT UNAUTHENTICATED UNKNOWN_MODEL TOO_LARGE REFUSED LATE LOST CANCELLED FAILED TOO_LATE "
        "MISSING_INPUT PROTOCOL FORBIDDEN"
    )
    assert {status.name: int(status) for status in Status} == {name: at for at, name in enumerate(names.split())}


@pytest.mark.parametrize("status", [*range(1, 13), 99, -1])
def test_every_status_has_an_exception_also_one_of_a_newer_server(status: int) -> None:
    error = error_for(status, "because", 7)
    assert isinstance(error, HorologeError)
    assert (error.reason, error.retry_after_ns, str(error)) == ("because", 7, "because")
