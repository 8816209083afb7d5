"""Settings of the HTTP server: table `[http]`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from horologe_common.clock import s


class HttpSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The HTTP server: address, keys and limits. gRPC has the same keys and limits."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    """Port to listen on. 0: any free port."""
    keys_file: str = ""
    """Key file: what each key may do, over HTTP, over gRPC, and with `links.keys` also over the SDK. Written by
    `horologe keys`, and read again when it changes. Empty: requests need no key, and may do everything."""
    uploads: str = ""
    """Folder to which a load with `config` or files writes the model, for keys with `upload`: the repository of all
    workers, where this process can write it. `horologe up` sets it if its models are in a folder. Empty: such loads are
    answered with 501."""
    allow_open: bool = False
    """Allow an address that is not loopback without `keys_file` and without `tls.client_ca_file`: every host that can
    connect may then use and manage all models."""
    body_limit_bytes: int = 64 << 20
    """Maximum size of a request body, also after decompression."""
    json_limit_bytes: int = 16 << 20
    """Maximum size of the JSON part of an inference request. Send larger tensors as binary data."""
    held_limit_bytes: int = 1 << 30
    """Maximum size of all requests and unsent responses in memory: headers, bodies, also decompressed. Beyond it,
    requests are refused, and connections whose responses are not read are closed."""
    refused_status: Literal[429, 503] = 429
    """HTTP status of requests that are REFUSED, and of connections beyond `max_connections`. Proxies and clients treat
    503 as a fault of this server, and repeat the request at once: see docs/http.md."""
    client_share: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """Maximum share for one client, an IPv4 address or a /64 network of IPv6, of what other clients leave of
    `max_connections`, `max_requests` and `held_limit_bytes`. Set 1.0 behind a proxy, whose requests come from one
    address."""
    max_requests: int = 4096
    """Maximum number of requests in flight. Further requests are refused."""
    max_connections: int = 4096
    """Maximum number of open connections. Further connections are refused and closed. If the process may
    open fewer files, the maximum is lower."""
    body_timeout_ns: int = s(60)
    """Timeout from the end of the headers to the end of a request's body, and for a client that does not read its
    response."""
    idle_timeout_ns: int = s(75)
    """Timeout between two requests on a connection."""
