"""BLAKE3 digest of a request's inputs: the key of the prediction cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import blake3

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer


def digest(header: bytes, buffers: Sequence[Buffer]) -> bytes:
    """Return the 32-byte BLAKE3 digest of the tensor headers and the tensor bytes."""
    hasher = blake3.blake3(header)
    for buffer in buffers:
        hasher.update(buffer)
    return bytes(hasher.digest())
