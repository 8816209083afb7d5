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
from horologe_frontend.core.requests import check_texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe_common.applications import Application
    from horologe_common.core.protocol import Buffer
    from horologe_frontend.core.applications import Declared
    from horologe_frontend.core.requests import Admission
    from horologe_frontend.core.retained_inputs import Lingering
    from horologe_frontend.core.selector_routing import Selectors
    from horologe_frontend.settings import FrontendSettings

ITEMS_LIMIT = 64
TRUTHS_LIMIT = 8192
"""Of all items together: a door takes 16 MB of JSON, which as a header no selector would."""
PREDICTION_LIMIT = 64
"""Bytes of what an answer calls its prediction."""
RETRY_NS = ms(200)


class Pending(msgspec.Struct):
    """Feedback of a client: a status for each item, and how many selectors have not acknowledged theirs."""

    client: str
    client_id: int
    statuses: list[int]
    reason: str = ""
    retry_after_ns: int = 0
    parts: int = 0


class Part(msgspec.Struct, frozen=True):
    """What one selector has of it: the items at these places."""

    pending: Pending
    places: tuple[int, ...]
    selector: str


class Feedbacks:
    """Open feedback, its parts by an id of ours. Each is answered once: by the selectors, or when its time is up."""

    def __init__(
        self,
        settings: FrontendSettings,
        declared: Declared,
        selectors: Selectors,
        admission: Admission,
        lingering: Lingering,
    ) -> None:
        self.deadlines = Timers()
        self._settings = settings
        self._declared = declared
        self._selectors = selectors
        self._admission = admission
        self._lingering = lingering
        self._parts: dict[int, Part] = {}
        self._open = 0
        self._last_id = 0

    def __len__(self) -> int:
        return self._open

    def take(self, now_ns: int, client: str, message: Feedback, buffers: Sequence[Buffer]) -> Iterator[Out]:
        """Pass on the items that are as they must be, each to the selector that is to learn from it."""
        try:
            application = self._check(message, buffers)
        except HorologeError as error:
            failed = (int(error.status),) * len(message.items)
            yield Out(client, Acknowledged(message.id, failed, error.reason, error.retry_after_ns))
            return
        pending = Pending(client, message.id, [int(Status.OK)] * len(message.items))
        passed: dict[str, list[tuple[int, Observation]]] = {}
        for place, (item, parts) in enumerate(zip(message.items, _parts(message.items, buffers), strict=True)):
            selector = self._selectors.for_prediction(application.name, item.prediction, item.context)
            try:
                passed.setdefault(selector, []).append((place, self._item(now_ns, application, item, parts, selector)))
            except HorologeError as error:
                _note(pending, (place,), (int(error.status),), error.reason, error.retry_after_ns)
        self._open += 1
        for selector, items in passed.items():
            if items:
                yield self._pass_on(now_ns, pending, application.name, selector, items)
        if not pending.parts:
            yield self._answer(pending)

    def _pass_on(
        self, now_ns: int, pending: Pending, application: str, selector: str, items: Sequence[tuple[int, Observation]]
    ) -> Out:
        self._last_id += 1
        pending.parts += 1
        self._parts[self._last_id] = Part(pending, tuple(place for place, _ in items), selector)
        self.deadlines.arm(self._last_id, now_ns + self._settings.feedback_ns)
        return Out(selector, Feedback(self._last_id, application, tuple(item for _, item in items)))

    def acknowledged(self, message: Acknowledged) -> Iterator[Out]:
        """A selector's answer, for whoever gave the feedback."""
        if message.id in self._parts:
            self.deadlines.cancel(message.id)
            yield from self._settle(message.id, message.statuses, message.reason, message.retry_after_ns)

    def expired(self, now_ns: int) -> Iterator[Out]:
        for key in self.deadlines.pop_expired(now_ns):
            yield from self._lost(key, "the selector did not acknowledge it in time")

    def gone(self, selector: str) -> Iterator[Out]:
        for key in [key for key, part in self._parts.items() if part.selector == selector]:
            self.deadlines.cancel(key)
            yield from self._lost(key, "the selector went away")

    def check(self) -> None:
        assert len(self.deadlines) == len(self._parts)
        assert len({id(part.pending) for part in self._parts.values()}) == self._open <= self._settings.max_pending

    def _lost(self, key: int, reason: str) -> Iterator[Out]:
        """Whether it was learned from is not known."""
        return self._settle(key, (int(Status.LOST),) * len(self._parts[key].places), reason, 0)

    def _settle(self, key: int, statuses: Sequence[int], reason: str, retry_after_ns: int) -> Iterator[Out]:
        part = self._parts.pop(key)
        _note(part.pending, part.places, statuses, reason, retry_after_ns)
        part.pending.parts -= 1
        if not part.pending.parts:
            yield self._answer(part.pending)

    def _answer(self, pending: Pending) -> Out:
        self._open -= 1
        statuses, reason = tuple(pending.statuses), pending.reason
        return Out(pending.client, Acknowledged(pending.client_id, statuses, reason, pending.retry_after_ns))

    def _check(self, message: Feedback, buffers: Sequence[Buffer]) -> Application:
        if not 0 < len(message.items) <= ITEMS_LIMIT:
            raise InvalidInput(f"items: got {len(message.items)}, wanted 1 to {ITEMS_LIMIT}")
        if (truths := sum([len(item.truths) for item in message.items])) > TRUTHS_LIMIT:
            raise InvalidInput(f"truths: got {truths} in all, at most {TRUTHS_LIMIT}")
        self._admission.check_size(buffers)
        if not self._declared.announced():
            raise Refused("the selector is away", RETRY_NS)
        if self._open >= self._settings.max_pending:
            raise Refused(f"{self._settings.max_pending} lists of feedback are open already", RETRY_NS)
        application = self._declared.application(message.application)
        if not self._declared.announcers(application.name):
            raise Refused("the selector that served it is away", RETRY_NS)
        return application

    def _item(
        self, now_ns: int, application: Application, item: Observation, buffers: Sequence[Buffer], selector: str
    ) -> Observation:
        """The item as the selector takes it."""
        check_observation(application, item)
        if not item.inputs:
            return msgspec.structs.replace(item, query=None)
        settings, spec = self._settings, self._declared.signature(application)
        rows, _, _ = self._admission.catalogue.check_inputs(spec, item.inputs)
        if rows != len(item.truths):
            raise InvalidInput(f"truths: got {len(item.truths)}, wanted {rows}, one for each row of the inputs")
        digest = self._admission.digest(item.inputs, buffers)
        if item.prediction and not item.prediction.endswith(digest):
            raise InvalidInput("prediction: got that of other inputs than the given, wanted theirs, or one of the two")
        query = self._admission.stage(spec, item.inputs, buffers, digest, settings.feedback_ns, item.context)
        self._lingering.keep(query.id, selector, now_ns + settings.feedback_ns + settings.linger_ns)
        return Observation(item.truths, item.prediction, item.context, (), query)


def check_observation(application: Application, item: Observation) -> None:
    """Raise `InvalidInput`, naming field, got and wanted."""
    check_texts(context=item.context)
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


def _note(pending: Pending, places: Sequence[int], statuses: Sequence[int], reason: str, retry_after_ns: int) -> None:
    for place, status in zip(places, statuses, strict=False):
        pending.statuses[place] = status
    pending.reason = pending.reason or reason
    pending.retry_after_ns = max(pending.retry_after_ns, retry_after_ns)


def _parts(items: Sequence[Observation], buffers: Sequence[Buffer]) -> Iterator[Sequence[Buffer]]:
    """The buffers of each item."""
    at = 0
    for item in items:
        yield buffers[at : at + len(item.inputs)]
        at += len(item.inputs)
