"""gzip and deflate of HTTP bodies, in steps: each takes a fair turn of the loop, and counts the memory it takes."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from horologe_common.status import InvalidInput, TooLarge
from horologe_frontend.http.http_messages import HttpError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_frontend.http.client_accounts import HeldBytes

STEP_BYTES, STEP_MEMBERS = 128 << 10, 256
"""Input or output of one step, and members of a gzip body: up to 1 ms."""
INPUT_BYTES = 16 << 10
"""Input that is passed to zlib at once. zlib copies what it does not use, at the end of each member of a gzip body."""
MAX_MEMBERS = 4096
"""Maximum number of members of a gzip body. `bgzip` writes one per 64 kB; an empty one has 20 bytes and costs 2 us."""
GZIP, ZLIB, RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
LEVEL = 1


async def decompress_body(body: bytes, encoding: bytes, limit: int, held: HeldBytes) -> bytes:
    """Return the decompressed body, whose size is added to `held`. If cancelled, no further step runs.

    Raise `TooLarge` if it exceeds `limit` bytes, `Refused` if there is no memory, and `HttpError` 415 for an
    unsupported encoding. Raise `InvalidInput` if the body is damaged, truncated or followed by other bytes.
    """
    match encoding.strip().lower():
        case b"" | b"identity":
            return body
        case b"gzip" | b"x-gzip":
            window = GZIP
        case b"deflate":
            window = ZLIB if _is_zlib(body) else RAW
        case other:
            reason = f"content-encoding: got {other[:40].decode('latin-1')!r}, wanted gzip or deflate"
            raise HttpError(415, reason, ((b"accept-encoding", b"gzip, deflate"),))
    account, before, inflation = held.account, held.size, Inflation(body, window)
    try:
        while not await account.turns.in_turn(account, inflation.step):
            if len(inflation.output) > limit:
                break
            held.grow_to(before + len(inflation.output))
    except zlib.error as error:
        raise InvalidInput(f"body: got {error}, wanted {encoding.decode('latin-1')}") from error
    if len(inflation.output) > limit:
        raise TooLarge(f"body: more than {limit} bytes after decompression")
    held.grow_to(before + len(inflation.output))
    return bytes(inflation.output)


class Inflation:
    """The decompression of one body."""

    def __init__(self, body: bytes, window: int) -> None:
        self.output = bytearray()
        self._window = window
        self._body = memoryview(body)
        self._input: bytes | memoryview = b""
        self._at = 0
        self._members = 1
        self._work = zlib.decompressobj(window)

    def step(self) -> bool:
        """Process about `STEP_BYTES`. Return True at the end of the body. Raise `zlib.error` or `InvalidInput`."""
        last, end, members = self._at + STEP_BYTES, len(self.output) + STEP_BYTES, self._members + STEP_MEMBERS
        while self._at < last and len(self.output) < end and self._members < members:
            if not self._input:
                self._input = self._body[self._at : self._at + INPUT_BYTES]
                self._at += len(self._input)
            if self._work.eof:
                if not self._input:
                    return True
                self._begin_member()
            part = self._work.decompress(self._input, STEP_BYTES)
            if not part and not self._input and not self._work.eof:
                raise InvalidInput("body: compressed data ends too early")
            self.output += part
            self._input = self._work.unused_data if self._work.eof else self._work.unconsumed_tail
        return False

    def _begin_member(self) -> None:
        if self._window != GZIP:
            raise InvalidInput("body: got bytes after the end of the compressed data, wanted none")
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise InvalidInput(f"body: got more than {MAX_MEMBERS} gzip members")
        self._work = zlib.decompressobj(GZIP)


def _is_zlib(body: bytes) -> bool:
    """Detect the zlib format. `deflate` means zlib (RFC 9110 8.4.1.2), but some clients send raw deflate data."""
    return len(body) >= 2 and body[0] & 0x0F == 8 and int.from_bytes(body[:2], "big") % 31 == 0


def choose_encoding(accept_encoding: bytes) -> bytes:
    """Return the encoding for the response: `gzip`, `deflate`, or empty for none."""
    offers = {}
    for part in accept_encoding.lower().split(b","):
        name, *parameters = (item.strip() for item in part.split(b";"))
        offers[name] = not any(item in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000") for item in parameters)
    for name in (b"gzip", b"deflate"):
        if offers.get(name):
            return name
    return b""


async def compress_body(parts: Sequence[Buffer], encoding: bytes, held: HeldBytes) -> bytes:
    """Return the parts of a body compressed as `encoding`, a result of `choose_encoding`. Its size is added to `held`.

    Raise `Refused` or `TooLarge` if there is no memory. If cancelled, no further step runs.
    """
    account, before = held.account, held.size
    work = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP if encoding == b"gzip" else ZLIB)
    output = bytearray()
    for part in parts:
        view = memoryview(part)
        for at in range(0, len(view), STEP_BYTES):
            output += await account.turns.in_turn(account, work.compress, view[at : at + STEP_BYTES])
            held.grow_to(before + len(output))
    return bytes(output + work.flush())
