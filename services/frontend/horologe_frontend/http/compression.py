"""gzip and deflate of HTTP bodies, with limits on the decompressed size and on the time spent on the loop."""

from __future__ import annotations

import asyncio
import zlib

from horologe_common.status import InvalidInput, TooLarge
from horologe_frontend.http.http_responses import HttpError

INLINE_BYTES = 256 << 10
"""Bodies up to this size are processed on the loop, in about 1 ms. Larger ones go to a thread."""
GZIP, ZLIB, RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
LEVEL = 1


async def decompress_body(body: bytes, encoding: bytes, limit: int) -> bytes:
    """Return the decompressed body.

    Raise `TooLarge` if it exceeds `limit` bytes, and `HttpError` 415 for an unsupported encoding. Raise `InvalidInput`
    if the body is damaged, truncated or followed by other bytes.
    """
    match encoding.strip().lower():
        case b"" | b"identity":
            return body
        case b"gzip" | b"x-gzip":
            window = GZIP
        case b"deflate":
            window = ZLIB if _is_zlib(body) else RAW
        case other:
            reason = f"content-encoding: got {other.decode('latin-1')!r}, wanted gzip or deflate"
            raise HttpError(415, reason, ((b"accept-encoding", b"gzip, deflate"),))
    work = zlib.decompressobj(window)
    try:
        first = work.decompress(body, min(limit + 1, INLINE_BYTES))
        if work.eof and not work.unused_data:
            return _check_size(first, limit)
        return await asyncio.to_thread(_decompress_large, work, first, window, limit)
    except zlib.error as error:
        raise InvalidInput(f"body: got {error}, wanted {encoding.decode('latin-1')}") from error


def _decompress_large(work: zlib._Decompress, first: bytes, window: int, limit: int) -> bytes:
    parts, size = [first], len(first)
    while size <= limit:
        if work.eof:
            if not work.unused_data:
                return b"".join(parts)
            if window != GZIP:
                raise InvalidInput(f"body: got {len(work.unused_data)} bytes after the end of the compressed data")
            pending, work = work.unused_data, zlib.decompressobj(window)
        else:
            pending = work.unconsumed_tail
        part = work.decompress(pending, limit + 1 - size)
        if not part and not work.eof and not work.unconsumed_tail:
            raise InvalidInput("body: compressed data ends too early")
        parts.append(part)
        size += len(part)
    raise TooLarge(f"body: more than {limit} bytes after decompression")


def _check_size(body: bytes, limit: int) -> bytes:
    if len(body) > limit:
        raise TooLarge(f"body: more than {limit} bytes after decompression")
    return body


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


async def compress_body(body: bytes, encoding: bytes) -> bytes:
    """Return the body compressed as `encoding`, a result of `choose_encoding`."""
    window = GZIP if encoding == b"gzip" else ZLIB
    if len(body) <= INLINE_BYTES:
        return _compress(body, window)
    return await asyncio.to_thread(_compress, body, window)


def _compress(body: bytes, window: int) -> bytes:
    return zlib.compress(body, LEVEL, window)
