"""What answers of applications are called, so that feedback can name them: `[mark][nonce][hash of the inputs]`. Pure.

The mark tells which selector has predicted it: only that one remembers it. The nonce tells answers to equal inputs
apart.
"""

from __future__ import annotations

import hashlib

MARK_BYTES = 4
NONCE_BYTES = 8
HEAD_BYTES = MARK_BYTES + NONCE_BYTES
"""In front of the hash."""


def selector_mark(address: str) -> bytes:
    """Of a selector, in this incarnation."""
    return hashlib.blake2b(address.encode(), digest_size=MARK_BYTES).digest()
