"""The standard health service: SERVING while the frontend is ready, as in `/v2/health/ready`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from grpc_health.v1 import health, health_pb2

from horologe_frontend.grpc.messages import SERVICE

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = ("", SERVICE)
"""Services with a status: the whole server, and that of the protocol."""
REFRESH_S = 0.2
"""Interval in which watchers get a change."""
NOTIFY_S = 1.0
"""Longest wait for watchers that do not read."""


class Health(health.aio.HealthServicer):  # type: ignore[misc]
    """Answers checks by `is_ready`, and sends changes to watchers."""

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        super().__init__()
        self._is_ready = is_ready
        self._sent: Any = None
        """The status that watchers have got."""

    def _status(self) -> Any:
        status = health_pb2.HealthCheckResponse
        return status.SERVING if self._is_ready() else status.NOT_SERVING

    async def refresh(self) -> None:
        """Send the present status to watchers. Those that do not read are left behind after `NOTIFY_S`."""
        if (status := self._status()) == self._sent:
            return
        self._sent = status
        for name in NAMES:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.set(name, status), NOTIFY_S)

    async def run(self) -> None:
        """Refresh the status until this is cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(REFRESH_S)

    async def Check(self, request: Any, context: Any) -> Any:
        """Return the present status, or NOT_FOUND for an unknown service."""
        if request.service in NAMES:
            return health_pb2.HealthCheckResponse(status=self._status())
        return await super().Check(request, context)
