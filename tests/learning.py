"""For tests of learning: a policy that forgets nothing it is told, and a selector's contexts with a keeper in steps."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from horologe_common.applications import Application
from horologe_selector.core.applications.active_application import ActiveApplication
from horologe_selector.core.contexts.context import decode_record, observation_name
from horologe_selector.core.contexts.contexts import Contexts
from horologe_selector.policy import CombinedPrediction, PolicyState, Selection
from horologe_selector.settings import SelectorSettings
from horologe_selector.stores.store_writer import execute_messages, unavailable_replies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_selector.policy import RandomSource, RowPredictions
    from horologe_selector.store import StateStore

A, B = "digits-a", "digits-b"
BOTH = Selection((A, B))


class Seen(PolicyState):
    losses: list[float] = msgspec.field(default_factory=list)


class Diary:
    """Its state is the list of all losses of `digits-a` it was told, so that a lost or a repeated one shows."""

    selects_one: ClassVar[bool] = False
    sticky: ClassVar[bool] = False
    state_type: ClassVar[type[Any]] = Seen

    def init(self, known: Any = None) -> Seen:
        return known if isinstance(known, Seen) else Seen()

    def select(self, state: Seen, chance: RandomSource) -> Selection:
        return BOTH

    def combine(self, state: Seen, ballot: RowPredictions) -> CombinedPrediction:
        return CombinedPrediction(next(iter(ballot.predictions.values())), 1.0)

    def observe(self, state: Seen, selection: Selection, losses: Mapping[str, float]) -> Seen:
        return Seen([*state.losses, losses[A]]) if A in losses else state

    def weights(self, state: Seen) -> dict[str, float]:
        return {A: 0.5, B: 0.5}


def a_running(name: str = "digits", revision: int = 1, **fields: Any) -> ActiveApplication:
    """An application of two models with a diary for a policy."""
    running = ActiveApplication(Application(name, (A, B), **fields), revision, {})
    running.policy = Diary()
    return running


def named(number: int) -> bytes:
    """What an observation is called."""
    return observation_name(b"prediction %d" % number)


def kept(store: StateStore, key: str) -> list[float]:
    """The diary in the store."""
    (record,) = store.read_records([key])
    if record is None:
        return []
    found = decode_record(record.data)
    assert found
    return msgspec.msgpack.decode(found.state, type=Seen).losses


class Shelf:
    """Contexts of one selector; its messages to the store, and the answers, go on when told to."""

    def __init__(
        self,
        store: StateStore,
        address: str = "selector/0#1",
        running: ActiveApplication | None = None,
        **settings: Any,
    ):
        self.store = store
        self.contexts = Contexts(SelectorSettings(**settings), address, store.shared)
        self.running = running or a_running()
        self.now_ns = 0
        self.asked: deque[Any] = deque()
        self.answers: deque[Any] = deque()
        self.saved: list[Any] = []

    def observe(self, loss: float, context: str = "", token: Any = None, name: bytes = b"") -> None:
        token = loss if token is None else token
        self.contexts.observe(self.now_ns, self.running, context, BOTH, {A: loss, B: 0.0}, token, name)
        self.tick()

    def get(self, context: str = "") -> Any:
        state = self.contexts.get_state(self.now_ns, self.running, context)
        self.tick()
        return state

    def tick(self, later_ns: int = 0) -> None:
        self.now_ns += later_ns
        self.contexts.tick(self.now_ns)
        self.asked += self.contexts.pop_messages()
        saved, self.contexts.saved = self.contexts.saved, []
        self.saved += saved
        self.contexts.check()

    def serve(self, done: bool = True, told: bool = True) -> None:
        """The store does the next thing, or not; and tells, or its answer is lost."""
        if not self.asked:
            return
        message = self.asked.popleft()
        replies = execute_messages(self.store, [message]) if done else []
        self.answers += replies if done and told else unavailable_replies([message], "away")

    def hear(self) -> None:
        """The next answer arrives."""
        if self.answers:
            self.contexts.on_store_reply(self.now_ns, self.answers.popleft())
        self.tick()

    def settle(self) -> None:
        """All goes well until all is quiet."""
        for _ in range(1000):
            self.tick()
            while self.asked or self.answers:
                self.serve()
                self.hear()
            if not self.contexts.unsaved and self.contexts.wakeup_ns() is None:
                return
            self.now_ns = max(self.now_ns, self.contexts.wakeup_ns() or 0)
        raise AssertionError(f"not quiet: {self.contexts.unsaved} unsaved")
