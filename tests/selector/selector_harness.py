"""A selector with its store in virtual time; the test plays the models."""

from __future__ import annotations

import random
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.builders import a_spec, a_state, sent
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


class UnavailableStore(MemoryStore):
    """Store that is unavailable while `unavailable` is set."""

    unavailable = False

    def read_records(self, keys: Sequence[str]) -> list[Record | None]:
        if self.unavailable:
            raise StoreUnavailable("unplugged")
        return super().read_records(keys)

    def write_changes(self, changes: Sequence[RecordChange]) -> list[int | Record]:
        if self.unavailable:
            raise StoreUnavailable("unplugged")
        return super().write_changes(changes)


def store_replies(store: MemoryStore, message: Any) -> list[Any]:
    """Return the replies of a store writer with this store."""
    try:
        return [*execute_messages(store, [message])]
    except StoreUnavailable as error:
        return [*unavailable_replies([message], str(error))]


class SelectorHarness:
    """Selector connected to a frontend and a controller with models. Its store replies at once."""

    calls = 7000
    """Id of the last declaration."""
    start_ns = 0
    checks = True
    """Whether invariants are checked after each message."""

    def __init__(
        self, models: str = "abc", store: UnavailableStore | None = None, number: int = 1, **settings: Any
    ) -> None:
        self.selector = Selector(
            f"selector/0#{number}", SelectorSettings(**({"store": "memory"} | settings)), random.Random(number)
        )
        self.store: UnavailableStore = UnavailableStore() if store is None else store
        self.now_ns = self.start_ns
        for address in (FRONTEND, CONTROLLER):
            self.send(address, PeerConnected(address))
        self.send(CONTROLLER, Models(0, tuple(a_state(a_spec(name)) for name in models)))

    def send(self, sender: str, message: Any, buffers: Any = ()) -> None:
        self.selector.handle(self.now_ns, sender, message, buffers)
        self.run_until_idle()
        if self.checks:
            self.selector.check()

    def run_until_idle(self) -> None:
        """Tick, execute store messages and deliver what the selector sends itself, until there is nothing left."""
        selector = self.selector
        while True:
            selector.tick(self.now_ns)
            own = [out for out in selector.out if out.to in (selector.store, selector.address)]
            selector.out = [out for out in selector.out if out not in own]
            for out in own:
                if out.to == selector.address:
                    selector.handle(self.now_ns, selector.address, out.message, out.buffers)
                    continue
                for reply in store_replies(self.store, out.message):
                    selector.handle(self.now_ns, selector.store, reply, ())
            wakeup_ns = selector.wakeup_ns()
            if not own and (wakeup_ns is None or wakeup_ns > self.now_ns):
                return

    def advance_to(self, at_ms: float) -> None:
        self.now_ns = ms(at_ms)
        self.run_until_idle()

    def advance_by(self, by_ns: int) -> None:
        self.now_ns += by_ns
        self.run_until_idle()

    def declare_application(
        self, name: str = "digits", models: tuple[str, ...] = ("a", "b", "c"), **fields: Any
    ) -> Applications:
        """Declare an application and return the reply."""
        self.calls += 1
        self.send(FRONTEND, Declare(self.calls, Application(name, models, **fields)))
        return next(reply for reply in sent(self.selector, Applications, FRONTEND) if reply.id == self.calls)

    def send_prediction(self, submit: Submit, *labels: int) -> None:
        """Send a model's Outputs: one INT64 label for each row."""
        tensor = Tensor("y", "INT64", (len(labels),), 8 * len(labels))
        row = RowStatus(submit.id, len(labels))
        self.send(WORKER, Outputs(1, (row,), (tensor,)), [struct.pack(f"<{len(labels)}q", *labels)])


class ApplicationHarness(SelectorHarness):
    """Selector with the application `digits`, declared with these fields. `submits`: last Submit by model."""

    def __init__(self, **application: Any) -> None:
        self.submits: dict[str, Submit] = {}
        super().__init__()
        if application:
            self.declare_application(**application)

    def run_until_idle(self) -> None:
        super().run_until_idle()
        for submit in sent(self.selector, Submit):
            self.submits[submit.model.partition("/")[0]] = submit

    def declare_application(
        self, name: str = "digits", models: tuple[str, ...] = ("a", "b", "c"), **fields: Any
    ) -> Applications:
        return super().declare_application(name, models, **({"policy": "majority"} | fields))

    def query(
        self, number: int = 1, budget_ms: float = 100, context: str = "", rows: int = 1, hashed: bytes = HASH
    ) -> None:
        query = Query(number, "", ms(budget_ms), rows, hashed, application="digits", context=context)
        self.send(FRONTEND, query)

    def predict(self, model: str, *labels: int) -> None:
        """Answer the model's last Submit with one label for each row."""
        self.send_prediction(self.submits[model], *labels)

    def predict_all(self, **labels: tuple[int, ...]) -> None:
        """Answer the last Submit of each model."""
        for model, rows in labels.items():
            self.predict(model, *rows)

    def fail_model(self, model: str, status: Status = Status.REFUSED) -> None:
        self.send(CONTROLLER, Outcome(self.submits[model].id, int(status), "no room"))

    def pop_answer(self) -> tuple[Answer, list[int]]:
        """Return the only Answer sent since the last call, with its predictions."""
        answers = [(out.message, out.buffers) for out in self.selector.out if isinstance(out.message, Answer)]
        sent(self.selector, Answer)
        ((answer, buffers),) = answers
        values = np.frombuffer(buffers[0], "<i8").tolist() if buffers else []
        return answer, values

    def count_answers(self) -> int:
        return sum(isinstance(out.message, Answer) for out in self.selector.out)
