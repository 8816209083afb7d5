"""What clients say turned out to be true: checked, its inputs staged, passed to the selector, acknowledged. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import ms
from horologe_common.core import Deadlines, Out
from horologe_common.status import HorologeError, InvalidInput, Refused, Status
from horologe_common.wire import Acknowledged, Feedback, Observation
from horologe_frontend.admission import check_texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe_common.applications import Application
    from horologe_common.core import Buffer
    from horologe_frontend.admission import Admission
    from horologe_frontend.applications import Declared
    from horologe_frontend.lingering import Lingering
    from horologe_frontend.settings import Settings

ITEMS_LIMIT = 64
TRUTHS_LIMIT = 8192
"""Of all items together: a door takes 16 MB of JSON, which as a header no selector would."""
PREDICTION_LIMIT = 64
"""Bytes of what an answer calls its prediction."""
RETRY_NS = ms(200)


class Pending(msgspec.Struct, frozen=True):
    """Feedback that the selector has not acknowledged: for each item a status, for those passed on their places."""

    client: str
    client_id: int
    statuses: tuple[int, ...]
    places: tuple[int, ...]
    reason: str
    selector: str


class Feedbacks:
    """Open feedback by an id of ours. Each is answered once: by the selector, or when its time is up."""

    def __init__(self, settings: Settings, declared: Declared, admission: Admission, lingering: Lingering) -> None:
        self.deadlines = Deadlines()
        self._settings = settings
        self._declared = declared
        self._admission = admission
        self._lingering = lingering
        self._pending: dict[int, Pending] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._pending)

    def take(
        self, now_ns: int, client: str, message: Feedback, buffers: Sequence[Buffer], selector: str
    ) -> Iterator[Out]:
        """Pass on the items that are as they must be."""
        try:
            application = self._check(message, buffers, selector)
        except HorologeError as error:
            failed = (int(error.status),) * len(message.items)
            yield Out(client, Acknowledged(message.id, failed, error.reason, error.retry_after_ns))
            return
        items: list[Observation] = []
        places: list[int] = []
        statuses, reason, retry_after_ns = [int(Status.OK)] * len(message.items), "", 0
        for place, (item, parts) in enumerate(zip(message.items, _parts(message.items, buffers), strict=True)):
            try:
                items.append(self._item(now_ns, application, item, parts, selector))
                places.append(place)
            except HorologeError as error:
                statuses[place], reason = int(error.status), reason or error.reason
                retry_after_ns = max(retry_after_ns, error.retry_after_ns)
        if not items:
            yield Out(client, Acknowledged(message.id, tuple(statuses), reason, retry_after_ns))
            return
        self._last_id += 1
        self._pending[self._last_id] = Pending(client, message.id, tuple(statuses), tuple(places), reason, selector)
        self.deadlines.arm(self._last_id, now_ns + self._settings.feedback_ns)
        yield Out(selector, Feedback(self._last_id, application.name, tuple(items)))

    def acknowledged(self, message: Acknowledged) -> Iterator[Out]:
        """The selector's answer, for whoever gave the feedback."""
        pending = self._pending.pop(message.id, None)
        if pending is None:
            return
        self.deadlines.cancel(message.id)
        statuses = list(pending.statuses)
        for place, status in zip(pending.places, message.statuses, strict=False):
            statuses[place] = status
        reason = pending.reason or message.reason
        yield Out(pending.client, Acknowledged(pending.client_id, tuple(statuses), reason, message.retry_after_ns))

    def expired(self, now_ns: int) -> Iterator[Out]:
        for key in self.deadlines.due(now_ns):
            yield self._lost(key, "the selector did not acknowledge it in time")

    def gone(self, selector: str) -> Iterator[Out]:
        for key in [key for key, pending in self._pending.items() if pending.selector == selector]:
            self.deadlines.cancel(key)
            yield self._lost(key, "the selector went away")

    def check(self) -> None:
        assert len(self.deadlines) == len(self._pending) <= self._settings.max_pending

    def _lost(self, key: int, reason: str) -> Out:
        """Whether it was learned from is not known."""
        pending = self._pending.pop(key)
        statuses = list(pending.statuses)
        for place in pending.places:
            statuses[place] = int(Status.LOST)
        return Out(pending.client, Acknowledged(pending.client_id, tuple(statuses), reason))

    def _check(self, message: Feedback, buffers: Sequence[Buffer], selector: str) -> Application:
        if not 0 < len(message.items) <= ITEMS_LIMIT:
            raise InvalidInput(f"items: got {len(message.items)}, wanted 1 to {ITEMS_LIMIT}")
        if (truths := sum([len(item.truths) for item in message.items])) > TRUTHS_LIMIT:
            raise InvalidInput(f"truths: got {truths} in all, at most {TRUTHS_LIMIT}")
        self._admission.check_size(buffers)
        if not selector:
            raise Refused("the selector is away", RETRY_NS)
        if len(self._pending) >= self._settings.max_pending:
            raise Refused(f"{self._settings.max_pending} lists of feedback are open already", RETRY_NS)
        return self._declared.application(message.application)

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
        query = self._admission.stage(spec, item.inputs, buffers, settings.feedback_ns, item.context)
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


def _parts(items: Sequence[Observation], buffers: Sequence[Buffer]) -> Iterator[Sequence[Buffer]]:
    """The buffers of each item."""
    at = 0
    for item in items:
        yield buffers[at : at + len(item.inputs)]
        at += len(item.inputs)
