"""BYTES tensors: each element after its length in four bytes, little-endian. Text is UTF-8, in every place.

An element may be any bytes. For a model whose `ModelSpec.text` is set, each element must be text.
"""

from __future__ import annotations

import struct
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from horologe_common.models import element_count
from horologe_common.status import InvalidInput, TooLarge

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Tensor

MAX_STRINGS = 1 << 17
"""Maximum number of elements of a BYTES input. They are counted one by one on the loop: about 15 ms for so many."""
MAX_ELEMENT_BYTES = (1 << 32) - 1
SHOWN_BYTES = 40
"""Bytes of an element that an error message shows."""
STRING_KINDS = "OSUT"
"""numpy's kinds of dtypes that become BYTES: objects, bytes, text, and text of variable width."""


def as_array(value: Any) -> NDArray[Any]:
    """Return `value` as an array. Lists of strings become objects: numpy's own strings lose NULs at the end, and turn
    numbers among them into text. Raises ValueError for masked values, which `np.asarray` would return as numbers.
    """
    if "numpy.ma" in sys.modules and _has_masked(value):  # without this module there are none, and lists take long
        raise ValueError("got masked values, wanted numbers: see numpy.ma.filled")
    try:
        array = np.asarray(value)
    except UnicodeDecodeError:  # text beside bytes that are not ASCII
        return np.asarray(value, object)
    return np.asarray(value, object) if array.dtype.kind in "SU" and not isinstance(value, np.ndarray) else array


def _has_masked(value: Any) -> bool:
    """Return whether an array, or an array in a list, has masked values. Raises ValueError for endless lists."""
    if isinstance(value, list | tuple):
        try:
            has_arrays = any(issubclass(kind, list | tuple | np.ndarray) for kind in set(map(type, value)))
            return has_arrays and any(map(_has_masked, value))
        except RecursionError:
            raise ValueError("got a list within itself") from None
    return isinstance(value, np.ndarray) and bool(np.any(getattr(value, "mask", False)))


def join_strings(items: Iterable[bytes]) -> bytes:
    """Encode the elements of a BYTES tensor."""
    return b"".join(struct.pack("<I", len(item)) + item for item in items)


def encode_strings(where: str, array: NDArray[Any]) -> bytes:
    """Encode an array of `str` (as UTF-8) and `bytes`. Raises `InvalidInput` naming `where` and the element."""
    items: list[bytes] = []
    for index, item in enumerate(array.ravel().tolist() if array.dtype.kind != "O" else array.ravel()):
        try:
            items.append(_as_bytes(item))
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"{where}: BYTES: {element_name(array.shape, index)}: {error}") from None
    return join_strings(items)


def _as_bytes(item: Any) -> bytes:
    """Raises TypeError or ValueError with the text of the error message."""
    if isinstance(item, str):
        try:
            encoded = item.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"got {item[:SHOWN_BYTES]!r} ({error.reason}), wanted text that UTF-8 can encode"
            ) from None
    elif isinstance(item, bytes | bytearray | memoryview):  # bytes(5) would be five zero bytes
        encoded = bytes(item)
    else:
        raise TypeError(f"got an item of {type(item).__name__}, wanted strings or bytes")
    if len(encoded) > MAX_ELEMENT_BYTES:
        raise ValueError(f"got {len(encoded)} bytes, wanted at most {MAX_ELEMENT_BYTES}")
    return encoded


def split_strings(where: str, shape: Sequence[int], buffer: Buffer) -> Iterator[memoryview]:
    """Yield the elements of a BYTES tensor. Raises `InvalidInput` unless the bytes are exactly those of the shape."""
    view, wanted, end = memoryview(buffer), element_count(shape), 0
    size = len(view)
    for index in range(wanted):
        begin = end + 4
        if begin > size:
            raise InvalidInput(f"{where}: BYTES: got {index} strings, wanted {wanted} for {list(shape)}")
        end = begin + int.from_bytes(view[end:begin], "little")
        yield view[begin:end]
    if end != size:
        raise InvalidInput(f"{where}: BYTES: got {size} bytes, wanted {end} for {wanted} strings of {list(shape)}")


def decode_strings(where: str, shape: Sequence[int], buffer: Buffer) -> NDArray[Any]:
    """Return an object array of `bytes`. Raises `InvalidInput` as `split_strings`."""
    items = [bytes(item) for item in split_strings(where, shape, buffer)]
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(tuple(shape))


def decode_text(where: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return an object array of `str` from one of `bytes`. Raises `InvalidInput` naming `where` and the element."""
    text = np.empty(array.size, object)
    for index, item in enumerate(array.ravel()):
        text[index] = _text(where, array.shape, index, item)
    return text.reshape(array.shape)


def check_strings(spec: ModelSpec, inputs: Sequence[Tensor], buffers: Sequence[Buffer]) -> None:
    """Raise `InvalidInput`, naming input and element, unless the bytes of BYTES inputs are what the model accepts.

    Raises `TooLarge` over `MAX_STRINGS`. The shapes must have been checked.
    """
    for tensor, buffer in zip(inputs, buffers, strict=True):
        if tensor.datatype == "BYTES":
            check_string_tensor(f"input {tensor.name!r}", tensor.shape, buffer, spec.text)


def check_string_tensor(where: str, shape: Sequence[int], buffer: Buffer, text: bool) -> None:
    """Raise `InvalidInput` or `TooLarge` unless the bytes are a BYTES tensor of this shape; of UTF-8 if `text`."""
    if (count := element_count(shape)) > MAX_STRINGS:
        raise TooLarge(f"{where}: shape: got {list(shape)}, {count} strings, at most {MAX_STRINGS}")
    for index, item in enumerate(split_strings(where, shape, buffer)):
        if text:
            _text(where, shape, index, item)


def element_name(shape: Sequence[int], index: int) -> str:
    """Return the name of an element in an error message, such as `element [2, 0]`, from its row-major number."""
    place: list[int] = []
    for dim in reversed(shape):
        index, position = divmod(index, dim)
        place.insert(0, position)
    return f"element {place}"


def _text(where: str, shape: Sequence[int], index: int, item: Buffer) -> str:
    try:
        return str(item, "utf-8")
    except UnicodeDecodeError as error:
        got = bytes(item[:SHOWN_BYTES])
        raise InvalidInput(
            f"{where}: BYTES: {element_name(shape, index)}: got {got!r} ({error.reason} at byte {error.start}), "
            "wanted UTF-8 text"
        ) from None
