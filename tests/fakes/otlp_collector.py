"""A collector of OpenTelemetry traces: an HTTP server that decodes the official protobuf messages."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

WAIT_S = 30.0


class Collector:
    """Spans that have arrived, each with the attributes of its resource, in the order of arrival."""

    def __init__(self) -> None:
        self.spans: list[tuple[dict[str, Any], Any]] = []
        self._changed = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.receive(self.path, self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def __enter__(self) -> Collector:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def receive(self, path: str, body: bytes) -> None:
        """Decode the spans of a request."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        assert path == "/v1/traces"
        request = ExportTraceServiceRequest.FromString(body)
        with self._changed:
            for resource_spans in request.resource_spans:
                resource = attributes(resource_spans.resource)
                for scope in resource_spans.scope_spans:
                    self.spans += [(resource, span) for span in scope.spans]
            self._changed.notify_all()

    def wait_for(self, trace_id: str, count: int) -> dict[str, tuple[dict[str, Any], Any]]:
        """Return the spans of a trace by name, once there are as many. Raises AssertionError after `WAIT_S`."""
        end_s = time.monotonic() + WAIT_S
        with self._changed:
            while True:
                found = {
                    span.name: (resource, span) for resource, span in self.spans if span.trace_id.hex() == trace_id
                }
                if len(found) >= count:
                    return found
                assert time.monotonic() < end_s, f"spans of the trace: {sorted(found)}"
                self._changed.wait(1)


def attributes(holder: Any) -> dict[str, Any]:
    """Return the attributes of a span or a resource."""
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in holder.attributes}
