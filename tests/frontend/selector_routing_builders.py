"""Builders for test_frontend_selectors.py and test_frontend_routing.py."""

from __future__ import annotations

from typing import Any

from frontend.frontend_builders import (
    BARE,
    NOW,
    SAFE,
    announce,
    connected_frontend,
)
from harness.builders import sent
from horologe_common.applications import Application
from horologe_common.core.protocol import PeerConnected
from horologe_common.wire import Query
from horologe_frontend.core.frontend import Frontend

OTHER = "selector/1#1"


def connect(frontend: Frontend, address: str, *applications: Application) -> None:
    frontend.handle(NOW, address, PeerConnected(address), ())
    announce(frontend, *applications, selector=address)


def two_selectors(**fields: Any) -> Frontend:
    """Return a frontend with two selectors that serve the same applications."""
    frontend = connected_frontend(**fields)
    connect(frontend, OTHER, SAFE, BARE)
    return frontend


def queries(frontend: Frontend) -> list[tuple[str, Query]]:
    """Return and clear the queries that were sent, with their selectors."""
    sent_queries = [(out.to, out.message) for out in frontend.out if isinstance(out.message, Query)]
    sent(frontend, Query)
    return sent_queries
