"""Proxies between a client and a server, which note the requests of the client."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import grpc

from fakes.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUEST_LINE = re.compile(rb"((?:GET|POST|PUT|DELETE) /\S*) HTTP/1\.1\r\n")
NO_DEADLINE_S = 1e6
"""grpc reports a call without a deadline as one with a deadline in the far future."""


class HttpRecorder(Proxy):
    """Forwards connections, and notes method and path of each request."""

    def __init__(self, address: str) -> None:
        self.requests: list[str] = []
        super().__init__(int(address.rpartition(":")[2]))
        self.address = f"127.0.0.1:{self.port}"

    def _read_chunk(self, chunk: bytes, is_from_client: bool) -> None:
        if is_from_client:
            self.requests += [line.decode() for line in REQUEST_LINE.findall(chunk)]


class GrpcRecorder(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Forwards calls with their metadata, deadline and status, and notes their methods."""

    def __init__(self, address: str) -> None:
        self.requests: list[str] = []
        self._channel = grpc.insecure_channel(address)
        self._server = grpc.server(ThreadPoolExecutor(20), handlers=[self])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()
        self._channel.close()

    def service(self, details: Any) -> Any:
        """Return the handler of any method. Messages stay bytes."""
        return grpc.stream_stream_rpc_method_handler(partial(self._forward, details.method))

    def _forward(self, method: str, messages: Any, context: Any) -> Iterator[bytes]:
        self.requests.append(method.rpartition("/")[2])
        metadata = [item for item in context.invocation_metadata() if item[0] != "user-agent"]
        remaining_s = context.time_remaining()
        timeout_s = remaining_s if remaining_s is not None and remaining_s < NO_DEADLINE_S else None
        call = self._channel.stream_stream(method)(messages, timeout_s, metadata)
        context.add_callback(call.cancel)
        try:
            yield from call
        except grpc.RpcError:
            context.set_trailing_metadata(call.trailing_metadata())
            context.abort(call.code(), call.details())
