"""The selector: what a query is for, and one answer to it.

A model: from the cache, a flight already under way, or Submit; Outputs (from the worker) or Outcome (from the
controller) -> Answer to every frontend that waits for this flight. An application: the same for each model its policy
selects, combined (ensembles.py); Feedback changes what the policy knows (feedback.py, contexts.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.applications import undeclared_application
from horologe_common.clock import NEVER_NS
from horologe_common.core.protocol import Out, PeerConnected, PeerDisconnected, role
from horologe_common.service.metrics import Stats
from horologe_common.wire import (
    Answer,
    ApplicationInfo,
    Applications,
    Cancel,
    Declare,
    Feedback,
    Models,
    Outcome,
    Outputs,
    Pong,
    Query,
    Rollback,
    Withdraw,
)
from horologe_selector.core.applications.model_status import Standings
from horologe_selector.core.applications.query import Ensembles
from horologe_selector.core.applications.registry import FAMILY, STANDING, Registry
from horologe_selector.core.catalogue import Catalogue
from horologe_selector.core.contexts.contexts import Contexts
from horologe_selector.core.feedback.feedback import Feedbacks
from horologe_selector.core.predictions.cache import Cache
from horologe_selector.core.predictions.inflight import Flights
from horologe_selector.core.predictions.single_model import PlainQueries
from horologe_selector.core.return_latency import WayBack
from horologe_selector.store import Found, Listed, Written

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_selector.core.applications.losses import Loss
    from horologe_selector.core.predictions.flight import Landing, Waiter
    from horologe_selector.policy import Chance
    from horologe_selector.settings import SelectorSettings

    Handler = Callable[[int, str, Any, Sequence[Buffer]], None]


PLAIN = frozenset({Query, Outputs, Outcome, Models, Pong})
"""Messages that by themselves are nothing to applications: most have no other, and a tick for each took 3 us."""


class Selector:
    """Core of the selector. `chance` is the policies' randomness, `losses` what the operator adds to the named ones.

    `shared`: whether other selectors write to the same state store; `store` is the address of its keeper.
    """

    records_predictions = True
    """What its models predict decides: recorded as outlines (outlines.py)."""

    def __init__(
        self,
        address: str,
        settings: SelectorSettings,
        chance: Chance,
        losses: Mapping[str, Loss] | None = None,
        shared: bool = False,
    ) -> None:
        self.address = address
        self.settings = settings
        self.out: list[Out] = []
        self.store = f"store/{settings.name}"
        self.stats = Stats()
        self.catalogue = Catalogue()
        self.flights = Flights(Cache(settings.cache_bytes), settings.cache_ttl_ns, self.stats, self._post, self._landed)
        self.registry = Registry(losses or {}, self.catalogue, self._post, self.store, shared, settings.applications)
        self.contexts = Contexts(settings, address, shared)
        self.standings = Standings(self.registry, self.contexts, settings.context_read_ns, self._post)
        self.feedback = Feedbacks(settings, self.registry.running, self.contexts, self.flights.cache)
        self.ways = WayBack()
        self.ensembles = Ensembles(address, chance, self.flights, self.contexts, self.catalogue, self.ways, self._post)
        self._frontends: dict[str, bool] = {}
        self.plain = PlainQueries(self.flights, self.catalogue, self._post)
        self._stirred = True
        self._wakeup_ns = 0
        self._handlers: dict[type, Handler] = {
            Query: self._query,
            Outputs: self.flights.outputs,
            Outcome: self.flights.outcome,
            Cancel: self._cancelled,
            Models: self._announced,
            PeerConnected: self._joined,
            PeerDisconnected: self._gone,
            Pong: self.ways.told,
            Declare: self.registry.declare,
            Withdraw: self.registry.withdraw,
            Rollback: self.registry.rollback,
            ApplicationInfo: self.standings.ask,
            Feedback: self.feedback.take_in,
            Found: self._kept,
            Written: self._kept,
            Listed: self.registry.listed,
        }

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """One message from a frontend, a worker, the controller, the keeper or the loop."""
        kind = type(message)
        if handler := self._handlers.get(kind):
            self._stirred = self._stirred or kind not in PLAIN
            handler(now_ns, sender, message, buffers)

    def tick(self, now_ns: int) -> None:
        """Applications only: combine what is due, learn, and tell the keeper and the frontends what has changed."""
        if not self._stirred and now_ns < self._wakeup_ns:
            return
        self._stirred = False
        self._tick(now_ns)
        times = (
            self.ensembles.deadlines.next_ns(),
            self.contexts.wakeup_ns(),
            self.feedback.wakeup_ns(),
            self.registry.next_ns(),
            self.ways.next_ns() if self.registry.running else None,
            self.standings.next_ns(),
            0 if self.ensembles.finished else None,
        )
        self._wakeup_ns = min(at_ns for at_ns in times if at_ns is not None)

    def _tick(self, now_ns: int) -> None:
        self.registry.tick(now_ns)
        if self.registry.changed:
            self._changed(now_ns)
        self.ensembles.tick(now_ns)
        self.contexts.tick(now_ns)
        self.standings.tick(now_ns)
        for name, context in self.contexts.ready():
            self.ensembles.ready(now_ns, name, context)
        self._learn(now_ns)
        if self.registry.running:
            self.out += self.ways.pings(now_ns)
        for message in self.contexts.take():
            self.out.append(Out(self.store, message))

    def _learn(self, now_ns: int) -> None:
        """What has been answered can be given feedback on; what feedback has lost is predicted again."""
        finished, self.ensembles.finished = self.ensembles.finished, []
        for ensemble in finished:
            if ensemble.token:
                self.feedback.joined(now_ns, ensemble.token, ensemble.values, ensemble.selection)
            else:
                selection, context = ensemble.selection, ensemble.query.context
                self.feedback.remember(ensemble.prediction, ensemble.running, selection, ensemble.cache_keys, context)
        self.feedback.tick(now_ns)
        for wanted in self.feedback.take_wanted():
            self.ensembles.ask(now_ns, wanted.frontend, wanted.query, wanted.running, wanted.token, wanted.selection)
        self.out += self.feedback.take()

    def _changed(self, now_ns: int) -> None:
        self.registry.changed = False
        forgotten = self.registry.take_forgotten()
        for name, erase in forgotten:
            self.contexts.forget(name, erase)
            self.standings.forget(name)
        if forgotten:
            self.stats.remove_values(STANDING, *[name for name, _ in forgotten])
        announcement = Applications(0, self.registry.states())
        self.out += [Out(frontend, announcement) for frontend in self._frontends]

    def wakeup_ns(self) -> int | None:
        return None if self._wakeup_ns == NEVER_NS else self._wakeup_ns

    def drain(self) -> None:
        """Whoever asks is still answered: the frontends know when to stop."""

    def drained(self) -> bool:
        """Whether all that was observed is kept, and acknowledged."""
        return not self.contexts.unsaved and not len(self.feedback)

    def check(self) -> None:
        self.flights.check()
        self.ensembles.check()
        self.contexts.check()
        self.feedback.check()
        self.plain.check()

    def refresh_stats(self) -> None:
        """Bring the metrics that follow from the tallies up to date, before they are read."""
        self.registry.publish(self.stats)

    def _post(self, out: Out) -> None:
        self.out.append(out)

    # queries

    def _query(self, now_ns: int, frontend: str, query: Query, buffers: Sequence[Buffer]) -> None:
        if query.model:
            self.plain.ask(now_ns, frontend, query)
        elif (running := self.registry.running.get(query.application)) is not None:
            self._stirred = True
            self.ensembles.ask(now_ns, frontend, query, running)
        else:
            error = undeclared_application(query.application)
            self.out.append(Out(frontend, Answer(query.id, int(error.status), reason=error.reason)))

    def _landed(self, now_ns: int, waiter: Waiter, landing: Landing) -> None:
        if waiter.ensemble:
            self._stirred = True
            self.ensembles.landed(now_ns, waiter, landing)
        else:
            self.plain.landed(now_ns, waiter, landing)

    def _cancelled(self, now_ns: int, frontend: str, message: Cancel, buffers: Sequence[Buffer]) -> None:
        for query_id in message.ids:
            if not self.ensembles.abandon(now_ns, frontend, query_id):
                self.plain.abandon(now_ns, frontend, query_id)

    # the keeper

    def _kept(self, now_ns: int, keeper: str, message: Found | Written, buffers: Sequence[Buffer]) -> None:
        """What has been read or written: declarations, or states."""
        if isinstance(message, Written) and message.changes[0].key.startswith(f"{FAMILY}\n"):
            self.registry.written(now_ns, message)
        else:
            self.contexts.handle(now_ns, message)
            if isinstance(message, Found):
                self.standings.found(message)

    # peers

    def _announced(self, now_ns: int, controller: str, message: Models, buffers: Sequence[Buffer]) -> None:
        self.catalogue.replace(message.models)

    def _joined(self, now_ns: int, sender: str, message: PeerConnected, buffers: Sequence[Buffer]) -> None:
        match role(message.address):
            case "controller":
                self.flights.joined(now_ns, message.address)
            case "frontend":
                self._frontends[message.address] = True
                self.ways.joined(message.address)
                if self.registry.known:
                    self.out.append(Out(message.address, Applications(0, self.registry.states())))

    def _gone(self, now_ns: int, sender: str, message: PeerDisconnected, buffers: Sequence[Buffer]) -> None:
        address = message.address
        if address == self.flights.controller:
            self.flights.controller = ""
        elif role(address) == "frontend":
            self._frontends.pop(address, None)
            self.ways.gone(address)
            self.ensembles.gone(now_ns, address)
            self.plain.gone(now_ns, address)
