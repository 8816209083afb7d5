"""Bearer keys of HTTP and gRPC clients: those that may use models, and those that may also manage them."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import TYPE_CHECKING

from horologe_common.service.settings import SettingsError
from horologe_common.service.user_files import read_file
from horologe_common.status import Forbidden, Unauthenticated, describe_error
from horologe_common.transport.keys import is_loopback_host

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_frontend.http.settings import HttpSettings

PREFIX = "sha256:"
KEY_DIGITS = 16
"""Digits of the digest of a bearer key that name its holder."""


class BearerKeys:
    """The accepted keys, as SHA-256 digests."""

    def __init__(self, digests: Iterable[bytes]) -> None:
        self._digests = tuple(digests)

    def is_accepted(self, authorization: bytes | None) -> bool:
        """Return whether an Authorization header carries an accepted key. Compares in constant time."""
        digest = token_digest(authorization)
        return sum([hmac.compare_digest(digest, accepted) for accepted in self._digests]) > 0


class AccessKeys:
    """The keys that permit requests, and those that also permit management. Both None: every client may do all."""

    def __init__(self, keys: BearerKeys | None = None, managers: BearerKeys | None = None) -> None:
        self._keys = keys
        self._managers = managers
        self.is_open = keys is None and managers is None

    def check(self, authorization: bytes | None) -> None:
        """Raise `Unauthenticated` unless the Authorization header carries an accepted key, or none is needed."""
        if self._keys is None:
            return
        if not any(keys is not None and keys.is_accepted(authorization) for keys in (self._keys, self._managers)):
            raise Unauthenticated()

    def check_management(self, authorization: bytes | None) -> None:
        """Raise `Forbidden` unless the Authorization header carries a key for management, or none is needed."""
        if self.is_open:
            return
        if self._managers is None:
            raise Forbidden("management is off: http.management_keys_file is not set")
        if not self._managers.is_accepted(authorization):
            raise Forbidden("the key is not in http.management_keys_file")

    def client_name(self, authorization: bytes | None, address: str) -> str:
        """Return the name of the client that shares devices with others: of its key, or its address without keys."""
        return address if self._keys is None else key_name(authorization)


def token_digest(authorization: bytes | None) -> bytes:
    """Return the SHA-256 digest of the token in an Authorization header. Empty without a bearer token."""
    scheme, _, token = (authorization or b"").partition(b" ")
    return hashlib.sha256(token.strip()).digest() if scheme.lower() == b"bearer" else b""


def key_name(authorization: bytes | None) -> str:
    """Return the name of the key in an Authorization header: the first digits of its digest."""
    return f"key {token_digest(authorization).hex()[:KEY_DIGITS]}"


def check_open(settings: HttpSettings, host: str | None = None, setting: str = "http.host") -> None:
    """Raise `SettingsError` for an address that is not loopback without keys, unless `allow_open` is set.

    `host`: address of another server with the same keys, named by `setting`. Default: that of the HTTP server.
    """
    host = settings.host if host is None else host
    if not (settings.keys_file or settings.allow_open or is_loopback_host(host)):
        raise SettingsError(
            f"setting {setting}: {host or '*'} is not loopback and no keys are set; set http.keys_file, or "
            "http.allow_open = true (`horologe up --insecure`) to let every host use and manage all models"
        )


def read_keys(file: str, setting: str = "http.keys_file") -> BearerKeys | None:
    """Read a file of keys: one per line, plain or `sha256:<hex>`. Blank lines and `#` comments are skipped.

    Return None, for no authentication, if the file name is empty. Raise `SettingsError` if the file cannot be read or
    holds no key: a server that is configured to check keys must not run without them.
    """
    if not file:
        return None
    try:
        lines = [line.strip() for line in read_file(Path(file)).decode().splitlines()]
        digests = [_parse_key(line) for line in lines if line and not line.startswith("#")]
    except (OSError, ValueError) as error:
        raise SettingsError(f"setting {setting}: {file}: {describe_error(error)}") from error
    if not digests:
        raise SettingsError(f"setting {setting}: {file}: got no key, wanted at least one")
    return BearerKeys(digests)


def _parse_key(line: str) -> bytes:
    if not line.startswith(PREFIX):
        return hashlib.sha256(line.encode()).digest()
    digest = bytes.fromhex(line.removeprefix(PREFIX))
    if len(digest) != 32:
        raise ValueError(f"got a digest of {len(digest)} bytes, wanted 32")
    return digest
