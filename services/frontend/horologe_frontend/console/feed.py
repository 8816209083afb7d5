"""The feed of the console: reads the state of the system twice a second while somebody watches, and sends it.

All viewers get the same events. Without a viewer nothing is read, and the controller records nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.clock import monotonic_ns
from horologe_common.core.protocol import instance
from horologe_common.service.log import logger
from horologe_common.status import Forbidden, HorologeError, Refused, Status
from horologe_common.wire import Activity, Describe, Description, Tune, Tuning, Watch
from horologe_frontend.console.traffic import BOUNDS_MS, TrafficMeter, TrafficRow
from horologe_frontend.core.access import Scope
from horologe_frontend.http.event_stream import EventStream, encode_event

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from horologe_frontend.gateway import Gateway
    from horologe_frontend.http.event_stream import EventSender

INTERVAL_S = 0.5
SLOW_TICKS = 4
"""Residency and the tuner's status are read every `SLOW_TICKS` intervals: a large cluster has thousands of models."""
TIMEOUT_S = 2.0
VIEWERS_MAX = 16
STATUSES = {int(status): status.name for status in Status}
log = logger("console")


class Frame(msgspec.Struct, omit_defaults=True):
    """One event. Messages are arrays: their tag, then their fields in the order of `horologe_common.wire`."""

    interval_s: float
    ready: bool
    traffic: list[TrafficRow]
    activity: Activity | None = None
    cluster: Description | None = None
    tuner: msgspec.Raw | None = None
    missing: list[str] = []
    """Parts that could not be read, with the reason."""


class ConsoleFeed:
    """The viewers, and the task that sends to them. `is_draining`: the server stops, so the streams end."""

    def __init__(self, gateway: Gateway, is_draining: Callable[[], bool]) -> None:
        self._gateway = gateway
        self._is_draining = is_draining
        self._viewers: dict[EventSender, bytes | None] = {}
        """Viewers with their Authorization."""
        self._task: asyncio.Task[None] | None = None
        self._meter = TrafficMeter()
        self._read_ns = 0
        """Time of the last reading of the traffic."""
        self._number = 0
        """Number of the controller's last Activity."""
        self._ticks = 0

    def open_stream(self, headers: Mapping[bytes, bytes]) -> EventStream:
        """Return the response to a new viewer.

        Raise `Refused` if there are `VIEWERS_MAX`, or at shutdown. Raise `Forbidden` for the page of another site: it
        could not read the events, but would cause work.
        """
        if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
            raise Forbidden("the console is not permitted to pages of other sites")
        if self._is_draining():
            raise Refused("the server is shutting down")
        if len(self._viewers) >= VIEWERS_MAX:
            raise Refused(f"{VIEWERS_MAX} consoles are open already")
        authorization = headers.get(b"authorization")
        return EventStream(200, on_open=lambda sender: self._add_viewer(sender, authorization))

    def _add_viewer(self, sender: EventSender, authorization: bytes | None) -> Callable[[], object]:
        self._viewers[sender] = authorization
        self._ticks = 0  # the next event has everything
        facts = {"bounds_ms": BOUNDS_MS, "statuses": STATUSES, "frontend": instance(self._gateway.core.address)}
        sender.send(encode_event("begin", msgspec.json.encode(facts)))
        if self._task is None:
            self._meter, self._read_ns = TrafficMeter(), 0
            self._read_traffic()
            self._task = asyncio.get_running_loop().create_task(self._run())
        return lambda: self._remove_viewer(sender)

    def _remove_viewer(self, sender: EventSender) -> None:
        self._viewers.pop(sender, None)
        if not self._viewers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while not self._is_draining():
            self._close_withdrawn()
            try:
                frame = await self._read_frame()
                now_s = loop.time()
                frame.interval_s, began_s = now_s - began_s, now_s
                event = encode_event("frame", msgspec.json.encode(frame))
                for viewer in list(self._viewers):
                    viewer.send(event)
            except Exception:  # the next reading may succeed
                log.exception("console not updated")
            await asyncio.sleep(INTERVAL_S)
        for viewer in list(self._viewers):
            viewer.finish()

    def _close_withdrawn(self) -> None:
        """Close the streams whose key does not permit them any more: the key file may have changed."""
        for viewer, authorization in list(self._viewers.items()):
            try:
                self._gateway.core.access.authenticate(authorization).check(Scope.OBSERVE)
            except HorologeError:
                viewer.finish()

    async def _read_frame(self) -> Frame:
        frame = Frame(0.0, self._gateway.is_ready(), self._read_traffic(), missing=[])
        is_slow, self._ticks = self._ticks % SLOW_TICKS == 0, self._ticks + 1
        activity = await self._call(frame, Watch(0, self._number))
        if isinstance(activity, Activity) and activity.status == Status.OK:
            frame.activity, self._number = activity, activity.number
        elif activity is not None:
            frame.missing.append(activity.reason)
        if is_slow:
            description = await self._call(frame, Describe(0))
            if isinstance(description, Description) and frame.activity is not None:
                frame.cluster = description
            tuning = await self._call(frame, Tune(0, "status"))
            if isinstance(tuning, Tuning) and tuning.status == Status.OK:
                frame.tuner = msgspec.Raw(tuning.document)
        return frame

    def _read_traffic(self) -> list[TrafficRow]:
        since_ns, self._read_ns = self._read_ns, monotonic_ns()
        return self._meter.read(self._gateway.traffic_totals(since_ns))

    async def _call(self, frame: Frame, message: Any) -> Any:
        """Return the reply, or None without one in `TIMEOUT_S`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                return await self._gateway.call(message)
        frame.missing.append(f"no reply to {type(message).__name__} in {TIMEOUT_S:g} s")
        return None
