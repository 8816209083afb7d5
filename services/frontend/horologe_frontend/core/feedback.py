"""What clients say turned out to be true: checked, its inputs staged, passed to the selector, acknowledged. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import ms
from horologe_common.core.protocol import Out
from horologe_common.core.timers import Timers
from horologe_common.status import HorologeError, InvalidInput, Refused, Status
from horologe_common.wire import Acknowledged, Feedback, Observation
from horologe_frontend.core.requests import check_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe_common.applications import Application
    from horologe_common.core.protocol import Buffer
    from horologe_frontend.core.applications import DeclaredApplications
    from horologe_frontend.core.requests import RequestBuilder
    from horologe_frontend.core.retained_inputs import RetainedInputs
    from horologe_frontend.core.selector_routing import SelectorRouter
    from horologe_frontend.settings import FrontendSettings

ITEMS_LIMIT = 64
TRUTHS_LIMIT = 8192
"""Of all items together: a door takes 16 MB of JSON, which as a header no selector would."""
PREDICTION_LIMIT = 64
"""Bytes of what an answer calls its prediction."""
RETRY_NS = ms(200)


class PendingFeedback(msgspec.Struct):
    """Feedback of a client: a status for each item, and how many selectors have not acknowledged theirs."""

    client: str
    client_id: int
    statuses: list[int]
    reason: str = ""
    retry_after_ns: int = 0
    unacknowledged: int = 0


class ForwardedFeedback(msgspec.Struct, frozen=True):
    """What one selector has of it: the items at these places."""

    pending: PendingFeedback
    indices: tuple[int, ...]
    selector: str


class FeedbackForwarder:
    """Open feedback, its parts by an id of ours. Each is answered once: by the selectors, or when its time is up."""

    def __init__(
        self,
        settings: FrontendSettings,
        declared: DeclaredApplications,
        selectors: SelectorRouter,
        admission: RequestBuilder,
        lingering: RetainedInputs,
    ) -> None:
        self.timers = Timers()
        self._settings = settings
        self._declared = declared
        self._selectors = selectors
        self._builder = admission
        self._retained_inputs = lingering
        self._split_buffers: dict[int, ForwardedFeedback] = {}
        self._open = 0
        self._last_id = 0

    def __len__(self) -> int:
        return self._open

    def forward_feedback(self, now_ns: int, client: str, message: Feedback, buffers: Sequence[Buffer]) -> Iterator[Out]:
        """Pass on the items that are as they must be, each to the selector that is to learn from it."""
        try:
            application = self._check(message, buffers)
        except HorologeError as error:
            failed = (int(error.status),) * len(message.items)
            yield Out(client, Acknowledged(message.id, failed, error.reason, error.retry_after_ns))
            return
        pending = PendingFeedback(client, message.id, [int(Status.OK)] * len(message.items))
        passed: dict[str, list[tuple[int, Observation]]] = {}
        for place, (item, parts) in enumerate(zip(message.items, _forwarded(message.items, buffers), strict=True)):
            selector = self._selectors.route_prediction(application.name, item.prediction, item.context)
            try:
                passed.setdefault(selector, []).append(
                    (place, self._prepare_item(now_ns, application, item, parts, selector))
                )
            except HorologeError as error:
                _record_statuses(pending, (place,), (int(error.status),), error.reason, error.retry_after_ns)
        self._open += 1
        for selector, items in passed.items():
            if items:
                yield self._forward(now_ns, pending, application.name, selector, items)
        if not pending.unacknowledged:
            yield self._answer(pending)

    def _forward(
        self,
        now_ns: int,
        pending: PendingFeedback,
        application: str,
        selector: str,
        items: Sequence[tuple[int, Observation]],
    ) -> Out:
        self._last_id += 1
        pending.unacknowledged += 1
        self._split_buffers[self._last_id] = ForwardedFeedback(pending, tuple(place for place, _ in items), selector)
        self.timers.arm(self._last_id, now_ns + self._settings.feedback_ns)
        return Out(selector, Feedback(self._last_id, application, tuple(item for _, item in items)))

    def finish_forwarded(self, message: Acknowledged) -> Iterator[Out]:
        """A selector's answer, for whoever gave the feedback."""
        if message.id in self._split_buffers:
            self.timers.cancel(message.id)
            yield from self._finish_part(message.id, message.statuses, message.reason, message.retry_after_ns)

    def fail_expired(self, now_ns: int) -> Iterator[Out]:
        for key in self.timers.pop_expired(now_ns):
            yield from self._fail(key, "the selector did not acknowledge it in time")

    def fail_selector(self, selector: str) -> Iterator[Out]:
        for key in [key for key, part in self._split_buffers.items() if part.selector == selector]:
            self.timers.cancel(key)
            yield from self._fail(key, "the selector went away")

    def check(self) -> None:
        assert len(self.timers) == len(self._split_buffers)
        assert (
            len({id(part.pending) for part in self._split_buffers.values()}) == self._open <= self._settings.max_pending
        )

    def _fail(self, key: int, reason: str) -> Iterator[Out]:
        """Whether it was learned from is not known."""
        return self._finish_part(key, (int(Status.LOST),) * len(self._split_buffers[key].indices), reason, 0)

    def _finish_part(self, key: int, statuses: Sequence[int], reason: str, retry_after_ns: int) -> Iterator[Out]:
        part = self._split_buffers.pop(key)
        _record_statuses(part.pending, part.indices, statuses, reason, retry_after_ns)
        part.pending.unacknowledged -= 1
        if not part.pending.unacknowledged:
            yield self._answer(part.pending)

    def _answer(self, pending: PendingFeedback) -> Out:
        self._open -= 1
        statuses, reason = tuple(pending.statuses), pending.reason
        return Out(pending.client, Acknowledged(pending.client_id, statuses, reason, pending.retry_after_ns))

    def _check(self, message: Feedback, buffers: Sequence[Buffer]) -> Application:
        if not 0 < len(message.items) <= ITEMS_LIMIT:
            raise InvalidInput(f"items: got {len(message.items)}, wanted 1 to {ITEMS_LIMIT}")
        if (truths := sum([len(item.truths) for item in message.items])) > TRUTHS_LIMIT:
            raise InvalidInput(f"truths: got {truths} in all, at most {TRUTHS_LIMIT}")
        self._builder.check_size(buffers)
        if not self._declared.has_selectors():
            raise Refused("the selector is away", RETRY_NS)
        if self._open >= self._settings.max_pending:
            raise Refused(f"{self._settings.max_pending} lists of feedback are open already", RETRY_NS)
        application = self._declared.find_application(message.application)
        if not self._declared.serving_selectors(application.name):
            raise Refused("the selector that served it is away", RETRY_NS)
        return application

    def _prepare_item(
        self, now_ns: int, application: Application, item: Observation, buffers: Sequence[Buffer], selector: str
    ) -> Observation:
        """The item as the selector takes it."""
        check_observation(application, item)
        if not item.inputs:
            return msgspec.structs.replace(item, query=None)
        settings, spec = self._settings, self._declared.signature(application)
        rows, _, _ = self._builder.catalogue.check_inputs(spec, item.inputs)
        if rows != len(item.truths):
            raise InvalidInput(f"truths: got {len(item.truths)}, wanted {rows}, one for each row of the inputs")
        digest = self._builder.hash_inputs(item.inputs, buffers)
        if item.prediction and not item.prediction.endswith(digest):
            raise InvalidInput("prediction: got that of other inputs than the given, wanted theirs, or one of the two")
        query = self._builder.stage_query(spec, item.inputs, buffers, digest, settings.feedback_ns, item.context)
        self._retained_inputs.retain(query.id, selector, now_ns + settings.feedback_ns + settings.retain_inputs_ns)
        return Observation(item.truths, item.prediction, item.context, (), query)


