"""Fixtures of the folder: an HTTP server, reactors in threads, and clients of the SDK."""

from __future__ import annotations

from system.http_server_thread import http
from system.reactors import client, no_signals, pair, start
from system.sdk_clients import connect

__all__ = ["client", "connect", "http", "no_signals", "pair", "start"]
