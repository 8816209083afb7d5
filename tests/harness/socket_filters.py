"""Skip mark for tests of the limit of connections, which is a filter that drops packets."""

from __future__ import annotations

import socket

import pytest

from horologe_common.transport.accept_limit import DROP_ALL_PROGRAM, SO_ATTACH_FILTER


def _is_allowed() -> bool:
    """Return whether this user may attach a filter to a socket. Some kernels allow it to root only."""
    with socket.socket() as sock:
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, DROP_ALL_PROGRAM)
        except OSError:
            return False
    return True


needs_socket_filters = pytest.mark.skipif(not _is_allowed(), reason="this user may not attach filters to sockets")
