"""Fixtures of the folder: an HTTP server, and reactors in threads."""

from __future__ import annotations

from system.http_server_thread import http
from system.reactors import client, no_signals, pair, start

__all__ = ["client", "http", "no_signals", "pair", "start"]
