"""TCP proxies: one breaks, corrupts and silences connections, the other delays what they carry."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from queue import SimpleQueue
from typing import Self


class Proxy:
    """Forward connections to `127.0.0.1:target` while the context is open."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._cut: list[tuple[socket.socket, socket.socket]] = []
        self.connections = 0
        """Connections that were forwarded so far."""
        self.refuses = False
        """Whether new connections are closed at once."""
        self.refused = 0
        """Connections that were closed at once."""
        self._muted: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(10)
        for pair in [*self._pairs, *self._cut]:
            for end in pair:
                _close(end)
        for thread in self._threads:
            thread.join(10)

    def cut(self, *, both_ends: bool = False) -> None:
        """Break every connection at the client's end, or at `both_ends`. Data in flight is lost."""
        pairs, self._pairs = self._pairs, []
        self._cut += pairs
        for near, far in pairs:
            _close(near)
            if both_ends:
                _close(far)

    def inject(self, data: bytes, *, to_target: bool = False) -> None:
        """Send bytes of no sender into every connection, to the end that connected or `to_target`."""
        for pair in self._pairs:
            with contextlib.suppress(OSError):  # one of its ends has closed it
                pair[to_target].sendall(data)

    def mute(self, *, to_target: bool = False) -> None:
        """Discard what the present connections carry in one direction from now on, without closing them."""
        self._muted += [pair[to_target] for pair in self._pairs]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self.refuses:
                    self.refused += 1
                    _close(near)
                    continue
                try:
                    pair = near, socket.create_connection(("127.0.0.1", self._target))
                except OSError:  # the target does not listen yet
                    _close(near)
                    continue
                self._pairs.append(pair)
                self.connections += 1
                for source, sink in (pair, pair[::-1]):
                    self._threads.append(threading.Thread(target=self._copy, args=(pair, source, sink)))
                    self._threads[-1].start()

    def _read_chunk(self, chunk: bytes, is_from_client: bool) -> None:
        """Do nothing. Subclasses may read what is forwarded."""

    def _copy(self, pair: tuple[socket.socket, socket.socket], source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(1 << 16):
                if pair in self._cut:
                    return
                self._read_chunk(chunk, source is pair[0])
                if sink not in self._muted:
                    sink.sendall(chunk)
        if pair not in self._cut:
            _close(sink)


class SlowProxy(Proxy):
    """Forwards bytes `delay_s` after they have arrived, in threads of their own, so that no byte waits for others."""

    def __init__(self, target: int, delay_s: float) -> None:
        self._delay_s = delay_s
        super().__init__(target)

    def _copy(self, pair: tuple[socket.socket, socket.socket], source: socket.socket, sink: socket.socket) -> None:
        chunks: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
        sender = threading.Thread(target=self._send_late, args=(sink, chunks))
        sender.start()
        with contextlib.suppress(OSError):
            while chunk := source.recv(1 << 16):
                chunks.put((time.monotonic() + self._delay_s, chunk))
        chunks.put((0.0, b""))
        sender.join()
        _close(sink)

    def _send_late(self, sink: socket.socket, chunks: SimpleQueue[tuple[float, bytes]]) -> None:
        with contextlib.suppress(OSError):
            while (item := chunks.get())[1]:
                time.sleep(max(0.0, item[0] - time.monotonic()))
                sink.sendall(item[1])


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