def check_observation(application: Application, item: Observation) -> None:
    """Raise `InvalidInput`, naming field, got and wanted."""
    check_names(context=item.context)
    if application.task == "any":
        raise InvalidInput("application: its task is 'any', whose outputs are held against no truth")
    if not item.truths or not all(map(math.isfinite, item.truths)):
        raise InvalidInput(f"truths: got {list(item.truths)}, wanted a finite number for each row")
    if application.task == "classes" and any(truth % 1 for truth in item.truths):
        raise InvalidInput(f"truths: got {list(item.truths)}, wanted whole numbers, the task being classes")
    if not item.prediction and not item.inputs:
        raise InvalidInput("item: got neither prediction nor inputs, wanted one of them")
    if len(item.prediction) > PREDICTION_LIMIT:
        raise InvalidInput(f"prediction: got {len(item.prediction)} bytes, at most {PREDICTION_LIMIT}")


def _record_statuses(
    pending: PendingFeedback, places: Sequence[int], statuses: Sequence[int], reason: str, retry_after_ns: int
) -> None:
    for place, status in zip(places, statuses, strict=False):
        pending.statuses[place] = status
    pending.reason = pending.reason or reason
    pending.retry_after_ns = max(pending.retry_after_ns, retry_after_ns)


def _forwarded(items: Sequence[Observation], buffers: Sequence[Buffer]) -> Iterator[Sequence[Buffer]]:
    """The buffers of each item."""
    at = 0
    for item in items:
        yield buffers[at : at + len(item.inputs)]
        at += len(item.inputs)
