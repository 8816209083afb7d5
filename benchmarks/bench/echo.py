"""A minimal HTTP server: answers every request with the sum of its 16 floats and does not decode headers.

It measures the limit of the load generator itself (`load.py --calibrate`).
"""

from __future__ import annotations

import asyncio
import struct
import sys
from typing import cast

import uvloop

SIZE = 64
unpack, pack = struct.Struct("<16f").unpack, struct.Struct("<f").pack


class EchoConnection(asyncio.Protocol):
    """A connection with one request in flight at a time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.write = cast("asyncio.Transport", transport).write
        self.data = b""

    def data_received(self, data: bytes) -> None:
        data = self.data + data
        end = data.find(b"\r\n\r\n") + 4
        if end < 4 or len(data) < end + SIZE:
            self.data = data
            return
        self.data = b""
        self.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n" + pack(sum(unpack(data[end : end + SIZE]))))


async def serve(port: int) -> None:
    """Serve on 127.0.0.1 until the process ends."""
    server = await asyncio.get_running_loop().create_server(EchoConnection, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
