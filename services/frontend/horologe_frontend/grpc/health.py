"""The standard health service: SERVING while the frontend is ready, as in `/v2/health/ready`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from grpc import StatusCode
from grpc_health.v1 import health_pb2

from horologe_common.status import HorologeError
from horologe_frontend.grpc.messages import SERVICE, parse
from horologe_frontend.grpc.status_codes import fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_frontend.grpc.rpc_server import Handler, Rpc

NAMES = ("", SERVICE)
"""Services with a status: the whole server, and that of the protocol."""
REFRESH_S = 0.2
"""Interval in which watchers get a change."""
STATUS = health_pb2.HealthCheckResponse


class Health:
    """Answers checks by `is_ready`, and sends changes to watchers."""

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready
        self._was_ready = False
        self._changed = asyncio.Event()
        """Set and replaced at each change."""
        self.handlers: dict[str, Handler] = {
            "/grpc.health.v1.Health/Check": self._check,
            "/grpc.health.v1.Health/Watch": self._watch,
        }

    def refresh(self) -> None:
        """Send the present status to watchers if it has changed."""
        if (is_ready := self._is_ready()) != self._was_ready:
            self._was_ready = is_ready
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def run(self) -> None:
        """Refresh the status until this is cancelled."""
        while True:
            self.refresh()
            await asyncio.sleep(REFRESH_S)

    def _status(self, service: str) -> Any:
        if service not in NAMES:
            return STATUS.SERVICE_UNKNOWN
        return STATUS.SERVING if self._is_ready() else STATUS.NOT_SERVING

    async def _read_service(self, rpc: Rpc) -> str:
        return str(parse(health_pb2.HealthCheckRequest, await rpc.read() or b"").service)

    async def _check(self, rpc: Rpc) -> bytes | None:
        """Return the present status. An unknown service is NOT_FOUND."""
        try:
            service = await self._read_service(rpc)
        except HorologeError as error:
            fail(rpc, error, "Check")
            return None
        if service not in NAMES:
            rpc.fail(StatusCode.NOT_FOUND, f"service {service[:80]!r} is unknown")
        return _encode(self._status(service))

    async def _watch(self, rpc: Rpc) -> None:
        """Send the status, and each further one."""
        try:
            service = await self._read_service(rpc)
            sent: Any = None
            while True:
                changed = self._changed
                if (status := self._status(service)) != sent:
                    sent = status
                    await rpc.write(_encode(status))
                await changed.wait()
        except (HorologeError, ConnectionError) as error:
            fail(rpc, error, "Watch")


def _encode(status: Any) -> bytes:
    encoded: bytes = STATUS(status=status).SerializeToString()
    return encoded
