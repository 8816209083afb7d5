"""Proxies between a client and a server, which note the requests of the client."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import grpc

from fakes.proxy import Proxy, _close

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

REQUEST_LINE = re.compile(rb"((?:GET|POST|PUT|DELETE) /\S*) HTTP/1\.1\r\n")
UNLIMITED = (("grpc.max_receive_message_length", -1),)


class HttpRecorder(Proxy):
    """Forwards connections, and notes method and path of each request."""

    def __init__(self, address: str) -> None:
        self.requests: list[str] = []
        super().__init__(int(address.rpartition(":")[2]))
        self.address = f"127.0.0.1:{self.port}"

    def _copy(self, pair: tuple[socket.socket, socket.socket], source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while chunk := source.recv(1 << 16):
                if source is pair[0]:
                    self.requests += [line.decode() for line in REQUEST_LINE.findall(chunk)]
                sink.sendall(chunk)
        _close(sink)


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
        call = self._channel.stream_stream(method)(messages, context.time_remaining(), metadata)
        context.add_callback(call.cancel)
        try:
            yield from call
        except grpc.RpcError:
            context.set_trailing_metadata(call.trailing_metadata())
            context.abort(call.code(), call.details())
