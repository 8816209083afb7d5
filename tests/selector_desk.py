"""A selector with its store and models that the test is, driven in steps of virtual time."""

from __future__ import annotations

import random
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from builders import a_spec, a_state, sent
from horologe_common.applications import Application
from horologe_common.clock import ms
from horologe_common.core.protocol import PeerConnected
from horologe_common.status import Status
from horologe_common.wire import (
    Answer,
    Applications,
    Declare,
    Models,
    Outcome,
    Outputs,
    Query,
    RowStatus,
    Submit,
    Tensor,
)
from horologe_selector.core.selector import Selector
from horologe_selector.settings import SelectorSettings
from horologe_selector.store import StoreUnavailable
from horologe_selector.stores.memory import MemoryStore
from horologe_selector.stores.store_writer import execute_messages, unavailable_replies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_selector.store import Record, RecordChange

FRONTEND, CONTROLLER, WORKER = "frontend/0#1", "controller/0#1", "worker/0#1"
HASH = bytes(32)


class Unplugged(MemoryStore):
    """Away while it is told to be."""

    away = False

    def read_records(self, keys: Sequence[str]) -> list[Record | None]:
        if self.away:
            raise StoreUnavailable("unplugged")
        return super().read_records(keys)

    def write_changes(self, changes: Sequence[RecordChange]) -> list[int | Record]:
        if self.away:
            raise StoreUnavailable("unplugged")
        return super().write_changes(changes)


def replies_of(store: MemoryStore, message: Any) -> list[Any]:
    """What a keeper of this store answers."""
    try:
        return [*execute_messages(store, [message])]
    except StoreUnavailable as error:
        return [*unavailable_replies([message], str(error))]


class Desk:
    """A selector that knows a frontend, a controller and models; what it asks of its store is done at once."""

    def __init__(self, models: str = "abc", store: MemoryStore | None = None, number: int = 1, **settings: Any) -> None:
        self.selector = Selector(
            f"selector/0#{number}", SelectorSettings(**({"store": "memory"} | settings)), random.Random(number)
        )
        self.store = store if store is not None else Unplugged()
        self.now_ns = 0
        for address in (FRONTEND, CONTROLLER):
            self.tell(address, PeerConnected(address))
        self.tell(CONTROLLER, Models(0, tuple(a_state(a_spec(name)) for name in models)))

    def tell(self, sender: str, message: Any, buffers: Any = ()) -> None:
        self.selector.handle(self.now_ns, sender, message, buffers)
        self.settle()

    def settle(self) -> None:
        """Tick, and let the store answer, until all is quiet."""
        selector = self.selector
        while True:
            selector.tick(self.now_ns)
            asked = [out.message for out in selector.out if out.to == selector.store]
            selector.out = [out for out in selector.out if out.to != selector.store]
            for message in asked:
                for reply in replies_of(self.store, message):
                    selector.handle(self.now_ns, selector.store, reply, ())
            wakeup_ns = selector.wakeup_ns()
            if not asked and (wakeup_ns is None or wakeup_ns > self.now_ns):
                return

    def at(self, at_ms: float) -> None:
        self.now_ns = ms(at_ms)
        self.settle()

    def later(self, by_ns: int) -> None:
        self.now_ns += by_ns
        self.settle()

    def declare(self, name: str = "digits", models: tuple[str, ...] = ("a", "b", "c"), **fields: Any) -> Applications:
        """The answer to a declaration."""
        self.tell(FRONTEND, Declare(7, Application(name, models, **fields)))
        return next(told for told in sent(self.selector, Applications, FRONTEND) if told.id == 7)

    def predicts(self, submit: Submit, *labels: int) -> None:
        """A model's prediction, as INT64 labels, a row each."""
        tensor = Tensor("y", "INT64", (len(labels),), 8 * len(labels))
        row = RowStatus(submit.id, len(labels))
        self.tell(WORKER, Outputs(1, (row,), (tensor,)), [struct.pack(f"<{len(labels)}q", *labels)])


class Asked(Desk):
    """One with the application `digits`, declared with these fields, and what its models were asked last."""

    def __init__(self, **application: Any) -> None:
        self.submits: dict[str, Submit] = {}
        super().__init__()
        if application:
            self.declare(**application)

    def settle(self) -> None:
        super().settle()
        for submit in sent(self.selector, Submit):
            self.submits[submit.model.partition("/")[0]] = submit

    def declare(self, name: str = "digits", models: tuple[str, ...] = ("a", "b", "c"), **fields: Any) -> Applications:
        return super().declare(name, models, **({"policy": "majority"} | fields))

    def ask(
        self, number: int = 1, budget_ms: float = 100, context: str = "", rows: int = 1, hashed: bytes = HASH
    ) -> None:
        query = Query(number, "", ms(budget_ms), rows, hashed, application="digits", context=context)
        self.tell(FRONTEND, query)

    def lands(self, model: str, *labels: int) -> None:
        """The model's prediction, a label for each row."""
        self.predicts(self.submits[model], *labels)

    def fails(self, model: str, status: Status = Status.REFUSED) -> None:
        self.tell(CONTROLLER, Outcome(self.submits[model].id, int(status), "no room"))

    def answer(self) -> tuple[Answer, list[int]]:
        """The one answer that is out, with its predictions."""
        found = [(out.message, out.buffers) for out in self.selector.out if isinstance(out.message, Answer)]
        sent(self.selector, Answer)
        ((answer, buffers),) = found
        values = np.frombuffer(buffers[0], "<i8").tolist() if buffers else []
        return answer, values

    def answers(self) -> int:
        return sum(isinstance(out.message, Answer) for out in self.selector.out)
