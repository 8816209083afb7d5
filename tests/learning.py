"""For tests of learning: a policy that forgets nothing it is told, and a selector's contexts with a keeper in steps."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from horologe_common.applications import Application
from horologe_selector.core.applications.active_application import Running
from horologe_selector.core.contexts.context import name_of, stored
from horologe_selector.core.contexts.contexts import Contexts
from horologe_selector.policy import Guess, Selection, State
from horologe_selector.settings import SelectorSettings
from horologe_selector.stores.store_writer import refused, serve

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_selector.policy import Ballot, Chance
    from horologe_selector.store import StateStore

A, B = "digits-a", "digits-b"
BOTH = Selection((A, B))


class Seen(State):
    losses: list[float] = msgspec.field(default_factory=list)


class Diary:
    """Its state is the list of all losses of `digits-a` it was told, so that a lost or a repeated one shows."""

    single: ClassVar[bool] = False
    sticky: ClassVar[bool] = False
    State: ClassVar[type[Any]] = Seen

    def init(self, known: Any = None) -> Seen:
        return known if isinstance(known, Seen) else Seen()

    def select(self, state: Seen, chance: Chance) -> Selection:
        return BOTH

    def combine(self, state: Seen, ballot: Ballot) -> Guess:
        return Guess(next(iter(ballot.predictions.values())), 1.0)

    def observe(self, state: Seen, selection: Selection, losses: Mapping[str, float]) -> Seen:
        return Seen([*state.losses, losses[A]]) if A in losses else state

    def weights(self, state: Seen) -> dict[str, float]:
        return {A: 0.5, B: 0.5}


def a_running(name: str = "digits", revision: int = 1, **fields: Any) -> Running:
    """An application of two models with a diary for a policy."""
    running = Running(Application(name, (A, B), **fields), revision, {})
    running.policy = Diary()
    return running


def named(number: int) -> bytes:
    """What an observation is called."""
    return name_of(b"prediction %d" % number)


def kept(store: StateStore, key: str) -> list[float]:
    """The diary in the store."""
    (record,) = store.read([key])
    if record is None:
        return []
    found = stored(record.data)
    assert found
    return msgspec.msgpack.decode(found.state, type=Seen).losses


class Shelf:
    """Contexts of one selector; its messages to the store, and the answers, go on when told to."""

    def __init__(
        self, store: StateStore, address: str = "selector/0#1", running: Running | None = None, **settings: Any
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
        state = self.contexts.get(self.now_ns, self.running, context)
        self.tick()
        return state

    def tick(self, later_ns: int = 0) -> None:
        self.now_ns += later_ns
        self.contexts.tick(self.now_ns)
        self.asked += self.contexts.take()
        saved, self.contexts.saved = self.contexts.saved, []
        self.saved += saved
        self.contexts.check()

    def serve(self, done: bool = True, told: bool = True) -> None:
        """The store does the next thing, or not; and tells, or its answer is lost."""
        if not self.asked:
            return
        message = self.asked.popleft()
        replies = serve(self.store, [message]) if done else []
        self.answers += replies if done and told else refused([message], "away")

    def hear(self) -> None:
        """The next answer arrives."""
        if self.answers:
            self.contexts.handle(self.now_ns, self.answers.popleft())
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
