"""From a client's Predict to a request: its inputs staged, its model settled, its deadline a point in time. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import NEVER_NS, ms
from horologe_common.models import ModelSpec
from horologe_common.status import InvalidInput, Refused, TooLarge
from horologe_common.wire import Predict, Query

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core import Buffer
    from horologe_common.staging import Staging
    from horologe_frontend.catalogue import Catalogue
    from horologe_frontend.settings import Settings

MAX_APPLICATION = 128
"""Characters of an application's name: what is learned is kept by it."""


class Request(msgspec.Struct):
    """An open request of a client. `selector` is where it was asked, `worker` where its inputs went."""

    id: int
    client: str
    client_id: int
    spec: ModelSpec
    arrival_ns: int
    deadline_ns: int
    query: Query
    outputs: tuple[str, ...]
    selector: str = ""
    worker: str = ""


class Admission:
    """Numbers requests. `digest` hashes a request's bytes for the prediction cache."""

    def __init__(
        self,
        settings: Settings,
        catalogue: Catalogue,
        staging: Staging,
        digest: Callable[[bytes, Sequence[Buffer]], bytes],
    ) -> None:
        self.settings = settings
        self.catalogue = catalogue
        self.staging = staging
        self._digest = digest
        self._last_id = 0

    def admit(self, now_ns: int, client: str, message: Predict, buffers: Sequence[Buffer]) -> Request:
        """A request, its inputs staged. Raises what the client did wrong, or `Refused`."""
        size = sum(map(len, buffers))
        if size > self.settings.max_request_bytes:
            raise TooLarge(f"inputs: got {size} bytes, at most {self.settings.max_request_bytes}")
        if len(message.application) > MAX_APPLICATION:
            raise InvalidInput(f"application: got {len(message.application)} characters, at most {MAX_APPLICATION}")
        spec = self.catalogue.find(message.model, message.version)
        rows, alike, length = self.catalogue.check_inputs(spec, message)
        self._last_id += 1
        if not self.staging.hold(self._last_id, message.inputs, buffers):
            raise Refused("staging is full", retry_after_ns=ms(100))
        # the client's deadline, else the model's, else none: best effort
        budget_ns = min(max(0, message.budget_ns), NEVER_NS >> 1) or spec.slo_ns
        best_effort = budget_ns == 0
        budget_ns = budget_ns or self.settings.best_effort_ns
        digest = self._digest(repr(message.inputs).encode(), buffers) if spec.cache else b""
        query = Query(
            self._last_id, spec.key, budget_ns, rows, digest, best_effort, alike, length, message.application
        )  # fmt: skip
        return Request(self._last_id, client, message.id, spec, now_ns, now_ns + budget_ns, query, message.outputs)
