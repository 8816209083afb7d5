"""An open request, and what a caller may say about its deadline."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

import msgspec

from horologe_common.clock import ms, s
from horologe_common.status import InvalidInput
from horologe_common.wire import AnyMessage, Predict, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer

BEST_EFFORT_NS = s(30)
"""The server answers requests without a deadline within this time (decisions.md)."""
LONGEST_MS = 24 * 3600 * 1e3


class AskOptions(TypedDict, total=False):
    """How an application is asked, the same in every call of both clients."""

    slo_ms: float | None
    """Deadline in milliseconds."""
    timeout: float | None
    """Deadline in seconds; the smaller of the two counts."""
    outputs: Sequence[str]
    """Names of the outputs wanted, in this order; default: all."""
    context: str
    """Of an application that is asked: the user, session or whatever it learns for separately."""


class Options(AskOptions, total=False):
    """How a prediction is asked for, the same in every call of both clients."""

    version: str
    """Of the model; default: the newest that is ready."""
    application: str
    """On whose behalf: execution times are learned per model and application."""


class Sink(Protocol):
    """Where the end of a request goes: `asyncio.Future` is one, `client.Handle` another."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class Call(msgspec.Struct, eq=False):
    """An open request: a Predict, or a `question` of another kind."""

    id: int
    sink: Sink
    begun_ns: int
    budget_ns: int = 0
    """What the caller granted from `begun_ns` on; 0: the model's own SLO, or best effort."""
    question: AnyMessage | None = None
    model: str = ""
    version: str = ""
    outputs: tuple[str, ...] = ()
    application: str = ""
    context: str = ""
    single: bool = True
    """The inputs came as one array, so a sole output goes back as one."""
    inputs: tuple[Tensor, ...] = ()
    buffers: Sequence[Buffer] = ()
    size: int = 0
    """Bytes of the inputs."""
    sent: bool = False

    @property
    def subject(self) -> tuple[str, str, str]:
        """Whose signature the inputs must fit: model and version, or an application."""
        return (self.model, self.version, "") if self.model else ("", "", self.application)

    def message(self, now_ns: int) -> AnyMessage:
        """What to send, with what remains of the budget by now."""
        if self.question is not None:
            return self.question
        budget_ns = max(1, self.begun_ns + self.budget_ns - now_ns) if self.budget_ns else 0
        return Predict(
            self.id, self.model, self.version, budget_ns, self.inputs, self.outputs, self.application, self.context
        )


def budget(slo_ms: float | None, timeout: float | None) -> int:
    """Nanoseconds a request may take: the smaller of `slo_ms` (milliseconds) and `timeout` (seconds); 0: neither.

    Raises `InvalidInput` unless they are numbers over 0 and of at most a day.
    """
    if timeout is None and type(slo_ms) in (int, float) and 0 < slo_ms <= LONGEST_MS:  # type: ignore[operator]
        return int(slo_ms * 1_000_000) or 1  # type: ignore[operator]  # the usual case, at a fifth of the time
    granted = LONGEST_MS + 1
    for name, value, factor in (("slo_ms", slo_ms, 1.0), ("timeout", timeout, 1e3)):
        if value is None:
            continue
        try:
            millis = float(value) * factor
        except (TypeError, ValueError):
            millis = math.nan
        if not 0 < millis <= LONGEST_MS:
            raise InvalidInput(f"{name}: got {value!r}, wanted a number over 0 and of at most a day")
        granted = min(granted, millis)
    return max(1, ms(granted)) if granted <= LONGEST_MS else 0


def check_texts(*texts: object) -> None:
    """Raise `InvalidInput` for a name that is no string."""
    for text in texts:
        if type(text) is not str:
            raise InvalidInput(f"model, version, application, context, outputs: got {text!r}, wanted strings")
