"""Where a policy's randomness comes from when a context is to keep its model."""

from __future__ import annotations

import hashlib


class Sticky:
    """Chance that follows from a context: whoever has it gets the same model each time."""

    def __init__(self, context: str) -> None:
        self._context = context.encode()
        self._draws = 0

    def random(self) -> float:
        self._draws += 1
        digest = hashlib.blake2b(self._context, digest_size=7, salt=self._draws.to_bytes(8, "big")).digest()
        return (int.from_bytes(digest, "big") >> 3) / (1 << 53)

    def betavariate(self, alpha: float, beta: float) -> float:
        """The mean: a context that keeps its model explores nothing."""
        return alpha / (alpha + beta)
