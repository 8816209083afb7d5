"""From a client's Predict to a request: its inputs staged, its model or application settled, its deadline a point in
time. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.applications import NAME_LIMIT, Application
from horologe_common.clock import NEVER_NS, ms
from horologe_common.models import ModelSpec
from horologe_common.status import InvalidInput, Refused, TooLarge
from horologe_common.wire import Predict, Query, Tensor
from horologe_frontend.core.declared_applications import RUNTIME

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.core.staging import StagedInputs
    from horologe_frontend.core.catalogue import Catalogue
    from horologe_frontend.core.declared_applications import Declared
    from horologe_frontend.core.default_lead import Lag
    from horologe_frontend.settings import FrontendSettings


class Request(msgspec.Struct):
    """An open request of a client. `selector` is where it was asked, `worker` where its inputs went.

    `application`: the one that is asked, None where it is a model; `spec` is its signature then.
    """

    id: int
    client: str
    client_id: int
    spec: ModelSpec
    arrival_ns: int
    deadline_ns: int
    query: Query
    outputs: tuple[str, ...]
    give_up_ns: int
    """When to answer without the selector: after the deadline, but a default before it."""
    application: Application | None = None
    selector: str = ""
    worker: str = ""


class Admission:
    """Numbers requests. `digest` hashes a request's bytes for the prediction cache."""

    def __init__(
        self,
        settings: FrontendSettings,
        catalogue: Catalogue,
        declared: Declared,
        staging: StagedInputs,
        lag: Lag,
        digest: Callable[[bytes, Sequence[Buffer]], bytes],
    ) -> None:
        self.settings = settings
        self.catalogue = catalogue
        self.declared = declared
        self.staging = staging
        self._lag = lag
        self._digest = digest
        self._last_id = 0

    def admit(self, now_ns: int, client: str, message: Predict, buffers: Sequence[Buffer]) -> Request:
        """A request, its inputs staged. Raises what the client did wrong, or `Refused`."""
        self.check_size(buffers)
        check_texts(application=message.application, context=message.context)
        application: Application | None = None
        if message.application and not message.model:
            application, spec = self.declared.find(message.application)
        else:
            spec = self.catalogue.find(message.model, message.version)
        # the client's deadline, else the model's or application's, else none: best effort
        budget_ns = min(max(0, message.budget_ns), NEVER_NS >> 1) or spec.slo_ns
        best_effort = budget_ns == 0
        budget_ns = budget_ns or self.settings.best_effort_ns
        rows, shape_key, length = self.catalogue.check_inputs(spec, message.inputs, message.outputs)
        digest = self.digest(message.inputs, buffers) if spec.cache or spec.runtime == RUNTIME else b""
        key = self._hold(message.inputs, buffers)
        query = Query(
            key,
            "" if application else spec.key,
            budget_ns,
            rows,
            digest,
            best_effort,
            shape_key,
            length,
            message.application,
            message.context,
        )
        deadline_ns = now_ns + budget_ns
        if application is None or application.default is None:
            give_up_ns = deadline_ns + self.settings.grace_ns
        else:
            give_up_ns = deadline_ns - min(self._lag.lead_ns(now_ns), budget_ns // 4)
        return Request(
            key, client, message.id, spec, now_ns, deadline_ns, query, message.outputs, give_up_ns, application
        )

    def stage(
        self,
        spec: ModelSpec,
        inputs: tuple[Tensor, ...],
        buffers: Sequence[Buffer],
        digest: bytes,
        budget_ns: int,
        context: str,
    ) -> Query:
        """A best-effort query of an application, that nobody waits for; its inputs are staged.

        Raises what is wrong with it, or `Refused`.
        """
        rows, shape_key, length = self.catalogue.check_inputs(spec, inputs)
        key = self._hold(inputs, buffers)
        return Query(key, "", budget_ns, rows, digest, True, shape_key, length, spec.name, context)

    def check_size(self, buffers: Sequence[Buffer]) -> None:
        """Raise `TooLarge` over what one message may bring."""
        size = sum(map(len, buffers))
        if size > self.settings.max_request_bytes:
            raise TooLarge(f"inputs: got {size} bytes, at most {self.settings.max_request_bytes}")

    def digest(self, inputs: tuple[Tensor, ...], buffers: Sequence[Buffer]) -> bytes:
        """The hash of inputs, under which what was predicted of them is joined or cached; in whichever order."""
        if len(inputs) > 1:
            pairs = sorted(zip(inputs, buffers, strict=True), key=lambda pair: pair[0].name)
            inputs, buffers = tuple(tensor for tensor, _ in pairs), [buffer for _, buffer in pairs]
        return self._digest(repr(inputs).encode(), buffers)

    def _hold(self, inputs: tuple[Tensor, ...], buffers: Sequence[Buffer]) -> int:
        """A new id with the inputs staged under it."""
        self._last_id += 1
        if not self.staging.hold(self._last_id, inputs, buffers):
            raise Refused("staging is full", retry_after_ns=ms(100))
        return self._last_id


def check_texts(**texts: str) -> None:
    """Raise `InvalidInput` for names too long, or with a NUL: what is learned is kept by them, and SQLite ends a text
    there."""
    for field, text in texts.items():
        if len(text) > NAME_LIMIT:
            raise InvalidInput(f"{field}: got {len(text)} characters, at most {NAME_LIMIT}")
        if "\0" in text:
            raise InvalidInput(f"{field}: got {text!r}, wanted no NUL in it")
