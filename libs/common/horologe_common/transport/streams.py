"""Streams: packets between processes of one machine over Unix sockets, read and written on the loop's own thread.

A ZeroMQ socket has a thread of its own at each end. A round trip between two processes takes 13 us over a stream and 70
to 120 us over ZeroMQ's ipc. A packet is the number of its frames, their lengths, and the frames. A packet without
frames is a heartbeat.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from typing import TYPE_CHECKING, cast

from horologe_common.service.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer

SCHEME = "unix://"
COUNT = struct.Struct("<I")
FRAMES_MAX = 1 << 16
UNSENT_MAX = 64 << 20
"""Bytes that may wait for a peer that does not read. Further packets are dropped."""
HEARTBEAT_S, SILENCE_MAX = 1.0, 5
"""A peer that sends nothing for five heartbeats is stopped or stuck: its connection is closed."""
RETRY_S, RETRY_MAX_S = 0.02, 0.5
LINGER_S = 0.2


class Stream(asyncio.Protocol):
    """One connection. `accepted`: the peer has connected to this process, not the other way round."""

    def __init__(self, streams: Streams, accepted: bool) -> None:
        self.accepted = accepted
        self.closed = asyncio.Event()
        self._streams = streams
        self._parts: list[bytes] = []
        """What has arrived of the next packet."""
        self._arrived = self._needed = 0
        """Size of the parts, and the size from which it is worth to parse them."""
        self._silent = 0
        self._heartbeat: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's derives from neither
        self._heartbeat = asyncio.get_running_loop().call_later(HEARTBEAT_S, self._beat)
        self._streams.open[self] = True
        self._streams.on_connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of `asyncio.Protocol`."""
        if self._heartbeat:
            self._heartbeat.cancel()
        self.closed.set()
        self._streams.open.pop(self, None)
        self._streams.on_lost(self)

    def data_received(self, data: bytes) -> None:
        """Part of `asyncio.Protocol`. Passes on all packets that are complete."""
        self._silent = 0
        self._arrived += len(data)
        if self._arrived < self._needed:
            self._parts.append(data)
            return
        if self._parts:
            data = b"".join((*self._parts, data))
            self._parts.clear()
        at = 0
        while (packet := self._parse(data, at)) is not None:
            frames, at = packet
            if frames:
                self._streams.on_packet(self, frames)
        self._arrived = len(data) - at
        if self._arrived:
            self._parts.append(data[at:] if at else data)

    def _parse(self, data: bytes, at: int) -> tuple[list[memoryview], int] | None:
        """Return the frames of the packet at `at`, and the place behind it; None if it is not complete."""
        head = at + COUNT.size
        count = COUNT.unpack_from(data, at)[0] if len(data) >= head else 0
        body = head + 8 * count
        self._needed = (body if len(data) >= head else head) - at
        if count > FRAMES_MAX:
            self.abort()
        if len(data) < body or len(data) < head or count > FRAMES_MAX:
            return None
        lengths = struct.unpack_from(f"<{count}Q", data, head)
        end = body + sum(lengths)
        self._needed = end - at
        if max(lengths, default=0) > self._streams.max_frame_bytes:
            self.abort()
            return None
        if len(data) < end:
            return None
        frames, view = [], memoryview(data)
        for length in lengths:
            frames.append(view[body : body + length])
            body += length
        return frames, end

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Send a packet. Return False, without sending it, if the peer is lost or does not read."""
        transport = self._transport
        if transport.is_closing() or transport.get_write_buffer_size() > UNSENT_MAX:
            return False
        transport.writelines([struct.pack(f"<I{len(frames)}Q", len(frames), *map(len, frames)), *frames])
        return True

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    async def close(self) -> None:
        """Close the connection once everything is sent, or after `LINGER_S`."""
        self._transport.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.closed.wait(), LINGER_S)

    def _beat(self) -> None:
        """Send a heartbeat. Close the connection if the peer has sent none for too long."""
        self._silent += 1
        if self._silent > SILENCE_MAX:
            self.abort()
            return
        self.send(())
        self._heartbeat = asyncio.get_running_loop().call_later(HEARTBEAT_S, self._beat)


class Streams:
    """All streams of one process. The functions are called with a stream, on the loop's thread.

    `on_packet` also gets the frames of a packet. Connections that break are made again.
    """

    def __init__(
        self,
        max_frame_bytes: int,
        on_connected: Callable[[Stream], None],
        on_lost: Callable[[Stream], None],
        on_packet: Callable[[Stream, list[memoryview]], None],
    ) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.on_connected = on_connected
        self.on_lost = on_lost
        self.on_packet = on_packet
        self.open: dict[Stream, bool] = {}
        self._servers: list[asyncio.Server] = []
        self._listeners: list[socket.socket] = []
        self._endpoints: dict[str, bool] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._running = False

    def bind(self, endpoint: str) -> None:
        """Listen on `unix://PATH`, for this user only. Raises `SettingsError` if that is not possible."""
        path = endpoint.removeprefix(SCHEME)
        listener = socket.socket(socket.AF_UNIX)
        listener.setblocking(False)
        self._listeners.append(listener)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            listener.bind(path)
            os.chmod(path, 0o600)
            listener.listen()
        except OSError as error:
            raise SettingsError(f"links.bind: {endpoint}: {error.strerror or error}") from error

    def connect(self, endpoint: str) -> None:
        """Connect to `unix://PATH`, and again whenever the connection breaks."""
        if endpoint not in self._endpoints:
            self._endpoints[endpoint] = True
            if self._running:
                self._tasks.append(asyncio.get_running_loop().create_task(self._stay_connected(endpoint)))

    async def start(self) -> None:
        """Accept connections and make those that were asked for. Call it in the loop."""
        self._running, loop = True, asyncio.get_running_loop()
        for listener in self._listeners:
            self._servers.append(await loop.create_unix_server(lambda: Stream(self, accepted=True), sock=listener))
        self._tasks += [loop.create_task(self._stay_connected(endpoint)) for endpoint in self._endpoints]

    async def stop(self) -> None:
        """Close all connections, and accept and make no more."""
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *(stream.close() for stream in list(self.open)), return_exceptions=True)

    def close(self) -> None:
        """Close the listeners."""
        for listener in self._listeners:
            listener.close()

    async def _stay_connected(self, endpoint: str) -> None:
        loop, path, retry_s = asyncio.get_running_loop(), endpoint.removeprefix(SCHEME), RETRY_S
        while True:
            try:
                _, stream = await loop.create_unix_connection(lambda: Stream(self, accepted=False), path)
            except OSError:
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_MAX_S)
                continue
            retry_s = RETRY_S
            await stream.closed.wait()
