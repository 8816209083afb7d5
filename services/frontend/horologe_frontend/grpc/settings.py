"""Settings of the gRPC server: table `[grpc]`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class GrpcSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The gRPC server: its address. Keys and limits are those of `[http]`, certificates those of `[tls]`."""

    enabled: bool = True
    """Serve gRPC, if the packages of the extra `grpc` are installed."""
    host: str = "127.0.0.1"
    """Address to listen on for gRPC."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8001
    """Port to listen on for gRPC. 0: any free port."""
