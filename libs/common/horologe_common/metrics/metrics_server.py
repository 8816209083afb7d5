"""HTTP server of /metrics, /health and /ready: a bounded number of threads, each with a timeout."""

from __future__ import annotations

import threading
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

CONNECTIONS = 16
"""Further connections are closed, until one of these ends."""
TIMEOUT_S = 2.0
"""Timeout of each read and write. A connection that sends nothing must not keep probes from the others for longer."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Serves each connection on a thread. `serve_forever` blocks until `stop`."""

    daemon_threads = True
    request_queue_size = CONNECTIONS

    def __init__(self, address: tuple[str, int], app: Any) -> None:
        super().__init__(address, MetricsHandler)
        self.set_app(app)
        self._free = threading.Semaphore(CONNECTIONS)

    def stop(self) -> None:
        """Stop `serve_forever` and free the port."""
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for the connection, or close it if there are too many."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve the connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do not log slow or disconnected clients. wsgiref logs the errors of the application."""


class MetricsHandler(WSGIRequestHandler):
    """Serves one request."""

    timeout = TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log scrapes."""
