"""A selector's contexts with a policy that records every loss and a store that replies step by step."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from horologe_common.applications import Application
from horologe_selector.core.applications.active_application import ActiveApplication
from horologe_selector.core.contexts.context import decode_record, observation_name
from horologe_selector.core.contexts.contexts import Contexts
from horologe_selector.policies.equal_weights import Average
from horologe_selector.policy import PolicyState, Selection
from horologe_selector.settings import SelectorSettings
from horologe_selector.store import TIMES, StoreTimes
from horologe_selector.stores.memory import MemoryStore
from horologe_selector.stores.store_writer import execute_messages, unavailable_replies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_selector.store import StateStore

A, B = "digits-a", "digits-b"
BOTH = Selection((A, B))


class RecordedLosses(PolicyState):
    losses: list[float] = msgspec.field(default_factory=list)


class RecordingPolicy(Average):
    """Policy whose state lists all observed losses of `digits-a`, so that lost and repeated ones are visible."""

    state_type: ClassVar[type[Any]] = RecordedLosses

    def init(self, previous: Any = None) -> Any:
        return previous if isinstance(previous, RecordedLosses) else RecordedLosses()

    def observe(self, state: Any, selection: Selection, losses: Mapping[str, float]) -> Any:
        return RecordedLosses([*state.losses, losses[A]]) if A in losses else state


def make_active_application(name: str = "digits", revision: int = 1, **fields: Any) -> ActiveApplication:
    """Return an application of two models with a `RecordingPolicy`."""
    active = ActiveApplication(Application(name, (A, B), **fields), revision, {})
    active.policy = RecordingPolicy((A, B), {})
    return active


def observation_name_of(number: int) -> bytes:
    """Return the name of the observation with this number."""
    return observation_name(b"prediction %d" % number)


def stored_losses(store: StateStore, key: str) -> list[float]:
    """Return the losses in a stored record."""
    (record,) = store.read_records([key])
    if record is None:
        return []
    return msgspec.convert(decode_record(record.data).state, RecordedLosses).losses


class ContextsHarness:
    """Contexts of one selector. The test decides when requests reach the store and replies come back."""

    def __init__(
        self,
        store: StateStore | None = None,
        address: str = "selector/0#1",
        active: ActiveApplication | None = None,
        times: StoreTimes = TIMES,
        **settings: Any,
    ):
        self.store = store or MemoryStore()
        self.requests: deque[Any] = deque()
        self.contexts = Contexts(SelectorSettings(**settings), address, self.store.shared, self.requests.append, times)
        self.active = active or make_active_application()
        self.now_ns = 0
        self.replies: deque[Any] = deque()
        self.saved: list[Any] = []

    def observe(self, loss: float, context: str = "", token: Any = None, name: bytes = b"") -> None:
        token = loss if token is None else token
        self.contexts.observe(self.now_ns, self.active, context, BOTH, {A: loss, B: 0.0}, token, name)
        self.tick()

    def get_state(self, context: str = "") -> Any:
        state = self.contexts.get_state(self.now_ns, self.active, context)
        self.tick()
        return state

    def tick(self, later_ns: int = 0) -> None:
        self.now_ns += later_ns
        self.contexts.tick(self.now_ns)
        saved, self.contexts.saved = self.contexts.saved, []
        self.saved += saved
        self.contexts.check()

    def serve_request(self, done: bool = True, replied: bool = True) -> None:
        """Execute the next request if `done`. Unless `replied`, the reply is lost."""
        if not self.requests:
            return
        message = self.requests.popleft()
        replies = execute_messages(self.store, [message]) if done else []
        self.replies += replies if done and replied else unavailable_replies([message], "away")

    def deliver_reply(self) -> None:
        """Deliver the next reply."""
        if self.replies:
            self.contexts.on_store_reply(self.now_ns, self.replies.popleft())
        self.tick()

    def run_until_idle(self) -> None:
        """Execute all requests and deliver all replies until nothing is left to do."""
        for _ in range(1000):
            self.tick()
            while self.requests or self.replies:
                self.serve_request()
                self.deliver_reply()
            if not self.contexts.unsaved and self.contexts.wakeup_ns() is None:
                return
            self.now_ns = max(self.now_ns, self.contexts.wakeup_ns() or 0)
        raise AssertionError(f"not idle: {self.contexts.unsaved} unsaved")
