"""Queries of applications under way: the models that the policy selects are asked, and combined at the deadline at the
latest.

Clipper section 5.2.2: rendering a late prediction is worse than rendering an inaccurate one.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from horologe_common.clock import ms, s
from horologe_common.core.protocol import Out
from horologe_common.core.timers import Timers
from horologe_common.prediction_id import NONCE_BYTES, selector_mark
from horologe_common.status import InvalidInput, Status
from horologe_common.wire import Release
from horologe_selector.core.applications.combine import answer_of
from horologe_selector.core.applications.ensemble import Ensemble
from horologe_selector.core.contexts.sticky_random import Sticky
from horologe_selector.core.predictions.cache import prediction_key
from horologe_selector.core.predictions.flight import OK, Landing, Waiter
from horologe_selector.core.predictions.tensor_values import values_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_common.wire import Query
    from horologe_selector.core.applications.active_application import Running
    from horologe_selector.core.catalogue import Catalogue
    from horologe_selector.core.contexts.contexts import Contexts
    from horologe_selector.core.predictions.inflight import Flights
    from horologe_selector.core.return_latency import WayBack
    from horologe_selector.policy import Chance, Selection

SPARE_NS = ms(1)
"""A timer of the loop fires up to a millisecond late."""
LINGER_NS = s(1)
"""How long after the answer a straggler or a shadow is still waited for, so that feedback finds its prediction."""


class Ensembles:
    """Law: every query taken is answered once, unless its frontend withdraws it; all inputs are released."""

    def __init__(
        self,
        address: str,
        chance: Chance,
        flights: Flights,
        contexts: Contexts,
        catalogue: Catalogue,
        ways: WayBack,
        post: Callable[[Out], None],
    ) -> None:
        self.deadlines = Timers()
        self.finished: list[Ensemble] = []
        """Answered, or predicted again for feedback, since the core last looked."""
        self._key = int(chance.random() * (1 << 53)).to_bytes(8, "big") + address.encode()[-48:]
        self._mark = selector_mark(address)
        self._chance = chance
        self._flights = flights
        self._contexts = contexts
        self._catalogue = catalogue
        self._ways = ways
        self._post = post
        self._ensembles: dict[int, Ensemble] = {}
        self._by_query: dict[tuple[str, int], int] = {}
        self._parked: dict[tuple[str, str], list[int]] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._ensembles)

    def ask(
        self,
        now_ns: int,
        frontend: str,
        query: Query,
        running: Running,
        token: int = 0,
        selection: Selection | None = None,
    ) -> None:
        """Take a query; it starts as soon as the state of its context is known. `selection`: what is to be asked."""
        self._last_id += 1
        # At most half of it: the pings of a stall of 400 ms are remembered for 20 s, and would leave no time till then.
        way_ns = min(self._ways.p99_ns(now_ns, frontend) + SPARE_NS, query.budget_ns // 2)
        due_ns = now_ns + max(0, query.budget_ns - way_ns)
        prediction = self._mark + self._nonce() + query.input_hash
        ensemble = Ensemble(self._last_id, frontend, query, running, now_ns, due_ns, prediction, token)
        ensemble.selection = selection or ensemble.selection
        self._ensembles[ensemble.id] = ensemble
        self._by_query[frontend, query.id] = ensemble.id
        self.deadlines.arm(ensemble.id, due_ns)
        if self._contexts.get(now_ns, running, query.context) is None:
            self._parked.setdefault((running.application.name, query.context), []).append(ensemble.id)
        else:
            self._start(now_ns, ensemble)

    def _nonce(self) -> bytes:
        """Nobody who has seen names of answers can tell the next one: who could, might give feedback on it first."""
        return hashlib.blake2b(self._last_id.to_bytes(8, "big"), digest_size=NONCE_BYTES, key=self._key).digest()

    def ready(self, now_ns: int, name: str, context: str) -> None:
        """The state of this context has been read, or cannot be."""
        for number in self._parked.pop((name, context), ()):
            ensemble = self._ensembles.get(number)
            if ensemble is not None and not ensemble.answered:
                self._start(now_ns, ensemble)

    def _start(self, now_ns: int, ensemble: Ensemble) -> None:
        running, context = ensemble.running, ensemble.query.context
        if not ensemble.selection.models:
            chance = Sticky(context) if running.policy.sticky and context else self._chance
            ensemble.selection = running.policy.select(self.state(now_ns, ensemble), chance)
        for model in ensemble.selection.models:
            self._fly(now_ns, ensemble, model, shadow=False)
        if not ensemble.token:
            for model in running.application.shadows:
                self._fly(now_ns, ensemble, model, shadow=True)
        if not ensemble.waits():
            self._complete(now_ns, ensemble)

    def state(self, now_ns: int, ensemble: Ensemble) -> object:
        """What the policy knows of the context, from the store or, that being away, from nothing."""
        running = ensemble.running
        state = self._contexts.get(now_ns, running, ensemble.query.context)
        return running.policy.init() if state is None else state

    def _fly(self, now_ns: int, ensemble: Ensemble, model: str, shadow: bool) -> None:
        query = ensemble.query
        spec = self._catalogue.find(model)
        if spec is None:
            self._ended(ensemble, model, Landing(int(Status.UNKNOWN_MODEL), reason=f"model {model!r} is not served"))
            return
        shared = ensemble.running.application.cache
        key = prediction_key(spec, query.input_hash if shared else ensemble.prediction)
        ensemble.cache_keys[model] = key
        waiter = Waiter(ensemble.frontend, query, now_ns, ensemble.due_ns, ensemble.id, model, shadow)
        landing = self._flights.ask(now_ns, waiter, spec, spec.key, key)
        if landing is None:
            ensemble.open[model] = waiter
        else:
            self._ended(ensemble, model, landing)

    def landed(self, now_ns: int, waiter: Waiter, landing: Landing) -> None:
        """A prediction, in time or not, or that there will be none."""
        ensemble = self._ensembles.get(waiter.ensemble)
        if ensemble is None:
            return
        del ensemble.open[waiter.model]
        self._ended(ensemble, waiter.model, landing)
        if not ensemble.answered:
            if not ensemble.waits():
                self._complete(now_ns, ensemble)
        elif not ensemble.open:
            self._remove(ensemble, release=True)

    def _ended(self, ensemble: Ensemble, model: str, landing: Landing) -> None:
        running = ensemble.running
        if landing.status == OK and running.application.task != "any":
            try:
                values = values_of(running.application, landing.outputs, landing.buffers)
                if len(values) != ensemble.query.rows:
                    raise InvalidInput(f"model {model}: got {len(values)} predictions, wanted {ensemble.query.rows}")
            except InvalidInput as error:
                landing = Landing(int(Status.FAILED), reason=error.reason)
            else:
                ensemble.values[model] = values
                running.stand_ins[model].add(values)
        if landing.status != OK:
            ensemble.refused[model] = landing
            return
        ensemble.landings[model] = landing
        if ensemble.answered:
            running.answered(model, ensemble.values.get(model, ()), ensemble.guesses)

    def _complete(self, now_ns: int, ensemble: Ensemble) -> None:
        """Answer with what is there; whoever still flies is waited for a little longer, for feedback's sake."""
        ensemble.answered = True
        self.finished.append(ensemble)
        if not ensemble.token:
            answer, buffers, ensemble.guesses = answer_of(now_ns, ensemble, self.state(now_ns, ensemble))
            self._post(Out(ensemble.frontend, answer, buffers))
            running = ensemble.running
            for model in ensemble.landings:
                running.answered(model, ensemble.values.get(model, ()), ensemble.guesses)
            for model in ensemble.selection.models:
                if model not in ensemble.landings:
                    running.missed(model)
        if ensemble.open:
            self.deadlines.arm(ensemble.id, max(now_ns, ensemble.due_ns) + LINGER_NS)
        else:
            self._remove(ensemble, release=bool(ensemble.token))

    def tick(self, now_ns: int) -> None:
        """Combine what is there where the time has come; give up on those that came later still."""
        for number in self.deadlines.pop_expired(now_ns):
            ensemble = self._ensembles[number]
            if ensemble.answered:
                self._withdraw(now_ns, ensemble)
            else:
                self._complete(now_ns, ensemble)

    def abandon(self, now_ns: int, frontend: str, query_id: int) -> bool:
        """The frontend does not wait any more; False if it is none of ours."""
        ensemble = self._ensembles.get(self._by_query.get((frontend, query_id), 0))
        if ensemble is not None:
            self._withdraw(now_ns, ensemble)
        return ensemble is not None

    def gone(self, now_ns: int, frontend: str) -> None:
        """Those that came last first: where all wait for one flight, its leader is not replaced again and again."""
        for address, query_id in [key for key in reversed(self._by_query) if key[0] == frontend]:
            self.abandon(now_ns, address, query_id)

    def _withdraw(self, now_ns: int, ensemble: Ensemble) -> None:
        for waiter in ensemble.open.values():
            self._flights.leave(now_ns, waiter)
        if ensemble.token and not ensemble.answered:
            self.finished.append(ensemble)
        self._remove(ensemble, release=True)

    def _remove(self, ensemble: Ensemble, release: bool) -> None:
        del self._ensembles[ensemble.id]
        del self._by_query[ensemble.frontend, ensemble.query.id]
        self.deadlines.cancel(ensemble.id)
        if release:
            self._post(Out(ensemble.frontend, Release((ensemble.query.id,))))

    def check(self) -> None:
        assert set(self._by_query.values()) == set(self._ensembles)
        assert len(self.deadlines) == len(self._ensembles)
        assert all(ensemble.open or not ensemble.answered for ensemble in self._ensembles.values())
