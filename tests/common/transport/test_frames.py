"""Packets carry arrays unchanged, and a header that lies about what follows is found out."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from horologe_common.models import DTYPES
from horologe_common.status import InvalidInput
from horologe_common.wire import Answer, Cancel, Envelope, Ping, Predict, Ship, Shipped, Tensor
from horologe_common.wire.frames import GLUE_BELOW, concat_rows, decode_array, encode_array, pack, unpack

LIMIT = 1 << 16
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
arrays = st.one_of(
    [
        hnp.arrays(dtype, shapes, elements={"allow_nan": False} if dtype.kind == "f" else None)
        for dtype in DTYPES.values()
    ]
)
strings = hnp.arrays(object, shapes, elements=st.binary(max_size=6))


def a_packet(*messages: list[np.ndarray[Any, Any]]) -> list[bytes]:
    """Return a packet with one Predict per list of arrays."""
    predicts, buffers = [], []
    for number, inputs in enumerate(messages):
        tensors = [encode_array(f"t{at}", array) for at, array in enumerate(inputs)]
        predicts.append(Predict(number, "m", "", 0, tuple(header for header, _ in tensors)))
        buffers += [payload for _, payload in tensors]
    return [bytes(frame) for frame in pack([Envelope("to", "sender", list(predicts))], buffers)]


@given(st.lists(st.lists(arrays | strings, max_size=3), max_size=3))
def test_what_is_packed_comes_out(messages: list[list[np.ndarray[Any, Any]]]) -> None:
    arrived: list[Any] = list(unpack(a_packet(*messages), LIMIT))
    assert [message.id for *_, message, _ in arrived] == list(range(len(messages)))
    for (to, sender, message, buffers), inputs in zip(arrived, messages, strict=True):
        assert (to, sender) == ("to", "sender")
        for header, buffer, array in zip(message.inputs, buffers, inputs, strict=True):
            came = decode_array(header, buffer)
            assert came.shape == array.shape
            assert came.dtype == array.dtype
            assert np.array_equal(came, array)


def test_small_tensors_share_a_frame_and_large_ones_do_not() -> None:
    small, large = np.ones((2, 8), np.float32), np.ones(GLUE_BELOW, np.uint8)
    assert len(a_packet([small, small], [small])) == 2
    assert len(a_packet([small, large], [small])) == 4
    assert len(a_packet([small])) == 2
    assert len(a_packet([])) == 1
    for packet in (a_packet([small, small], [small]), a_packet([small, large], [small])):
        assert [len(buffers) for *_, buffers in unpack(packet, LIMIT)] == [2, 1]


def test_every_kind_of_message_with_tensors_gets_its_own() -> None:
    header, payload = encode_array("x", np.arange(4, dtype=np.int32))
    messages: list[Any] = [
        Ping(1),
        Answer(1, 0, (header,)),
        Ship(2, "h", (Shipped(1, (header,)), Shipped(2, (header,)))),
        Cancel((1,)),
    ]
    arrived = unpack(pack([Envelope("", "", messages)], [payload] * 3), LIMIT)
    assert [len(buffers) for *_, buffers in arrived] == [0, 1, 2, 0]


def test_any_layout_arrives_as_little_endian_rows() -> None:
    array = np.arange(12, dtype=">f4").reshape(3, 4).T
    header, payload = encode_array("x", array)
    assert header == Tensor("x", "FP32", (4, 3), 48)
    assert bytes(payload) == array.astype("<f4").tobytes()


def test_a_contiguous_array_is_not_copied() -> None:
    array = np.zeros(8, np.float32)
    _, payload = encode_array("x", array)
    array[0] = 1
    assert decode_array(Tensor("x", "FP32", (8,), 32), payload)[0] == 1


@pytest.mark.parametrize("array", [np.zeros(2, np.complex64), np.zeros(2, "M8[s]"), np.array([1, None], object)])
def test_what_the_protocol_has_no_datatype_for_is_refused(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(InvalidInput, match="input 'x'"):
        encode_array("x", array)


LIES = [
    ([("x", "FP32", [1, 4], 12)], [b"0" * 12], "got 12 bytes, wanted 16"),
    ([("x", "FP32", [1, 4], 16)], [b"0" * 12], "got frames of"),
    ([("x", "FP32", [1, 4], 16)], [], "got frames of"),
    ([("x", "FP32", [1, 4], 16)], [b"0" * 16, b"0"], "got frames of"),
    ([], [b"0"], "got frames of"),
    ([("x", "FP32", [-1, -4], 16)], [b"0" * 16], "no negative dimension"),
    ([("x", "FP32", [1 << 62, 1 << 62, 0], 0)], [b""], "none over"),
    ([("x", "FP32", [1] * 33, 4)], [b"0" * 4], "33 dimensions"),
    ([("x", "FP8", [4], 4)], [b"0" * 4], "datatype: got 'FP8'"),
    ([("x", "INT8", [4], 4), ("y", "INT8", [4], 4)], [b"0" * 7], "got 7 bytes, wanted 8"),
    ([("s", "BYTES", [1], -5), ("y", "INT8", [15], 15)], [b"0" * 10], "too few"),
    ([("s", "BYTES", [-1, -1], 8)], [b"0" * 8], "no negative dimension"),
    ([("s", "BYTES", [3], 8)], [b"0" * 8], "too few"),
]


@pytest.mark.parametrize(("tensors", "bodies", "why"), LIES)
def test_a_header_that_lies_is_invalid_input(tensors: list[Any], bodies: list[bytes], why: str) -> None:
    header = msgpack.packb([["", "", [[1, 1, "m", "", 0, tensors]]]])
    with pytest.raises(InvalidInput, match=why):
        unpack([header, *bodies], LIMIT)


def test_an_empty_tensor_too_large_for_an_array_is_invalid_input() -> None:
    with pytest.raises(InvalidInput, match="shape"):
        decode_array(Tensor("x", "FP32", (0, 1 << 40, 1 << 40), 0), b"")


def test_a_packet_without_frames_is_invalid_input() -> None:
    with pytest.raises(InvalidInput, match="no frames"):
        unpack([], LIMIT)


dims = st.integers(-2, 5) | st.integers(-(1 << 63), (1 << 63) - 1)
tensor_headers = st.tuples(
    st.text(max_size=2),
    st.sampled_from([*DTYPES, "BYTES", "?"]),
    st.lists(dims, max_size=4),
    st.integers(-8, 40) | st.integers(-(1 << 63), (1 << 63) - 1),
)


@given(st.lists(tensor_headers, max_size=3), st.lists(st.binary(max_size=40), max_size=4))
def test_random_headers_and_bodies_raise_nothing_else(tensors: list[Any], bodies: list[bytes]) -> None:
    try:
        for arrival in unpack([msgpack.packb([["", "", [[2, 1, 0, tensors]]]]), *bodies], LIMIT):
            message: Any = arrival[2]
            for header, buffer in zip(message.outputs, arrival[3], strict=True):
                assert decode_array(header, buffer).shape == header.shape
    except InvalidInput:
        pass


def test_rows_are_concatenated_and_a_single_part_is_not_copied() -> None:
    part = memoryview(b"ab")
    assert concat_rows([part]) is part
    assert concat_rows([b"ab", memoryview(b"cd")]) == b"abcd"
