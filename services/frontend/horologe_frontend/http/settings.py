"""Settings of the HTTP front: table `[http]`."""

from __future__ import annotations

import msgspec

from horologe_common.clock import s


class HttpSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The HTTP front: where it listens, who may use it, and its bounds."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port to listen on; 0: a free one."""
    keys_file: str = ""
    """Bearer keys, one per line, plain or as `sha256:<hex>`; empty: no key is asked for."""
    body_limit_bytes: int = 64 << 20
    """Longest request body, also after decompression."""
    json_limit_bytes: int = 16 << 20
    """Longest JSON part of an inference request; longer tensors belong into binary data, which is not parsed."""
    header_limit_bytes: int = 64 << 10
    """Longest request line and headers together."""
    held_limit_bytes: int = 1 << 30
    """Request bodies held at once, all connections together; beyond it requests are refused with 503."""
    max_requests: int = 4096
    """Requests in flight at once; more are refused with 503."""
    max_connections: int = 4096
    """Connections open at once; more are answered 503 and closed."""
    header_timeout_ns: int = s(10)
    """From the first byte of a request to the end of its headers."""
    body_timeout_ns: int = s(60)
    """From the end of the headers to the end of the body."""
    write_timeout_ns: int = s(60)
    """How long a client may leave an answer unread."""
    idle_timeout_ns: int = s(75)
    """How long a connection may stay open between requests."""
    drain_ns: int = s(30)
    """At a stop: how long requests in flight may take before they are cancelled."""
    compress_from_bytes: int = 1024
    """Shortest answer worth compressing for a client that accepts it."""
