"""Signatures of models, and the encoding of inputs to tensors by them. A signature that is not cached is requested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from horologe.core.input_arrays import convert_input, foreign_array
from horologe.core.pending_requests import Call
from horologe_common.clock import ms, s
from horologe_common.models import DTYPES, ModelSpec, TensorSpec
from horologe_common.status import HorologeError, InvalidInput, Lost, Refused, UnknownModel
from horologe_common.wire import ModelInfo, ModelState, Tensor
from horologe_common.wire.frames import encode_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from horologe.core.outbox import Outbox
    from horologe.core.pending_requests import PendingRequests

SIGNATURE_TIMEOUT_NS = s(1)
"""Timeout of a request for a signature, after which it is sent again."""
SIGNATURE_PAUSE_NS = ms(200)
"""Pause before it is sent again if the server does not know all models yet."""


class Signature:
    """The inputs of a model version by name. `only` is the name of the input if there is one."""

    __slots__ = ("inputs", "only", "slo_ns")

    def __init__(self, spec: ModelSpec) -> None:
        self.inputs: dict[str, tuple[TensorSpec, np.dtype[Any] | None]] = {
            tensor.name: (tensor, DTYPES.get(tensor.datatype)) for tensor in spec.inputs
        }
        self.only = spec.inputs[0].name if len(spec.inputs) == 1 else None
        self.slo_ns = spec.slo_ns


def choose_version(states: Sequence[ModelState], model: str, version: str) -> ModelSpec:
    """Return the spec of `version`, or of the highest version that is READY, else LOADING.

    Raises `UnknownModel` if there is none or it is UNAVAILABLE, `Refused` while its signature is not known.
    """
    return _served_spec(_find_version(states, model, version))


def _served_spec(state: ModelState) -> ModelSpec:
    if state.state == "UNAVAILABLE":
        raise UnknownModel(state.explain_state())
    if state.state == "LOADING" and not state.spec.has_signature:
        raise Refused(state.explain_state())
    return state.spec


def _find_version(states: Sequence[ModelState], model: str, version: str) -> ModelState:
    fitting = [state for state in states if state.spec.name == model and version in ("", state.spec.version)]
    if not fitting:
        versions = ", ".join(state.spec.version for state in states if state.spec.name == model)
        if not versions:
            raise UnknownModel(f"model: got {model!r}, which is not served")
        raise UnknownModel(f"model {model!r}: version: got {version!r}, wanted one of {versions}")
    return max(fitting, key=_rank)


def _rank(state: ModelState) -> tuple[int, int, str]:
    version = state.spec.version
    served = ("LOADING", "READY").index(state.state) if state.state in ("LOADING", "READY") else -1
    return served, int(version) if version.isdecimal() else -1, version


def encode_inputs(signature: Signature, inputs: Any) -> tuple[tuple[Tensor, ...], list[bytes]]:
    """Return headers and copies of the bytes of `inputs`: a mapping by tensor name, or the array of the only input.

    Raises `InvalidInput` for a value that cannot become a tensor. The server checks names, dtypes and shapes, because
    the cached signature may be that of an older version.
    """
    named: Iterable[tuple[Any, Any]]
    if isinstance(inputs, Mapping):
        named = inputs.items()
    elif signature.only is None:
        raise InvalidInput(f"inputs: got a single array, wanted a dict with {', '.join(signature.inputs)}")
    else:
        named = ((signature.only, inputs),)
    headers: list[Tensor] = []
    payloads: list[bytes] = []
    for name, value in named:
        header, payload = _tensor(signature, name, value)
        headers.append(header)
        payloads.append(payload)
    return tuple(headers), payloads


def _tensor(signature: Signature, name: Any, value: Any) -> tuple[Tensor, bytes]:
    spec, dtype = signature.inputs.get(name, (None, None))
    if spec is not None and type(value) is np.ndarray and value.dtype is dtype:  # 0.3 us instead of 2 us
        return Tensor(spec.name, spec.datatype, value.shape, value.nbytes), value.tobytes()
    if not isinstance(name, str):
        raise InvalidInput(f"inputs: names: got {name!r}, wanted strings")
    header, payload = encode_array(name, convert_input(f"input {name!r}", value, dtype))
    return header, bytes(payload)


Signatures = dict[tuple[str, str, str], Signature]
"""By (model, version, application). The version is empty if the caller gave none."""
Parked = list[tuple["Call", Any]]


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


class Encoder:
    """Encodes the inputs of requests by the signatures of their models, and puts them into the outbox.

    Requests are parked until the server has sent the signature. `ids`: ids for the encoder's own requests.
    """

    def __init__(self, signatures: Signatures, pending: PendingRequests, outbox: Outbox, ids: Iterator[int]) -> None:
        self.signatures = signatures
        self.incomplete = ""
        """Why the server may not know all models yet. Empty: it does."""
        self._parked: dict[tuple[str, str], Parked] = {}
        self._pending = pending
        self._outbox = outbox
        self._ids = ids
        self.now_ns = 0

    def remove_signature(self, call: Call) -> None:
        """Remove the signature of a request that the server has rejected, so that it is requested again."""
        self.signatures.pop(call.subject, None)

    def remove_model(self, model: str) -> None:
        """Remove the signatures of a model that was loaded or unloaded, which may have changed."""
        for subject in list(self.signatures):  # a copy: threads share the signatures
            if subject[0] == model:
                self.signatures.pop(subject, None)

    def open_request(self, call: Call, inputs: Any) -> None:
        """Encode and send a request, or park it until its signature has arrived. Raises `InvalidInput`, `Refused`."""
        signature = self.signatures.get(call.subject)
        if signature is not None:
            self._encode(call, inputs, signature)
            return
        copied = _copied(inputs)
        self._pending.add(call)
        if self._park(call, copied):
            self._request_signature(call)

    def park_encoded(self) -> None:
        """Park the encoded requests that are not sent yet: a new frontend may not know their models."""
        for call in self._outbox.pop_predictions():
            if call in self._pending and self._park(call, None):
                self._request_signature(call)

    def _encode(self, call: Call, inputs: Any, signature: Signature) -> None:
        try:
            call.inputs, call.buffers = encode_inputs(signature, inputs)
        except InvalidInput:
            self.remove_signature(call)
            raise
        self._pending.add(call, signature.slo_ns)
        self._pending.add_bytes(call, sum(map(len, call.buffers)))
        self._outbox.add(call)

    def _park(self, call: Call, inputs: Any) -> bool:
        """Park a request. Return True if it is the first for its signature."""
        model, _, application = call.subject
        parked = self._parked.setdefault((model, application), [])
        parked.append((call, inputs))
        return len(parked) == 1

    def _request_signature(self, parked: Call, pause_ns: int = 0) -> None:
        """Ask for the signature of a parked request.

        After a pause: the request for the signature is not sent, and ends as LOST when its timer expires.
        """
        model, _, application = parked.subject
        question = ModelInfo(next(self._ids), model, application)
        budget_ns = max(1, pause_ns - self._pending.grace_ns) if pause_ns else SIGNATURE_TIMEOUT_NS
        sink = SignatureSink(question, self._on_signatures)
        call = Call(question.id, sink, self.now_ns, budget_ns, question)
        self._pending.add(call)
        if not pause_ns:
            self._outbox.add(call)

    def _on_signatures(self, question: ModelInfo, states: Sequence[ModelState] | HorologeError) -> None:
        """Encode the parked requests. While the server may not know their model yet, park them again."""
        for call, inputs in self._parked.pop((question.model, question.application), []):
            if call not in self._pending:
                continue
            try:
                signature = self._add_signature(call, states)
            except (Lost, Refused) as error:
                is_refused = isinstance(error, Refused)
                call.refusal = error.reason if is_refused else call.refusal
                if self._park(call, inputs):
                    self._request_signature(call, SIGNATURE_PAUSE_NS if is_refused else 0)
            except HorologeError as error:
                self._pending.finish(call, error)
            else:
                self._encode_parked(call, inputs, signature)

    def _add_signature(self, call: Call, states: Sequence[ModelState] | HorologeError) -> Signature:
        """Return the signature for this request. Raises the error in place of the states, `UnknownModel`, `Refused`."""
        if isinstance(states, HorologeError):
            raise type(states)(states.reason)
        model, version, application = call.subject
        try:
            state = _find_version(states, model or application, version)
        except UnknownModel:
            if self.incomplete:
                raise Refused(f"not all models are known yet: {self.incomplete}") from None
            raise
        signature = self.signatures[call.subject] = Signature(_served_spec(state))
        return signature

    def _encode_parked(self, call: Call, inputs: Any, signature: Signature) -> None:
        if call.inputs:
            self._outbox.add(call)
            return
        try:
            self._encode(call, inputs, signature)
        except HorologeError as error:
            self._pending.finish(call, error)


def _copied(inputs: Any, name: Any = "") -> Any:
    if isinstance(inputs, Mapping):
        return {name: _copied(value, name) for name, value in inputs.items()}
    array = foreign_array(f"input {name!r}", inputs)
    return array.copy() if isinstance(array, np.ndarray) else array
