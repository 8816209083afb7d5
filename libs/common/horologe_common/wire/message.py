"""Tensors."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of all: encoded as `[tag, field, ...]`."""


class Tensor(Message, frozen=True):
    """Header of one tensor; its `nbytes` bytes (little-endian, row-major) follow in the body."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    nbytes: int
