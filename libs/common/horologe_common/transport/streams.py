"""Streams: packets between processes of one machine over Unix sockets, read and written on the loop's own thread.

A ZeroMQ socket has a thread of its own at each end. A round trip between two processes takes 13 us over a stream and 70
to 120 us over ZeroMQ's ipc.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from typing import TYPE_CHECKING, cast

from horologe_common.service.parent_link import COUNT, FRAMES_MAX, pack_lengths
from horologe_common.service.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer

SCHEME = "unix://"
UNSENT_FRAMES = 4
"""Longest frames that may wait for a peer. Further packets are dropped. A peer that does not read at all sends no
heartbeats either, and is lost."""
RETRY_S, RETRY_MAX_S = 0.02, 0.2
"""Pauses between attempts to connect. They grow while no connection lasts longer than the longest pause."""
LINGER_S = 0.2


class Stream(asyncio.Protocol):
    """One connection. `endpoint` is empty if the peer has connected to this process."""

    def __init__(self, streams: Streams, endpoint: str = "") -> None:
        self.endpoint = endpoint
        self.accepted = not endpoint
        self.closed = asyncio.Event()
        self._streams = streams
        self._parts: list[bytes] = []
        """Bytes of the next packet that have arrived."""
        self._arrived = self._needed = 0
        """Size of the parts, and the size from which it is worth to parse them."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's derives from neither
        self._streams.open[self] = True
        self._streams.on_connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self._streams.open.pop(self, None)
        self._streams.on_lost(self)

    def data_received(self, data: bytes) -> None:
        """Pass on all packets that are complete, together. None is a heartbeat."""
        self._arrived += len(data)
        if self._arrived < self._needed:
            self._parts.append(data)
            self._streams.on_packets(self, [])
            return
        if self._parts:
            data = b"".join((*self._parts, data))
            self._parts.clear()
        at = 0
        packets = []
        while (packet := self._parse(data, at)) is not None:
            frames, at = packet
            if frames:
                packets.append(frames)
        self._streams.on_packets(self, packets)
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
        if transport.is_closing() or transport.get_write_buffer_size() > self._streams.max_unsent_bytes:
            return False
        transport.writelines([pack_lengths(frames), *frames])
        return True

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    async def close(self) -> None:
        """Close the connection once everything is sent, or after `LINGER_S`."""
        self._transport.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.closed.wait(), LINGER_S)


class Streams:
    """All streams of one process. The functions are called with a stream, on the loop's thread.

    `on_packets` also gets the frames of all packets that one read has completed: none if only part of a packet has
    arrived. Connections that break are made again while `is_wanted` returns True for their endpoint.
    """

    def __init__(
        self,
        max_frame_bytes: int,
        on_connected: Callable[[Stream], None],
        on_lost: Callable[[Stream], None],
        on_packets: Callable[[Stream, list[list[memoryview]]], None],
    ) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.max_unsent_bytes = UNSENT_FRAMES * max_frame_bytes
        self.on_connected = on_connected
        self.on_lost = on_lost
        self.on_packets = on_packets
        self.is_wanted: Callable[[str], bool] = lambda endpoint: True
        self.open: dict[Stream, bool] = {}
        self._servers: list[asyncio.Server] = []
        self._listeners: list[socket.socket] = []
        self._tasks: dict[str, asyncio.Task[None] | None] = {}
        """Endpoint -> task that keeps the connection; None before the loop runs."""
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
        if endpoint not in self._tasks:
            self._tasks[endpoint] = None
            if self._running:
                self._start_task(endpoint)

    def _start_task(self, endpoint: str) -> None:
        self._tasks[endpoint] = asyncio.get_running_loop().create_task(self._stay_connected(endpoint))

    async def start(self) -> None:
        """Accept connections and make those that were asked for. Call it in the loop."""
        self._running, loop = True, asyncio.get_running_loop()
        for listener in self._listeners:
            self._servers.append(await loop.create_unix_server(lambda: Stream(self), sock=listener))
        for endpoint in self._tasks:
            self._start_task(endpoint)

    async def stop(self) -> None:
        """Close all connections, and accept and make no more."""
        for server in self._servers:
            server.close()
        tasks = [task for task in self._tasks.values() if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *(stream.close() for stream in list(self.open)), return_exceptions=True)

    def close(self) -> None:
        """Close the listeners."""
        for listener in self._listeners:
            listener.close()

    async def _stay_connected(self, endpoint: str) -> None:
        loop, path, retry_s = asyncio.get_running_loop(), endpoint.removeprefix(SCHEME), RETRY_S
        while self.is_wanted(endpoint):
            begin_s = loop.time()
            try:
                _, stream = await loop.create_unix_connection(lambda: Stream(self, endpoint), path)
            except (OSError, MemoryError):
                pass
            else:
                await stream.closed.wait()
            retry_s = RETRY_S if loop.time() - begin_s > RETRY_MAX_S else min(2 * retry_s, RETRY_MAX_S)
            await asyncio.sleep(retry_s)
        del self._tasks[endpoint]
