"""Bearer keys: who may use the HTTP front."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import TYPE_CHECKING

from horologe_common.service.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable

PREFIX = "sha256:"


class Keys:
    """The accepted keys, kept as SHA-256 digests. Without keys everybody is let in."""

    def __init__(self, digests: Iterable[bytes] = ()) -> None:
        self._digests = tuple(digests)

    @classmethod
    def read(cls, file: str) -> Keys:
        """Keys of a file: one per line, plain or `sha256:<hex>`; blank lines and `#` comments are skipped.

        An empty name means no keys. Raises `SettingsError` if the file cannot be read or holds no key, since a
        server that was told to ask for keys must not run open.
        """
        if not file:
            return cls()
        try:
            lines = [line.strip() for line in Path(file).read_text(encoding="utf-8").splitlines()]
            digests = [_digest(line) for line in lines if line and not line.startswith("#")]
        except (OSError, ValueError) as error:
            raise SettingsError(f"setting http.keys_file: {file}: {error}") from error
        if not digests:
            raise SettingsError(f"setting http.keys_file: {file}: got no key, wanted at least one")
        return cls(digests)

    def accept(self, authorization: bytes | None) -> bool:
        """Whether an Authorization header carries a key. Takes as long for a near miss as for a wild guess."""
        if not self._digests:
            return True
        scheme, _, token = (authorization or b"").partition(b" ")
        digest = hashlib.sha256(token.strip()).digest()
        hits = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(hits) and scheme.lower() == b"bearer"


def _digest(line: str) -> bytes:
    if not line.startswith(PREFIX):
        return hashlib.sha256(line.encode()).digest()
    digest = bytes.fromhex(line.removeprefix(PREFIX))
    if len(digest) != 32:
        raise ValueError(f"got a digest of {len(digest)} bytes, wanted 32")
    return digest
