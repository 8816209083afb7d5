"""Feedback: joined with the cached predictions, passed to the policy, acknowledged when saved.

Clipper section 4.2: because predictions are cached, feedback does not need to evaluate the models again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.application_answers import HEAD_BYTES
from horologe_common.clock import s
from horologe_common.core.message_order import RecentCalls
from horologe_common.core.protocol import Out
from horologe_common.status import InvalidInput, Status
from horologe_common.wire import Release
from horologe_selector.core.contexts.context import observation_name
from horologe_selector.core.feedback.acknowledgements import Acknowledgements, FeedbackItem, UnacknowledgedFeedback
from horologe_selector.core.predictions.cache import cached_values
from horologe_selector.core.predictions.prediction_log import PredictionLog
from horologe_selector.policy import Selection
from horologe_selector.store import TIMES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.status import HorologeError
    from horologe_common.wire import Feedback, Observation, Query
    from horologe_selector.core.applications.active_application import ActiveApplication
    from horologe_selector.core.contexts.contexts import Contexts
    from horologe_selector.core.predictions.cache import PredictionCache
    from horologe_selector.core.predictions.prediction_log import LoggedPrediction
    from horologe_selector.settings import SelectorSettings

OK = int(Status.OK)
NOT_KEPT = "prediction: no model's prediction is kept: none was in time, or all were evicted. Send the inputs as well"
FEEDBACK_TIMEOUT_NS = s(5)
"""Timeout for saving feedback. After it the feedback is answered LOST: it may have been saved, and can be sent again.
"""
DUPLICATES = 64
"""Maximum number of duplicates of one unsaved observation: as many as fit into one Feedback."""


class Reprediction(msgspec.Struct, eq=False):
    """Feedback on predictions that are no longer cached, but whose inputs were sent along.

    The models predict `query` again. `FeedbackProcessor.on_repredicted` then joins the item with those predictions and
    with `values`, which are still cached.
    """

    token: int
    item: FeedbackItem
    active: ActiveApplication
    query: Query
    context: str
    selection: Selection | None
    """Selection of the original query, if known."""
    observation: Observation
    values: dict[str, tuple[float, ...]]


class FeedbackProcessor:
    """Feedback in progress. Invariant: each Feedback gets exactly one Acknowledged within `feedback_timeout_ns`."""

    def __init__(
        self,
        settings: SelectorSettings,
        applications: Mapping[str, ActiveApplication],
        contexts: Contexts,
        cache: PredictionCache,
        explain_missing: Callable[[str], HorologeError],
        post: Callable[[Out], None],
    ) -> None:
        self.settings = settings
        self.predictions = PredictionLog(settings.predictions)
        self._applications = applications
        self._contexts = contexts
        self._cache = cache
        self._explain_missing = explain_missing
        self._post = post
        self._acknowledgements = Acknowledgements(post)
        self._calls = RecentCalls()
        self._repredictions: dict[int, Reprediction] = {}
        """By token, the oldest first."""
        self._unstarted: list[Reprediction] = []
        self._last_token = 0

    def __len__(self) -> int:
        """Return the number of Feedbacks without a reply."""
        return len(self._acknowledgements)

    def pop_unstarted_repredictions(self) -> list[Reprediction]:
        unstarted, self._unstarted = self._unstarted, []
        return unstarted

    def on_feedback(self, now_ns: int, frontend: str, message: Feedback, buffers: Sequence[Buffer] = ()) -> None:
        """Process feedback on one application. It is acknowledged when all items are saved or have failed.

        Ignore a message that arrives again.
        """
        if self._calls.is_repeated(frontend, message.id):
            return
        deadline_ns = now_ns + FEEDBACK_TIMEOUT_NS
        feedback = self._acknowledgements.open_feedback(frontend, message.id, deadline_ns, len(message.items))
        active = self._applications.get(message.application)
        earlier_requests = len(self._unstarted)
        for index, observation in enumerate(message.items):
            if active is None:
                error = self._explain_missing(message.application)
                self._acknowledgements.set_status(feedback, index, int(error.status), error.reason)
            else:
                self._process_item(now_ns, feedback, index, active, observation)
        needed = {reprediction.query.id for reprediction in self._unstarted[earlier_requests:]}
        staged = (observation.query.id for observation in message.items if observation.query is not None)
        if unneeded := tuple(input_id for input_id in staged if input_id not in needed):
            self._post(Out(frontend, Release(unneeded)))

    def on_repredicted(
        self, now_ns: int, token: int, values: Mapping[str, tuple[float, ...]], selection: Selection | None = None
    ) -> None:
        """Continue an item with new predictions, unless it is overdue.

        `values`: of the models that answered; `selection`: those queried.
        """
        if (reprediction := self._repredictions.pop(token, None)) is None:
            return
        name = reprediction.active.application.name
        if (active := self._applications.get(name)) is None:
            self._finish_item(reprediction.item, int(Status.UNKNOWN_MODEL), f"application {name!r} was withdrawn")
            return
        joined = {**values, **reprediction.values}
        original = reprediction.selection
        if original and any(model in joined for model in original.models):
            selection = original
        self._observe_losses(
            now_ns, reprediction.item, active, reprediction.context, selection, reprediction.observation, joined
        )

    def tick(self, now_ns: int) -> None:
        contexts = self._contexts
        saved, contexts.saved = contexts.saved, []
        failed, contexts.failed = contexts.failed, []
        for item in saved:
            self._finish_item(item, OK)
        for item, reason in failed:
            self._finish_item(item, int(Status.UNKNOWN_MODEL), reason)
        while self._repredictions:
            token, reprediction = next(iter(self._repredictions.items()))
            if reprediction.item.feedback.deadline_ns > now_ns:
                break
            del self._repredictions[token]
            if reprediction.item.prediction:
                reprediction.item.prediction.pending_item = None
        self._acknowledgements.tick(now_ns)

    def wakeup_ns(self) -> int | None:
        return self._acknowledgements.next_ns()

    def check(self) -> None:
        self.predictions.check()

    def _process_item(
        self,
        now_ns: int,
        feedback: UnacknowledgedFeedback,
        index: int,
        active: ActiveApplication,
        observation: Observation,
    ) -> None:
        """Look up the prediction that the observation refers to, and join both."""
        logged = self.predictions.get(observation.prediction)
        if logged is None:
            if observation.query is None:
                self._acknowledgements.set_status(feedback, index, int(Status.MISSING_INPUT), NOT_KEPT)
                return
        elif logged.template.application != active.application.name:
            names = logged.template.application, active.application.name
            reason = f"prediction: got one of application {names[0]!r}, wanted one of {names[1]!r}"
            self._acknowledgements.set_status(feedback, index, int(Status.INVALID_INPUT), reason)
            return
        elif logged.has_feedback:
            self._acknowledgements.set_status(feedback, index, OK)
            return
        elif logged.pending_item is not None:
            self._add_duplicate(logged.pending_item, feedback, index)
            return
        if self._contexts.unsaved + len(self._repredictions) >= self.settings.unsaved:
            unavailable, limit = self._contexts.store_unavailable, self.settings.unsaved
            reason = "the state store is unavailable" if unavailable else f"{limit} observations wait to be saved"
            self._acknowledgements.set_status(feedback, index, int(Status.REFUSED), reason, TIMES.retry_ns)
            return
        self._join_predictions(now_ns, FeedbackItem(feedback, index, logged), active, observation)

    def _add_duplicate(self, item: FeedbackItem, feedback: UnacknowledgedFeedback, index: int) -> None:
        """Let an observation that was sent again share the status of the first one."""
        item.duplicates = [(other, place) for other, place in item.duplicates or () if other.missing > 0]
        if len(item.duplicates) < DUPLICATES:
            item.duplicates.append((feedback, index))
        else:
            reason = f"prediction: this feedback was sent {DUPLICATES} times already and waits to be saved"
            self._acknowledgements.set_status(feedback, index, int(Status.REFUSED), reason, TIMES.retry_ns)

    def _join_predictions(
        self, now_ns: int, item: FeedbackItem, active: ActiveApplication, observation: Observation
    ) -> None:
        """Join the item with cached predictions; predict missing ones again if the inputs were sent along."""
        logged, selection = item.prediction, None
        values: dict[str, tuple[float, ...]] = {}
        context = observation.context
        if logged is not None:
            context = context or logged.context
            values = self._cached_predictions(active, logged, observation.prediction)
            if models := tuple([model for model in logged.template.models if model in active.application.models]):
                selection = Selection(models, logged.probability)
        query = observation.query
        if query is None or (selection is not None and all(model in values for model in selection.models)):
            self._observe_losses(now_ns, item, active, context, selection, observation, values)
            return
        if logged is None and observation.prediction:
            name = active.application.name
            logged = item.prediction = self.predictions.add(observation.prediction, name, context, Selection(()), {})
        if logged is not None:
            logged.pending_item = item
        self._last_token = token = self._last_token + 1
        reprediction = Reprediction(token, item, active, query, context, selection, observation, values)
        self._repredictions[token] = reprediction
        self._unstarted.append(reprediction)

    def _cached_predictions(
        self, active: ActiveApplication, logged: LoggedPrediction, prediction: bytes
    ) -> dict[str, tuple[float, ...]]:
        """Return the models' predictions that are still cached and fit the application's task."""
        application, peek, input_hash = active.application, self._cache.peek, prediction[HEAD_BYTES:]
        values = {}
        for model, prefix, private in logged.template.key_parts:
            if (entry := peek(prefix + (prediction if private else input_hash))) is not None:
                try:
                    values[model] = cached_values(application, entry)
                except InvalidInput:
                    continue
        return values

    def _observe_losses(
        self,
        now_ns: int,
        item: FeedbackItem,
        active: ActiveApplication,
        context: str,
        selection: Selection | None,
        observation: Observation,
        values: Mapping[str, tuple[float, ...]],
    ) -> None:
        """Count the losses of all models, and pass those of the selected models to the policy."""
        try:
            losses = active.compute_losses(observation.truths, values)
        except InvalidInput as error:
            self._finish_item(item, int(error.status), error.reason)
            return
        except Exception as error:  # raised by the operator's own loss function
            self._finish_item(item, int(Status.FAILED), f"loss: {type(error).__name__}: {error}")
            return
        selected = {model: losses[model] for model in selection.models if model in losses} if selection else {}
        if selection is None or not selected:
            self._finish_item(item, int(Status.MISSING_INPUT), NOT_KEPT)
            return
        for model, loss in losses.items():
            active.count_loss(model, loss)
        if item.prediction is not None:
            item.prediction.pending_item = item
        name = observation_name(observation.prediction)
        self._contexts.observe(now_ns, active, context, selection, selected, item, name)

    def _finish_item(self, item: FeedbackItem, status: int, reason: str = "") -> None:
        logged = item.prediction
        if logged is not None:
            logged.pending_item = None
            logged.has_feedback = logged.has_feedback or status == OK
        self._acknowledgements.set_status(item.feedback, item.index, status, reason)
        for feedback, index in item.duplicates or ():
            self._acknowledgements.set_status(feedback, index, status, reason)
