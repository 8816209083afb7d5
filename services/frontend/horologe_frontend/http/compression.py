"""gzip and deflate of HTTP bodies, in steps."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from horologe_common.status import InvalidInput, TooLarge
from horologe_frontend.http.http_messages import HttpError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_frontend.http.steps import Steps

STEP_BYTES, STEP_MEMBERS = 128 << 10, 256
"""Input or output of one step, and members of a gzip body: up to 1 ms."""
INPUT_BYTES = 16 << 10
"""Input that is passed to zlib at once. zlib copies what it does not use, at the end of each member of a gzip body."""
MAX_MEMBERS = 4096
"""Maximum number of members of a gzip body. `bgzip` writes one per 64 kB; an empty one has 20 bytes and costs 2 us."""
GZIP, ZLIB, RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
LEVEL = 1


def decompress(body: bytes, encoding: bytes, limit: int) -> Steps[bytes]:
    """Return the decompressed body. Raise `TooLarge` if it exceeds `limit` bytes.

    Raise `HttpError` 415 for an unsupported encoding, `InvalidInput` if the body is damaged, truncated or followed by
    other bytes.
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
    try:
        return (yield from inflate(body, window, limit))
    except zlib.error as error:
        raise InvalidInput(f"body: got {error}, wanted {encoding.decode('latin-1')}") from error


def inflate(body: bytes, window: int, limit: int) -> Steps[bytes]:
    """Return the decompressed body. Raise as `decompress` does, and `zlib.error`."""
    view, work, output = memoryview(body), zlib.decompressobj(window), bytearray()
    data: bytes | memoryview = b""
    at, members, step = 0, 1, (STEP_BYTES, STEP_BYTES, STEP_MEMBERS)
    while data or at < len(view) or not work.eof:
        if not data:
            data = view[at : at + INPUT_BYTES]
            at += len(data)
        if work.eof:
            members += 1
            _check_member(window, members)
            work = zlib.decompressobj(GZIP)
        part = work.decompress(data, STEP_BYTES)
        if not part and not data and not work.eof:
            raise InvalidInput("body: compressed data ends too early")
        output += part
        data = work.unused_data if work.eof else work.unconsumed_tail
        if len(output) > limit:
            raise TooLarge(f"body: more than {limit} bytes after decompression")
        if at >= step[0] or len(output) >= step[1] or members >= step[2]:
            step = at + STEP_BYTES, len(output) + STEP_BYTES, members + STEP_MEMBERS
            yield len(output)
    yield len(output)
    return bytes(output)


def _check_member(window: int, number: int) -> None:
    if window != GZIP:
        raise InvalidInput("body: got bytes after the end of the compressed data, wanted none")
    if number > MAX_MEMBERS:
        raise InvalidInput(f"body: got more than {MAX_MEMBERS} gzip members")


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


def compress(parts: Sequence[Buffer], encoding: bytes) -> Steps[bytes]:
    """Return the parts of a body compressed as `encoding`, a result of `choose_encoding`."""
    work = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP if encoding == b"gzip" else ZLIB)
    output = bytearray()
    for part in parts:
        view = memoryview(part)
        for at in range(0, len(view), STEP_BYTES):
            output += work.compress(view[at : at + STEP_BYTES])
            yield len(output)
    return bytes(output + work.flush())
