"""Structured logs: one line per event, as text or JSON."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import MutableMapping


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The log on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe events that are written."""
    json: bool = False
    """Write one JSON object per line instead of text."""


class Log:
    """A logger of events with named fields: `log.info("worker connected", worker=address)`."""

    def __init__(self, name: str) -> None:
        self._log = logging.getLogger(f"horologe.{name}")

    def debug(self, event: str, **fields: Any) -> None:
        self._log.debug(event, extra={"fields": fields})

    def info(self, event: str, **fields: Any) -> None:
        self._log.info(event, extra={"fields": fields})

    def warning(self, event: str, **fields: Any) -> None:
        self._log.warning(event, extra={"fields": fields})

    def error(self, event: str, **fields: Any) -> None:
        self._log.error(event, extra={"fields": fields})

    def exception(self, event: str, **fields: Any) -> None:
        self._log.exception(event, extra={"fields": fields})


logger = Log


def configure(settings: LogSettings, service: str) -> None:
    """Write all log events of this process to standard error, through structlog."""
    import structlog

    def fields(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        record = event.get("_record")
        event.update(getattr(record, "fields", {}))
        event["service"] = service
        return event

    renderer: Any = (
        structlog.processors.JSONRenderer()
        if settings.json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        processors=[
            fields,
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            renderer,
        ],
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())
