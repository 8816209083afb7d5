"""Harness of the feedback experiment: the feedback, contexts and store of a selector as a core, in a `CoreHost`.

No models, frontends or sockets: a packet goes in as bytes, and its acknowledgement comes out as bytes.
"""

from __future__ import annotations

import gc
import queue
import sys
import time
from typing import TYPE_CHECKING, Any

from horologe_common.applications import undeclared_application
from horologe_common.clock import s
from horologe_common.core.hosting import CoreHost, raise_fault
from horologe_common.core.protocol import Out
from horologe_common.transport.reactor import SWITCH_INTERVAL_S
from horologe_common.wire import Acknowledged, Envelope, Feedback, decode, encode
from horologe_selector.core.applications.active_application import ActiveApplication
from horologe_selector.core.contexts.contexts import Contexts
from horologe_selector.core.feedback.feedback import FeedbackProcessor
from horologe_selector.core.predictions.cache import PredictionCache
from horologe_selector.policy import Selection
from horologe_selector.settings import SelectorSettings
from horologe_selector.stores import open_store
from horologe_selector.stores.store_writer import StoreWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_experiments.clipper.feedback_process.feedback_load import FeedbackLoad
    from horologe_selector.store import Record, RecordChange, StateStore

ADDRESS, STORE = "selector/0#1", "store/0#1"
REPLY_TIMEOUT_S = 30.0
COLLECT_EVERY_NS = s(1)
"""The reactor collects young garbage as often."""


class TimedStore:
    """A store that measures its writes."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self.name, self.shared = store.name, store.shared
        self.read_records, self.list_family = store.read_records, store.list_family
        self.trim_family, self.close = store.trim_family, store.close
        self.groups: list[tuple[int, int]] = []
        """(changes, duration in ns) of each write."""

    def write_changes(self, changes: Sequence[RecordChange]) -> list[int | Record]:
        """Write the changes and record how long it takes."""
        begin_ns = time.perf_counter_ns()
        results = self._store.write_changes(changes)
        self.groups.append((len(changes), time.perf_counter_ns() - begin_ns))
        return results


class FeedbackCore:
    """The part of a selector's core that learns from feedback. Stub models predict in `tick`, in the same thread."""

    def __init__(self, load: FeedbackLoad, settings: SelectorSettings, shared_store: bool) -> None:
        self.address = ADDRESS
        self.out: list[Out] = []
        self.running = ActiveApplication(load.application, 1, {})
        self.cache = PredictionCache(settings.cache_bytes)
        self.contexts = Contexts(settings, ADDRESS, shared_store, lambda message: self.out.append(Out(STORE, message)))
        self.feedback = FeedbackProcessor(
            settings,
            {load.application.name: self.running},
            self.contexts,
            self.cache,
            undeclared_application,
            lambda out: self.out.append(out),
        )
        self._load = load

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Buffer a Feedback or a reply of the store."""
        if isinstance(message, Feedback):
            self.feedback.on_feedback(now_ns, sender, message)
        else:
            self.contexts.on_store_reply(now_ns, message)

    def tick(self, now_ns: int) -> None:
        """Learn from what has been buffered."""
        self._repredict(now_ns)
        self.contexts.tick(now_ns)
        self.feedback.tick(now_ns)

    def wakeup_ns(self) -> int | None:
        """Return None: the harness runs a turn only when a message has arrived."""
        return None

    def _repredict(self, now_ns: int) -> None:
        """Predict again, with the stub models, the inputs of which no prediction is cached."""
        if not (wanted := self.feedback.pop_unstarted_repredictions()):
            return
        inputs = [int.from_bytes(item.query.input_hash, "big") for item in wanted]
        labels = self._load.predict(inputs)
        selection = Selection(self._load.models)
        for place, item in enumerate(wanted):
            values = {model: (labels_of_model[place],) for model, labels_of_model in labels.items()}
            self.feedback.on_repredicted(now_ns, item.token, values, selection)


class FeedbackProcess:
    """The core, its store on a thread, and the loop. `on_acknowledged` gets every Acknowledged, once encoded."""

    def __init__(
        self, load: FeedbackLoad, settings: SelectorSettings, on_acknowledged: Callable[[Acknowledged], None]
    ) -> None:
        self.load = load
        self.store = TimedStore(open_store(settings))
        self.core = FeedbackCore(load, settings, self.store.shared)
        self._on_acknowledged = on_acknowledged
        self._replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.store_writer = StoreWriter(self.store, self._replies.put)
        self._host = CoreHost([self.core], time.monotonic_ns, self, raise_fault)
        self._host.attached[STORE] = lambda message, _: self.store_writer.deliver(message)
        self._collect_ns = 0

    def route(self, address: str) -> str:
        """Part of `Transport`: every address is the frontend's."""
        return address

    def send(self, route: str, envelopes: list[Envelope], buffers: list[Buffer]) -> None:
        """Part of `Transport`: encode the packet as if it were sent."""
        encode(envelopes)
        for envelope in envelopes:
            for message in envelope.messages:
                if isinstance(message, Acknowledged):
                    self._on_acknowledged(message)

    def record_answers(self, cached: bool) -> None:
        """Record the answers that the feedback is on; with `cached`, put the models' predictions into the cache."""
        load, core = self.load, self.core
        selection = Selection(load.models)
        keys = [load.cache_keys(place) for place in range(load.settings.inputs)]
        for number in range(load.settings.observations):
            context = load.context_of(number)
            prediction, name = load.prediction(number), core.running.application.name
            core.feedback.predictions.add(prediction, name, context, selection, keys[load.input[number]])
        if cached:
            for place, keys_by_model in enumerate(keys):
                for model, key in enumerate(keys_by_model.values()):
                    tensor, data = load.scores(model, place)
                    core.cache.store(0, key, (tensor,), [data], s(3600))

    def start(self) -> None:
        """Start the store's thread, and exclude all objects from garbage collection as the reactor does."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self.store_writer.start()
        gc.collect()
        gc.freeze()
        gc.disable()

    def handle_packet(self, packet: bytes) -> None:
        """Run a turn with one packet of feedback."""
        for envelope in decode(packet):
            self._host.enqueue([(ADDRESS, envelope.sender, message, ()) for message in envelope.messages])
        self._host.run_turn()

    def handle_store_replies(self) -> None:
        """Wait for the store to reply, and run a turn with all its replies."""
        replies = [self._replies.get(timeout=REPLY_TIMEOUT_S)]
        while not self._replies.empty():
            replies.append(self._replies.get_nowait())
        self._host.enqueue([(ADDRESS, STORE, reply, ()) for reply in replies])
        self._host.run_turn()
        now_ns = time.monotonic_ns()
        if now_ns > self._collect_ns:
            self._collect_ns = now_ns + COLLECT_EVERY_NS
            gc.collect(1)
