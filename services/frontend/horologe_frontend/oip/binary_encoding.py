"""The binary tensor data extension: a JSON header, then the raw bytes of the tensors that have no `data`."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

from horologe_common.models import DTYPES
from horologe_common.status import InvalidInput, TooLarge

if TYPE_CHECKING:
    from collections.abc import Iterable

HEADER_LENGTH = b"inference-header-content-length"
MAX_STRINGS = 1 << 17
"""Strings in one BYTES tensor: they are counted one by one on the loop (about 15 ms for so many)."""


def split(body: bytes, header_length: bytes) -> tuple[memoryview, memoryview]:
    """JSON and blob. Raises `InvalidInput` for a length that is no number or longer than the body."""
    try:
        length = int(header_length) if header_length.isdigit() else -1
    except ValueError:
        length = -1
    if not 0 <= length <= len(body):
        got = header_length[:40].decode("latin-1")
        raise InvalidInput(f"Inference-Header-Content-Length: got {got!r}, wanted 0 to {len(body)}, the body's length")
    view = memoryview(body)
    return view[:length], view[length:]


class Blob:
    """The bytes behind the JSON, handed out in the order of the inputs."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def take(self, name: str, size: object) -> memoryview:
        """The next `size` bytes, for input `name`."""
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise InvalidInput(f"input {name!r}: binary_data_size: got {size!r}, wanted a number of bytes")
        left = len(self._view) - self._at
        if size > left:
            raise InvalidInput(f"input {name!r}: binary_data_size: got {size}, but only {left} bytes are left")
        self._at += size
        return self._view[self._at - size : self._at]

    def end(self) -> None:
        """Raises `InvalidInput` unless everything was taken."""
        if left := len(self._view) - self._at:
            raise InvalidInput(f"body: got {left} bytes behind the last binary input, wanted none")


def check_bytes(name: str, datatype: str, shape: tuple[int, ...], view: memoryview) -> None:
    """Raise `InvalidInput` unless these bytes are a tensor of that (known) datatype and shape."""
    if datatype == "BYTES":
        _check_strings(name, shape, view)
    elif len(view) != (size := math.prod(shape) * DTYPES[datatype].itemsize):
        raise InvalidInput(
            f"input {name!r}: binary_data_size: got {len(view)}, wanted {size} for {datatype}{list(shape)}"
        )


def _check_strings(name: str, shape: tuple[int, ...], view: memoryview) -> None:
    wanted = math.prod(shape)
    if wanted > MAX_STRINGS:
        raise TooLarge(f"input {name!r}: shape: got {list(shape)}, at most {MAX_STRINGS} strings")
    at, size = 0, len(view)
    for index in range(wanted):
        if at + 4 > size:
            raise InvalidInput(f"input {name!r}: BYTES: got {index} strings, wanted {wanted} for {list(shape)}")
        at += 4 + int.from_bytes(view[at : at + 4], "little")
    if at != size:
        raise InvalidInput(f"input {name!r}: BYTES: got {size} bytes, wanted {at} for {wanted} strings")


def join_strings(items: Iterable[bytes]) -> bytes:
    """BYTES: each string behind its length, four bytes little-endian."""
    return b"".join(struct.pack("<I", len(item)) + item for item in items)
