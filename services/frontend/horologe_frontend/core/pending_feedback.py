"""Feedback: checked, its inputs staged, forwarded to the selectors that learn from it, and acknowledged."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.clock import ms, s
from horologe_common.core.indexed_heap import IndexedHeap
from horologe_common.core.protocol import Out
from horologe_common.status import HorologeError, InvalidInput, Refused, Status
from horologe_common.wire import Acknowledged, Feedback, Observation
from horologe_frontend.core.requests import check_names
from horologe_frontend.core.retained_inputs import RETAIN_INPUTS_NS, RetainedInputs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe_common.applications import Application
    from horologe_common.core.protocol import Buffer
    from horologe_frontend.core.application_requests import DeclaredApplications
    from horologe_frontend.core.requests import RequestBuilder
    from horologe_frontend.core.selector_routing import SelectorRouter
    from horologe_frontend.settings import FrontendSettings

ITEMS_LIMIT = 64
TRUTHS_LIMIT = 8192
"""Maximum number of truths of all items together. 16 MB of JSON, which HTTP accepts, would exceed the message header
that a selector accepts."""
PREDICTION_LIMIT = 64
"""Maximum length of a prediction id, in bytes."""
FEEDBACK_NS = s(10)
"""Timeout until feedback is durable. Then it is answered LOST."""
RETRY_NS = ms(200)


class PendingFeedback(msgspec.Struct):
    """Feedback of a client: the status of each item, and the number of selectors that have not acknowledged yet."""

    client: str
    client_id: int
    statuses: list[int]
    reason: str = ""
    retry_after_ns: int = 0
    unacknowledged: int = 0

    def record_statuses(
        self, indices: Sequence[int], statuses: Sequence[int], reason: str, retry_after_ns: int
    ) -> None:
        for index, status in zip(indices, statuses, strict=False):
            self.statuses[index] = status
        self.reason = self.reason or reason
        self.retry_after_ns = max(self.retry_after_ns, retry_after_ns)


class ForwardedFeedback(msgspec.Struct, frozen=True):
    """The items of a feedback, by index, that were forwarded to one selector."""

    pending: PendingFeedback
    indices: tuple[int, ...]
    selector: str


class FeedbackForwarder:
    """Open feedback, with what was forwarded of it by an id of the frontend.

    Invariant: each feedback is answered once: by its selectors, or after `FEEDBACK_NS`.
    """

    def __init__(
        self,
        settings: FrontendSettings,
        declared: DeclaredApplications,
        selectors: SelectorRouter,
        builder: RequestBuilder,
        retained_inputs: RetainedInputs,
    ) -> None:
        self.timers: IndexedHeap[Any, int] = IndexedHeap()
        self._settings = settings
        self._declared = declared
        self._selectors = selectors
        self._builder = builder
        self._retained_inputs = retained_inputs
        self._forwarded: dict[int, ForwardedFeedback] = {}
        self.open = 0
        """Feedback without a reply."""
        self._last_id = 0

    def forward_feedback(self, now_ns: int, client: str, message: Feedback, buffers: Sequence[Buffer]) -> Iterator[Out]:
        """Forward each valid item to the selector that made the prediction, or that serves the context."""
        try:
            application = self._check_feedback(message, buffers)
        except HorologeError as error:
            failed = (int(error.status),) * len(message.items)
            yield Out(client, Acknowledged(message.id, failed, error.reason, error.retry_after_ns))
            return
        pending = PendingFeedback(client, message.id, [int(Status.OK)] * len(message.items))
        by_selector: dict[str, list[tuple[int, Observation]]] = {}
        for index, (item, item_buffers) in enumerate(
            zip(message.items, _split_buffers(message.items, buffers), strict=True)
        ):
            selector = self._selectors.route_prediction(application.name, item.prediction, item.context)
            try:
                prepared = self._prepare_item(now_ns, application, item, item_buffers, selector)
                by_selector.setdefault(selector, []).append((index, prepared))
            except HorologeError as error:
                pending.record_statuses((index,), (int(error.status),), error.reason, error.retry_after_ns)
        self.open += 1
        for selector, items in by_selector.items():
            yield self._forward_items(now_ns, pending, application.name, selector, items)
        if not pending.unacknowledged:
            yield self._acknowledge(pending)

    def _forward_items(
        self,
        now_ns: int,
        pending: PendingFeedback,
        application: str,
        selector: str,
        items: Sequence[tuple[int, Observation]],
    ) -> Out:
        self._last_id += 1
        pending.unacknowledged += 1
        self._forwarded[self._last_id] = ForwardedFeedback(pending, tuple(index for index, _ in items), selector)
        self.timers.push(self._last_id, now_ns + FEEDBACK_NS)
        return Out(selector, Feedback(self._last_id, application, tuple(item for _, item in items)))

    def finish_forwarded(self, message: Acknowledged) -> Iterator[Out]:
        """Record a selector's acknowledgement. The client gets its own when all selectors have acknowledged."""
        if message.id in self._forwarded:
            self.timers.remove(message.id)
            yield from self._finish_part(message.id, message.statuses, message.reason, message.retry_after_ns)

    def fail_expired(self, now_ns: int) -> Iterator[Out]:
        """Report LOST for the items that were not acknowledged in time."""
        for key in self.timers.pop_up_to(now_ns):
            yield from self._fail_part(key, "the selector did not acknowledge it in time")

    def fail_selector(self, selector: str) -> Iterator[Out]:
        """Report LOST for the items that a disconnected selector has not acknowledged."""
        for key in [key for key, part in self._forwarded.items() if part.selector == selector]:
            self.timers.remove(key)
            yield from self._fail_part(key, "the selector disconnected")

    def check(self) -> None:
        assert len(self.timers) == len(self._forwarded)
        assert len({id(part.pending) for part in self._forwarded.values()}) == self.open <= self._settings.max_pending

    def _fail_part(self, key: int, reason: str) -> Iterator[Out]:
        """Finish the items as LOST: the selector may or may not have learned from them."""
        return self._finish_part(key, (int(Status.LOST),) * len(self._forwarded[key].indices), reason, 0)

    def _finish_part(self, key: int, statuses: Sequence[int], reason: str, retry_after_ns: int) -> Iterator[Out]:
        part = self._forwarded.pop(key)
        part.pending.record_statuses(part.indices, statuses, reason, retry_after_ns)
        part.pending.unacknowledged -= 1
        if not part.pending.unacknowledged:
            yield self._acknowledge(part.pending)

    def _acknowledge(self, pending: PendingFeedback) -> Out:
        self.open -= 1
        statuses, reason = tuple(pending.statuses), pending.reason
        return Out(pending.client, Acknowledged(pending.client_id, statuses, reason, pending.retry_after_ns))

    def _check_feedback(self, message: Feedback, buffers: Sequence[Buffer]) -> Application:
        """Return the application. Raise `HorologeError` if the feedback as a whole is invalid or refused."""
        if not 0 < len(message.items) <= ITEMS_LIMIT:
            raise InvalidInput(f"items: got {len(message.items)}, wanted 1 to {ITEMS_LIMIT}")
        if (truths := sum([len(item.truths) for item in message.items])) > TRUTHS_LIMIT:
            raise InvalidInput(f"truths: got {truths} in all items together, at most {TRUTHS_LIMIT}")
        self._builder.check_size(buffers)
        if not self._declared.has_selectors():
            raise Refused("no selector is connected", RETRY_NS)
        if self.open >= self._settings.max_pending:
            raise Refused(f"{self._settings.max_pending} lists of feedback are open already", RETRY_NS)
        application = self._declared.find_application(message.application)
        if not self._declared.serving_selectors(application.name):
            raise Refused("no connected selector serves the application", RETRY_NS)
        return application

    def _prepare_item(
        self, now_ns: int, application: Application, item: Observation, buffers: Sequence[Buffer], selector: str
    ) -> Observation:
        """Return the item for the selector: its inputs, if any, are staged and replaced by a query."""
        check_observation(application, item)
        if not item.inputs:
            return msgspec.structs.replace(item, query=None)
        spec = self._declared.signature(application)
        rows, _, _ = self._builder.catalogue.check_inputs(spec, item.inputs, buffers)
        if rows != len(item.truths):
            raise InvalidInput(f"truths: got {len(item.truths)}, wanted {rows}, one for each row of the inputs")
        input_hash = self._builder.hash_inputs(item.inputs, buffers)
        if item.prediction and not item.prediction.endswith(input_hash):
            raise InvalidInput("prediction: got the id for other inputs, wanted that of these inputs, or none")
        query = self._builder.stage_query(spec, item.inputs, buffers, input_hash, FEEDBACK_NS, item.context)
        self._retained_inputs.retain(query.id, selector, now_ns + FEEDBACK_NS + RETAIN_INPUTS_NS)
        return Observation(item.truths, item.prediction, item.context, (), query)


def check_observation(application: Application, item: Observation) -> None:
    """Raise `InvalidInput` for an invalid item. The message names the field, the value received and that wanted."""
    check_names(context=item.context)
    if application.task == "any":
        raise InvalidInput("application: got one of task 'any', which takes no feedback")
    if not item.truths or not all(map(math.isfinite, item.truths)):
        raise InvalidInput(f"truths: got {list(item.truths)}, wanted a finite number for each row")
    if application.task == "classes" and any(truth % 1 for truth in item.truths):
        raise InvalidInput(f"truths: got {list(item.truths)}, wanted whole numbers for task 'classes'")
    if not item.prediction and not item.inputs:
        raise InvalidInput("item: got neither prediction nor inputs, wanted one of them")
    if len(item.prediction) > PREDICTION_LIMIT:
        raise InvalidInput(f"prediction: got {len(item.prediction)} bytes, at most {PREDICTION_LIMIT}")


def _split_buffers(items: Sequence[Observation], buffers: Sequence[Buffer]) -> Iterator[Sequence[Buffer]]:
    start = 0
    for item in items:
        yield buffers[start : start + len(item.inputs)]
        start += len(item.inputs)
