"""A core whose time is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer, Core, Out


class TimedCore:
    """A core that measures, with `clock`, the time spent in it."""

    def __init__(self, core: Core, clock: Callable[[], int]) -> None:
        self.address = core.address
        self.out: list[Out] = []
        self.spent_ns = 0
        self._core = core
        self._clock = clock

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Pass the message on."""
        begin = self._clock()
        self._core.handle(now_ns, sender, message, buffers)
        self.spent_ns += self._clock() - begin

    def tick(self, now_ns: int) -> None:
        """Tick the core and take over what it sends."""
        begin = self._clock()
        self._core.tick(now_ns)
        self.spent_ns += self._clock() - begin
        self.out, self._core.out = self._core.out, []

    def wakeup_ns(self) -> int | None:
        """Return the core's wakeup time."""
        return self._core.wakeup_ns()
