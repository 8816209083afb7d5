"""The strong hash of a request's inputs, under which the prediction cache knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import blake3

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer


def digest(header: bytes, buffers: Sequence[Buffer]) -> bytes:
    """BLAKE3 over the tensors' headers and bytes, 32 bytes."""
    hasher = blake3.blake3(header)
    for buffer in buffers:
        hasher.update(buffer)
    return bytes(hasher.digest())
