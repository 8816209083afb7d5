"""Whether nothing listens at an endpoint of the SDK, so that a command need not wait for a server until its timeout."""

from __future__ import annotations

import socket

CONNECT_S = 1.0
"""Timeout of one connection. A host that does not answer is left to the client, which waits longer."""


def is_refused(endpoints: str) -> bool:
    """Return whether each of these endpoints, separated by commas, refuses connections at once. Blocks up to
    `CONNECT_S` for each."""
    return all(_refuses(endpoint.strip()) for endpoint in endpoints.split(","))


def _refuses(endpoint: str) -> bool:
    scheme, _, place = endpoint.partition("://")
    try:
        if scheme == "ipc":
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(f"\0{place[1:]}" if place.startswith("@") else place)
        else:
            host, _, port = place.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return False
