"""The HTTP endpoint of a process for Prometheus and for probes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.service import protobuf_exposition
from horologe_common.service.exposition import TRITON_PATH, ModelLimit, TextPage, group_series
from horologe_common.service.metrics_server import MetricsServer
from horologe_common.service.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from horologe_common.core.instruments import Stats


class MetricsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The endpoint for Prometheus."""

    bind: str = "127.0.0.1:8002"
    """host:port of /metrics, /health and /ready. Empty: off."""


class MetricsPages:
    """The WSGI application of /metrics, /metrics/triton, /health and /ready. One scrape at a time is written."""

    def __init__(self, stats: Callable[[], Iterable[Stats]], ready: Callable[[], bool]) -> None:
        self._stats = stats
        self._ready = ready
        self._lock = threading.Lock()
        self._limit = ModelLimit()
        self._text = TextPage()

    def __call__(self, environ: Any, start: Any) -> Iterable[bytes]:
        """Answer a request. Paths other than those of probes get the metrics."""
        path, accept = environ["PATH_INFO"], environ.get("HTTP_ACCEPT", "")
        if path in ("/health", "/ready"):
            code = "200 OK" if path == "/health" or self._ready() else "503 Service Unavailable"
            start(code, [("Content-Type", "text/plain")])
            return [b""]
        with self._lock:
            groups = group_series(self._stats(), triton=path == TRITON_PATH)
            self._limit.fold(groups)
            native = protobuf_exposition.MEDIA_TYPE in accept
            page = protobuf_exposition.render(groups) if native else self._text.render(groups)
        start("200 OK", [("Content-Type", protobuf_exposition.CONTENT_TYPE if native else TextPage.CONTENT_TYPE)])
        return [page]


def serve(settings: MetricsSettings, stats: Callable[[], Iterable[Stats]], ready: Callable[[], bool]) -> Any:
    """Serve the pages on threads. Return the server (`shutdown()` ends it), or None if it is off.

    Raises `SettingsError` if the address cannot be bound.
    """
    if not settings.bind:
        return None
    host, _, port = settings.bind.rpartition(":")
    try:
        server = MetricsServer((host, int(port)), MetricsPages(stats, ready))
    except OSError as error:
        wanted = "wanted a free address"
        raise SettingsError(f"setting metrics.bind: got {settings.bind}, {wanted}: {error.strerror}") from error
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
