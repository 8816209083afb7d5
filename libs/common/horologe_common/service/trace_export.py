"""Export of spans to an OpenTelemetry collector (OTLP over HTTP), with the official SDK."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Annotated, Any, Protocol, runtime_checkable

import msgspec
from msgspec import Meta

from horologe_common.clock import monotonic_ns
from horologe_common.core.tracing import TRACER
from horologe_common.service.http_answers import bound_session
from horologe_common.service.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer, Core
    from horologe_common.core.tracing import Span
    from horologe_common.transport.reactor import Reactor

QUEUE, BATCH, DELAY_MS = 4096, 512, 1000
"""Spans that wait, and that are exported at once, after this time. Further spans are dropped."""
TIMEOUT_S = 5.0
ANSWER_BYTES = 64 << 10


class TracingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Traces of requests by OpenTelemetry. Needs the extra `tracing`."""

    endpoint: str = ""
    """Collector of OTLP over HTTP, for example `http://localhost:4318/v1/traces`. Empty: no request is traced. Set it
    for all services."""
    per_second: Annotated[float, Meta(ge=0, le=1e6)] = 20.0
    """Maximum number of traced requests per second of each frontend. A request with a sampled `traceparent` is traced
    within this limit."""
    own_per_second: Annotated[float, Meta(ge=0, le=1e6)] = 1.0
    """Maximum number of traced requests without a `traceparent`, within `per_second`. 0: none."""


@runtime_checkable
class Traces(Protocol):
    """A core that sends spans to the address `TRACER`."""

    def start_tracing(self, per_second: float, own_per_second: float) -> None:
        """Trace requests from now on."""


def start_tracing(
    reactor: Reactor, cores: Sequence[Core], settings: TracingSettings, service: str
) -> Callable[[], None] | None:
    """Attach the exporter, and let the cores trace. Return a function that exports the last spans; None if it is off.

    Raises `SettingsError` without the packages, and for an endpoint that is no URL.
    """
    if not settings.endpoint:
        return None
    if not settings.endpoint.startswith(("http://", "https://")):
        raise SettingsError(f"setting tracing.endpoint: got {settings.endpoint!r}, wanted http://HOST:PORT/PATH")
    exporter = SpanExport(settings.endpoint, service, cores[0].address)
    reactor.attach(TRACER, exporter.export)
    for core in cores:
        if isinstance(core, Traces):
            core.start_tracing(settings.per_second, settings.own_per_second)
    return exporter.close


class SpanExport:
    """Converts spans to those of the SDK, and exports them on a thread of the SDK, `delay_ms` after the first."""

    def __init__(
        self, endpoint: str, service: str, instance: str, timeout_s: float = TIMEOUT_S, delay_ms: int = DELAY_MS
    ) -> None:
        self._timeout_s = timeout_s
        try:
            import requests
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
        except ImportError as error:
            raise SettingsError(f"tracing.endpoint: needs the packages of horologe[tracing]: {error}") from error
        self._resource = Resource(
            {"service.name": f"horologe-{service}", "service.namespace": "horologe", "service.instance.id": instance}
        )
        self._new_span_id = RandomIdGenerator().generate_span_id
        session = requests.Session()
        bound_session(session, timeout_s, ANSWER_BYTES)
        exporter = OTLPSpanExporter(endpoint, timeout=timeout_s, session=session)
        self._processor = BatchSpanProcessor(exporter, QUEUE, delay_ms, BATCH, timeout_s * 1e3)

    def export(self, span: Span, buffers: Sequence[Buffer]) -> None:
        """Queue a span of a core. Its times become those of the wall clock."""
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
        from opentelemetry.trace.status import Status, StatusCode

        def context(span_id: int) -> SpanContext:
            return SpanContext(int(span.trace_id, 16), span_id, is_remote=False, trace_flags=TraceFlags(1))

        offset_ns = time.time_ns() - monotonic_ns()
        status = Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET)
        parent: Any = context(int(span.parent_id, 16)) if span.parent_id else None
        own = context(int(span.span_id, 16) if span.span_id else self._new_span_id())
        kind = SpanKind.SERVER if span.span_id else SpanKind.INTERNAL
        begin_ns, end_ns = span.begin_ns + offset_ns, span.end_ns + offset_ns
        self._processor.on_end(
            ReadableSpan(
                span.name,
                own,
                parent,
                self._resource,
                span.attributes,
                kind=kind,
                status=status,
                start_time=begin_ns,
                end_time=end_ns,
            )
        )

    def close(self) -> None:
        """Export what waits, within `timeout_s`. A collector that answers slowly does not delay the end further."""
        last = threading.Thread(target=self._processor.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(self._timeout_s)
