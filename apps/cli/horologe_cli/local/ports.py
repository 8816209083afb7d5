"""Finds free TCP ports of this machine, and explains why a port cannot be used."""

from __future__ import annotations

import errno
import os
import socket
from collections import deque

from horologe_common.service.settings import SettingsError
from horologe_common.status import describe_error

HELD_PORTS = 64
"""Ports that this process holds for those who will listen. The oldest is let go first."""

_held: deque[int] = deque()
"""File descriptors of the sockets that hold them."""


def split_address(option: str, text: str) -> tuple[str, int]:
    """Split `"127.0.0.1:8000"` into host and port. Raises SettingsError, naming `option`."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise SettingsError(f"{option}: got {text!r}, wanted HOST:PORT")
    return host.strip("[]") or "0.0.0.0", int(port)


def check_free(purpose: str, host: str, port: int, hint: str) -> None:
    """Raise SettingsError if no process could listen at this address now."""
    if error := _bind_error(host, port):
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror or error}"
        raise SettingsError(f"{purpose}: {host}:{port} {reason}; {hint}")


def is_port_in_use(host: str, port: int) -> bool:
    error = _bind_error(host, port)
    return error is not None and error.errno == errno.EADDRINUSE


def free_port(host: str, wanted: int = 0) -> int:
    """Return the port `wanted` if it is free, else a port that nobody else gets. Raises SettingsError for a bad host.

    The port is held until a process listens: a socket that is bound and does not listen keeps the kernel from giving
    the port to connections and to others that ask for any port. A listener with SO_REUSEADDR may still take it.
    """
    if wanted and _bind_error(host, wanted) is None:
        return wanted
    if error := _bind_error(host, 0):
        raise SettingsError(f"host {host!r} cannot be used: {describe_error(error)}")
    sock = _socket(host)
    sock.bind((host.replace("*", ""), 0))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port = int(sock.getsockname()[1])
    _held.append(sock.detach())
    if len(_held) > HELD_PORTS:
        os.close(_held.popleft())
    return port


def _bind_error(host: str, port: int) -> OSError | None:
    with _socket(host) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host.replace("*", ""), port))
            sock.listen(1)
        except OSError as error:
            return error
    return None


def _socket(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
