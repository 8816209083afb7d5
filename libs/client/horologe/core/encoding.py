"""Encoding of inputs to tensors by the signature of their model, which is requested first if it is not cached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe.core.call import Call
from horologe.core.signature import Signature, choose_signature, encode_inputs
from horologe_common.clock import s
from horologe_common.status import HorologeError, InvalidInput, Lost
from horologe_common.wire import ModelInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from horologe.core.outbox import Outbox
    from horologe.core.pending_requests import PendingRequests
    from horologe_common.wire import ModelState

Signatures = dict[tuple[str, str, str], Signature]
"""By (model, version, application). The version is empty if the caller gave none."""
Parked = list[tuple["Call", Any]]


class SignatureCache:
    """Signatures, and requests parked until the server has sent the signature of their model or application."""

    def __init__(self, signatures: Signatures) -> None:
        self.signatures = signatures
        self._parked: dict[tuple[str, str], Parked] = {}

    def park_request(self, call: Call, inputs: Any) -> bool:
        """Park a request and a copy of its arrays. Return True if it is the first for its signature."""
        model, _, application = call.subject
        parked = self._parked.setdefault((model, application), [])
        parked.append((call, _copied(inputs)))
        return len(parked) == 1

    def pop_parked(self, question: ModelInfo) -> Parked:
        """Remove and return the requests parked for the answer to this question."""
        return self._parked.pop((question.model, question.application), [])

    def add_signature(self, call: Call, states: Sequence[ModelState]) -> Signature:
        """Add and return the signature for this request. Raises `UnknownModel`."""
        model, version, application = call.subject
        signature = self.signatures[call.subject] = choose_signature(states, model or application, version)
        return signature

    def remove_signature(self, call: Call) -> None:
        """Remove the signature of a request that the server has rejected, so that it is requested again."""
        self.signatures.pop(call.subject, None)


class SignatureSink:
    """Sink of a request for a signature. `on_answer` gets the models or the error."""

    def __init__(
        self, question: ModelInfo, on_answer: Callable[[ModelInfo, Sequence[ModelState] | HorologeError], None]
    ) -> None:
        self.question = question
        self._on_answer = on_answer

    def done(self) -> bool:
        return False

    def set_result(self, result: Any, /) -> None:
        self._on_answer(self.question, result)

    def set_exception(self, exception: BaseException, /) -> None:
        self._on_answer(self.question, exception if isinstance(exception, HorologeError) else Lost(str(exception)))


SIGNATURE_TIMEOUT_NS = s(1)
"""Timeout of a request for a signature, after which it is sent again."""


class Encoder:
    """Encodes the inputs of requests and puts them into the outbox. `ids`: ids for its own requests."""

    def __init__(self, cache: SignatureCache, pending: PendingRequests, outbox: Outbox, ids: Iterator[int]) -> None:
        self._cache = cache
        self._pending = pending
        self._outbox = outbox
        self._ids = ids
        self.now_ns = 0

    def open_request(self, call: Call, inputs: Any) -> None:
        """Encode and send a request, or park it until its signature has arrived. Raises `InvalidInput`, `Refused`."""
        signature = self._cache.signatures.get(call.subject)
        if signature is not None:
            self._encode(call, inputs, signature)
            return
        self._pending.add(call)
        if self._cache.park_request(call, inputs):
            self._request_signature(ModelInfo(0, call.model, "" if call.model else call.application))

    def _encode(self, call: Call, inputs: Any, signature: Signature) -> None:
        try:
            call.inputs, call.buffers = encode_inputs(signature, inputs)
        except InvalidInput:
            self._cache.remove_signature(call)
            raise
        self._pending.add(call, signature.slo_ns)
        self._pending.add_bytes(call, sum(map(len, call.buffers)))
        self._outbox.add(call)

    def _request_signature(self, question: ModelInfo) -> None:
        call = Call(next(self._ids), SignatureSink(question, self._on_signatures), self.now_ns, SIGNATURE_TIMEOUT_NS)
        call.question = msgspec.structs.replace(question, id=call.id)
        self._pending.add(call)
        self._outbox.add(call)

    def _on_signatures(self, question: ModelInfo, states: Sequence[ModelState] | HorologeError) -> None:
        for call, inputs in self._cache.pop_parked(question):
            if call not in self._pending:
                continue
            if isinstance(states, Lost):
                if self._cache.park_request(call, inputs):
                    self._request_signature(question)
                continue
            try:
                if isinstance(states, HorologeError):
                    raise type(states)(states.reason)
                self._encode(call, inputs, self._cache.add_signature(call, states))
            except HorologeError as error:
                self._pending.finish(call, error)


def _copied(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return {name: _copied(value) for name, value in inputs.items()}
    return inputs.copy() if isinstance(inputs, np.ndarray) else inputs
