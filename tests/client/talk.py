"""A client session and its simulated frontend, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from horologe.core.pending_requests import PredictOptions
from horologe.core.session import Session
from horologe_common.clock import ms, s
from horologe_common.models import ModelSpec
from horologe_common.status import Status
from horologe_common.wire import PROTOCOL, Answer, Envelope, Hello, Models, ModelState, Welcome
from horologe_common.wire.frames import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

X = np.arange(4, dtype=np.float32).reshape(1, 4)


class Sink:
    """Receives the result of a request. A second result is an error."""

    def __init__(self) -> None:
        self.ends: list[Any] = []
        self.id = 0

    def done(self) -> bool:
        return bool(self.ends)

    def set_result(self, result: Any, /) -> None:
        assert not self.ends
        self.ends.append(result)

    def set_exception(self, exception: BaseException, /) -> None:
        assert not self.ends
        self.ends.append(exception)

    @property
    def end(self) -> Any:
        assert len(self.ends) == 1, "not ended"
        return self.ends[0]


class Talk:
    """A session and its simulated frontend. The test sets the time."""

    def __init__(self, **limits: int) -> None:
        self.session = Session({}, **({"grace_ns": ms(50)} | limits))
        self.now_ns = s(1000)
        self.headers: list[bytes] = []

    def sent(self) -> list[tuple[Any, list[Any]]]:
        """Return the packets that the session sends now, as (message, buffers)."""
        arrived = []
        for packet in self.session.packets(self.now_ns):
            self.headers.append(bytes(packet[0]))
            arrived += [(message, buffers) for _, _, message, buffers in unpack(packet, 64 << 10)]
        return arrived

    def get(self, *messages: Any, buffers: Any = ()) -> None:
        self.session.receive(self.now_ns, pack([Envelope("", "", list(messages))], buffers))

    def welcomed(self) -> Talk:
        self.session.on_connected(self.now_ns)
        assert [message for message, _ in self.sent()] == [Hello(PROTOCOL, ())]
        self.get(Welcome(PROTOCOL, ()))
        return self

    def knowing(self, *specs: ModelSpec) -> Talk:
        """Connect, and answer the session's queries for the signatures of these models."""
        self.welcomed()
        for spec in specs:
            self.predict(spec.name, {})
            ((question, _),) = self.sent()
            self.get(Models(question.id, (ModelState(spec),)))
            ((request, _),) = self.sent()
            self.get(Answer(request.id, Status.REFUSED))
        return self

    def predict(self, model: str = "echo", inputs: Any = X, **how: Any) -> Sink:
        sink = Sink()
        sink.id = self.session.predict(self.now_ns, sink, model, inputs, PredictOptions(**how))
        return sink

    def query(self, question: Callable[[int], Any]) -> Sink:
        sink = Sink()
        sink.id = self.session.query(self.now_ns, sink, question, 5.0)
        return sink

    def after(self, elapsed_ns: int) -> None:
        self.now_ns += elapsed_ns
        self.session.expire(self.now_ns)
        self.session.pending.check()
