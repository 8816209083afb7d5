"""The bound on the connections that a ZeroMQ socket accepts. libzmq itself has none."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from contextlib import suppress
from typing import Any

import zmq

from horologe_common.service.log import logger

EVENTS = zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
SO_BINDTOIFINDEX, NO_INTERFACE = 62, 2**31 - 1
DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0), 8)
"""Classic BPF program `ret #0` (linux/filter.h)."""
DROP_ALL_PROGRAM = struct.pack("HP", 1, ctypes.addressof(DROP_ALL))

log = logger("links")


class AcceptLimit:
    """Keeps a bound socket from accepting: its tcp listeners drop packets while there are too many connections.

    Peers connect again by TCP's retransmission. `zmq_unbind` would close the accepted connections too. Without
    descriptors, libzmq 4.3.5 retries at tcp endpoints 60,000 times per second. At ipc endpoints it aborts the process
    (ipc_listener.cpp); only processes of the same user can connect there. The filter needs Linux.
    """

    def __init__(self, limit: int) -> None:
        self.dropping = False
        """No connection is accepted."""
        self._limit = limit
        self._listeners: list[socket.socket] = []
        self._accepted: set[int] = set()
        """Descriptors of the connections."""

    def on_event(self, event: Any) -> None:
        """Handle an event of the socket's monitor."""
        descriptor = int(event["value"])
        match event["event"]:
            case zmq.EVENT_LISTENING:
                self._add_listener(socket.socket(fileno=os.dup(descriptor)))
            case zmq.EVENT_DISCONNECTED:
                self._accepted.discard(descriptor)
                if self.dropping and len(self._accepted) < self._limit:
                    self._set_dropping(False)
            case zmq.EVENT_ACCEPTED:
                self._accepted.add(descriptor)
                if not self.dropping and len(self._accepted) >= self._limit:
                    self._set_dropping(True)

    def stop_accepting(self) -> None:
        """Refuse all further connections at tcp endpoints. Needs Linux 5.7, and no capability, unlike the filter."""
        for listener in self._listeners:
            with suppress(OSError):
                listener.setsockopt(socket.SOL_SOCKET, SO_BINDTOIFINDEX, NO_INTERFACE)

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()

    def _add_listener(self, listener: socket.socket) -> None:
        if listener.family == socket.AF_UNIX:
            listener.close()
        else:
            self._listeners.append(listener)

    def _set_dropping(self, dropping: bool) -> None:
        self.dropping = dropping
        option, value = (SO_ATTACH_FILTER, DROP_ALL_PROGRAM) if dropping else (SO_DETACH_FILTER, 0)
        try:
            for listener in self._listeners:
                listener.setsockopt(socket.SOL_SOCKET, option, value)
        except OSError as error:  # another system than Linux, or a container that may not
            log.warning("connections cannot be limited", limit=self._limit, reason=error.strerror)
        else:
            if dropping:
                log.warning("no connection accepted", reason="too many connections", limit=self._limit)
