"""Stand-in for Grafana on hosts without an image registry: its health check and its search, and nothing else.

`/api/search` lists the dashboards in `DASHBOARDS`. A file that is no dashboard makes `/api/health` fail with its name.
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

DASHBOARDS = Path("/etc/grafana/dashboards")
PORT = 3000


def read_dashboards(folder: Path) -> list[dict[str, str]]:
    """Return uid and title of each dashboard under `folder`. Raises ValueError for a file that has none."""
    found = []
    for path in sorted(folder.rglob("*.json")):
        try:
            dashboard = json.loads(path.read_text())
            found.append({"uid": dashboard["uid"], "title": dashboard["title"], "type": "dash-db"})
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path.name}: {error!r}") from error
    return found


class Handler(BaseHTTPRequestHandler):
    """Answers GET with JSON."""

    def do_GET(self) -> None:
        """Answer `/api/health` and `/api/search`, else 404."""
        try:
            answers: dict[str, Any] = {
                "/api/search": read_dashboards(DASHBOARDS),
                "/api/health": {"database": "ok", "version": "stand-in"},
            }
            found = answers.get(self.path.partition("?")[0])
            status, body = (404, {"message": "Not found"}) if found is None else (200, found)
        except ValueError as error:
            status, body = 503, {"message": str(error)}
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *values: Any) -> None:
        """Log nothing: a health check every 5 s would fill the log."""


if __name__ == "__main__":
    ThreadingHTTPServer(("", PORT), Handler).serve_forever()
