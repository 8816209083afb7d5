"""Feedback: joins what turned out to be true with the predictions in the cache, and is acknowledged when learned.

Clipper section 4.2: with the predictions in the cache, the models need not be asked again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.applications import undeclared_application
from horologe_common.core.protocol import Out
from horologe_common.prediction_id import HEAD_BYTES
from horologe_common.status import InvalidInput, Status
from horologe_common.wire import Release
from horologe_selector.core.contexts.context import name_of
from horologe_selector.core.feedback.acknowledgements import Acknowledgements, Item, Pending
from horologe_selector.core.feedback.repredict import Again, PredictedAgain
from horologe_selector.core.predictions.cache import predicted
from horologe_selector.core.predictions.prediction_log import Table
from horologe_selector.policy import Selection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import Feedback, Observation
    from horologe_selector.core.applications.active_application import Running
    from horologe_selector.core.contexts.contexts import Contexts
    from horologe_selector.core.feedback.repredict import Wanted
    from horologe_selector.core.predictions.cache import Cache
    from horologe_selector.core.predictions.prediction_log import Remembered
    from horologe_selector.settings import SelectorSettings

OK = int(Status.OK)
EVICTED = "prediction: not known any more, or none of its models' predictions is: send the inputs again"


OTHERS = 64
"""Times that one observation may be sent again while it waits to be saved: as often as it fits into one Feedback."""


class Feedbacks:
    """Law: every Feedback gets one Acknowledged, after `feedback_ns` at the latest."""

    def __init__(
        self, settings: SelectorSettings, applications: Mapping[str, Running], contexts: Contexts, cache: Cache
    ) -> None:
        self.settings = settings
        self.answers = Table(settings.predictions)
        self._applications = applications
        self._contexts = contexts
        self._cache = cache
        self._pending = Acknowledgements()
        self._again = PredictedAgain()
        self._released: list[Out] = []

    def __len__(self) -> int:
        """Feedback that has not been answered."""
        return len(self._pending)

    def take(self) -> list[Out]:
        """Acknowledgements, and releases of inputs that came along and are not needed."""
        released, self._released = self._released, []
        return released + self._pending.take()

    def take_wanted(self) -> list[Wanted]:
        """What is to be predicted again."""
        wanted, self._again.wanted = self._again.wanted, []
        return wanted

    def remember(
        self,
        prediction: bytes,
        running: Running,
        selection: Selection,
        cache_keys: Mapping[str, bytes],
        context: str = "",
    ) -> None:
        """An answer was given under this name. `cache_keys`: of all models asked, shadows too, answered in time or
        not; they end in the name or in its input hash."""
        self.answers.put(prediction, running.application.name, context, selection, cache_keys)

    def take_in(self, now_ns: int, frontend: str, message: Feedback, buffers: Sequence[Buffer] = ()) -> None:
        """Feedback on one application; acknowledged when all of it is durable, or cannot be."""
        pending = self._pending.begin(frontend, message.id, now_ns + self.settings.feedback_ns, len(message.items))
        running = self._applications.get(message.application)
        known = len(self._again.wanted)
        for at, observation in enumerate(message.items):
            if running is None:
                error = undeclared_application(message.application)
                self._pending.settle(pending, at, int(error.status), error.reason)
            else:
                self._observe(now_ns, pending, at, running, observation)
        needed = {wanted.query.id for wanted in self._again.wanted[known:]}
        staged = (observation.query.id for observation in message.items if observation.query is not None)
        if unneeded := tuple(input_id for input_id in staged if input_id not in needed):
            self._released.append(Out(frontend, Release(unneeded)))

    def joined(
        self, now_ns: int, token: int, values: Mapping[str, tuple[float, ...]], selection: Selection | None = None
    ) -> None:
        """Wanted predictions, of those models that have made one; `selection`: which were asked."""
        if (again := self._again.pop(token)) is None:
            return
        if (running := self._applications.get(again.application)) is None:
            self._end(again.item, int(Status.UNKNOWN_MODEL), f"application {again.application!r} was withdrawn")
            return
        found = {**values, **again.values}
        if again.selection and any(model in found for model in again.selection.models):
            selection = again.selection
        self._learn(now_ns, again.item, running, again.context, selection, again.seen, found)

    def tick(self, now_ns: int) -> None:
        """Acknowledge what is durable, and what has waited too long."""
        contexts = self._contexts
        saved, contexts.saved = contexts.saved, []
        failed, contexts.failed = contexts.failed, []
        for item in saved:
            self._end(item, OK)
        for item, reason in failed:
            self._end(item, int(Status.UNKNOWN_MODEL), reason)
        for again in self._again.overdue(now_ns):
            if again.item.remembered:
                again.item.remembered.item = None
        self._pending.tick(now_ns)

    def wakeup_ns(self) -> int | None:
        return self._pending.next_ns()

    def check(self) -> None:
        self.answers.check()

    def _observe(self, now_ns: int, pending: Pending, at: int, running: Running, seen: Observation) -> None:
        """Join one with what is remembered of it."""
        known = self.answers.get(seen.prediction)
        if known is None:
            if seen.query is None:
                self._pending.settle(pending, at, int(Status.MISSING_INPUT), EVICTED)
                return
        elif known.plan.application != running.application.name:
            reason = f"prediction: is one of {known.plan.application!r}, wanted one of {running.application.name!r}"
            self._pending.settle(pending, at, int(Status.INVALID_INPUT), reason)
            return
        elif known.counted:
            self._pending.settle(pending, at, OK)
            return
        elif known.item is not None:
            self._with_others(known.item, pending, at)
            return
        if self._contexts.unsaved + len(self._again) >= self.settings.unsaved:
            self._refuse(pending, at)
            return
        self._join(now_ns, Item(pending, at, known), running, seen)

    def _with_others(self, item: Item, pending: Pending, at: int) -> None:
        """It was sent again before it was saved."""
        item.others = [(other, place) for other, place in item.others or () if other.left > 0]
        if len(item.others) < OTHERS:
            item.others.append((pending, at))
        else:
            reason = f"prediction: the same was sent {OTHERS} times already and waits to be saved"
            self._pending.settle(pending, at, int(Status.REFUSED), reason, self.settings.store_pause_ns)

    def _join(self, now_ns: int, item: Item, running: Running, seen: Observation) -> None:
        """With the cache; what is not there any more is predicted again, if the inputs came along."""
        known, selection = item.remembered, None
        values: dict[str, tuple[float, ...]] = {}
        context = seen.context
        if known is not None:
            context = context or known.context
            values = self._cached(running, known, seen.prediction)
            if models := tuple([model for model in known.plan.models if model in running.application.models]):
                selection = Selection(models, known.probability)
        query = seen.query
        if query is None or (selection is not None and all(model in values for model in selection.models)):
            self._learn(now_ns, item, running, context, selection, seen, values)
            return
        if known is None and seen.prediction:
            name = running.application.name
            known = item.remembered = self.answers.put(seen.prediction, name, context, Selection(()), {})
        if known is not None:
            known.item = item
        self._again.want(Again(item, running.application.name, context, selection, seen, values), running, query)

    def _cached(self, running: Running, known: Remembered, prediction: bytes) -> dict[str, tuple[float, ...]]:
        """What the models have predicted, as far as that is still there and fit for the application."""
        application, recall, suffix = running.application, self._cache.recall, prediction[HEAD_BYTES:]
        values = {}
        for model, front, own in known.plan.parts:
            if (entry := recall(front + (prediction if own else suffix))) is not None:
                try:
                    values[model] = predicted(application, entry)
                except InvalidInput:
                    continue
        return values

    def _learn(
        self,
        now_ns: int,
        item: Item,
        running: Running,
        context: str,
        selection: Selection | None,
        seen: Observation,
        values: Mapping[str, tuple[float, ...]],
    ) -> None:
        """Tell the policy the losses of the models selected; count those of all."""
        try:
            losses = running.losses(seen.truths, values)
        except InvalidInput as error:
            self._end(item, int(error.status), error.reason)
            return
        except Exception as error:  # a loss of the operator's own
            self._end(item, int(Status.FAILED), f"loss: {type(error).__name__}: {error}")
            return
        chosen = {model: losses[model] for model in selection.models if model in losses} if selection else {}
        if selection is None or not chosen:
            self._end(item, int(Status.MISSING_INPUT), EVICTED)
            return
        for model, loss in losses.items():
            running.observed(model, loss)
        if item.remembered is not None:
            item.remembered.item = item
        self._contexts.observe(now_ns, running, context, selection, chosen, item, name_of(seen.prediction))

    def _end(self, item: Item, status: int, reason: str = "") -> None:
        known = item.remembered
        if known is not None:
            known.item = None
            known.counted = known.counted or status == OK
        self._pending.settle(item.pending, item.at, status, reason)
        for pending, at in item.others or ():
            self._pending.settle(pending, at, status, reason)

    def _refuse(self, pending: Pending, at: int) -> None:
        limit = self.settings.unsaved
        reason = "the state store is away" if self._contexts.away else f"{limit} observations wait to be saved"
        self._pending.settle(pending, at, int(Status.REFUSED), reason, self.settings.store_pause_ns)
