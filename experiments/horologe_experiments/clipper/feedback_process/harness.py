"""The half: feedback, contexts and a keeper with its store, and a loop around them that does what the reactor does."""

from __future__ import annotations

import gc
import queue
import sys
import time
from typing import TYPE_CHECKING, Any

from horologe_common.clock import s
from horologe_common.core.protocol import Out
from horologe_common.transport.reactor import SWITCH_INTERVAL_S
from horologe_common.wire import Acknowledged, Envelope, Feedback, decode, encode
from horologe_selector.core.applications.active_application import Running
from horologe_selector.core.contexts.contexts import Contexts
from horologe_selector.core.feedback.feedback import Feedbacks
from horologe_selector.core.predictions.cache import Cache
from horologe_selector.policy import Selection
from horologe_selector.settings import SelectorSettings
from horologe_selector.stores import open_store
from horologe_selector.stores.store_writer import Keeper

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_experiments.clipper.feedback_process.feedback_load import Play
    from horologe_selector.store import Change, Record, StateStore

ADDRESS = "selector/0#1"
WAIT_S = 30.0
YOUNG_NS = s(1)
"""How often the reactor collects young garbage."""


class Timed:
    """A store, and how long its writes took."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self.name, self.shared = store.name, store.shared
        self.read, self.family, self.trim, self.close = store.read, store.family, store.trim, store.close
        self.groups: list[tuple[int, int]] = []
        """Changes, and ns."""

    def write(self, changes: Sequence[Change]) -> list[int | Record]:
        begin_ns = time.perf_counter_ns()
        results = self._store.write(changes)
        self.groups.append((len(changes), time.perf_counter_ns() - begin_ns))
        return results


class Half:
    """`told`: called with every Acknowledged, encoded."""

    def __init__(self, play: Play, settings: SelectorSettings, told: Callable[[Acknowledged], None]) -> None:
        self.play = play
        self.running = Running(play.application, 1, {})
        self.cache = Cache(settings.cache_bytes)
        self.store = Timed(open_store(settings))
        self.contexts = Contexts(settings, ADDRESS, self.store.shared)
        self.feedback = Feedbacks(settings, {play.application.name: self.running}, self.contexts, self.cache)
        self._told = told
        self._replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.keeper = Keeper(self.store, self._replies.put, settings.store_queue, settings.store_pause_ns)
        self._young_ns = 0

    def remember(self, cached: bool) -> None:
        """The answers that feedback is on; with `cached`, what the models said, too."""
        play = self.play
        selection = Selection(play.models)
        keys = [play.cache_keys(place) for place in range(play.load.inputs)]
        for number in range(play.load.observations):
            context = play.context_of(number)
            self.feedback.remember(play.prediction(number), self.running, selection, keys[play.input[number]], context)
        if cached:
            for place, of_models in enumerate(keys):
                for at, key in enumerate(of_models.values()):
                    tensor, data = play.scores(at, place)
                    self.cache.store(0, key, (tensor,), [data], s(3600))

    def start(self) -> None:
        """As the reactor does: nothing that lives by now is ever looked at by the garbage collector."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self.keeper.start()
        gc.collect()
        gc.freeze()
        gc.disable()

    def tell(self, packet: bytes) -> None:
        """A turn with one packet in it."""
        now_ns = time.monotonic_ns()
        for letter in decode(packet):
            for message in letter.messages:
                if isinstance(message, Feedback):
                    self.feedback.take_in(now_ns, letter.sender, message)
        self._turn(now_ns)

    def wait(self) -> None:
        """A turn with what the keeper has answered; waits for it."""
        replies = [self._replies.get(timeout=WAIT_S)]
        while not self._replies.empty():
            replies.append(self._replies.get_nowait())
        now_ns = time.monotonic_ns()
        for reply in replies:
            self.contexts.handle(now_ns, reply)
        self._turn(now_ns)
        if now_ns > self._young_ns:
            self._young_ns = now_ns + YOUNG_NS
            gc.collect(1)

    def _turn(self, now_ns: int) -> None:
        self._predict(now_ns)
        self.contexts.tick(now_ns)
        self.feedback.tick(now_ns)
        for message in self.contexts.take():
            self.keeper.deliver(message)
        if outs := self.feedback.take():
            self._send(outs)

    def _predict(self, now_ns: int) -> None:
        """Ask the stub models again, in this thread."""
        if not (wanted := self.feedback.take_wanted()):
            return
        places = [int.from_bytes(one.query.input_hash, "big") for one in wanted]
        found = self.play.predict(places)
        selection = Selection(self.play.models)
        for at, one in enumerate(wanted):
            values = {model: (rows[at],) for model, rows in found.items()}
            self.feedback.joined(now_ns, one.token, values, selection)

    def _send(self, outs: Sequence[Out]) -> None:
        encode([Envelope(outs[0].to, ADDRESS, [out.message for out in outs])])
        for out in outs:
            self._told(out.message)
