"""Applications, predictions and feedback as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.applications import BYTES_LIMIT, Application, check_application
from horologe_common.status import InvalidInput, TooLarge
from horologe_common.wire import Observation
from horologe_frontend.core.feedback import ITEMS_LIMIT, TRUTHS_LIMIT
from horologe_frontend.oip.binary_encoding import Blob
from horologe_frontend.oip.inference import read_inputs
from horologe_frontend.oip.json_encoding import LONG_BYTES, TensorJson
from horologe_frontend.oip.output_forms import values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Answer, ApplicationState

CONFIDENCE_DIGITS = 6
"""As many as a float of 32 bits has."""


class ItemJson(msgspec.Struct, forbid_unknown_fields=True):
    """One item of feedback. `prediction_id` as the answer had it."""

    prediction_id: str = ""
    truths: list[float] = []
    context: str = ""
    inputs: list[TensorJson] = []


class FeedbackJson(ItemJson, forbid_unknown_fields=True):
    """`items`, or a single one without that."""

    items: list[ItemJson] | None = None


class Bulk(msgspec.Struct):
    """How much there is of what is read into many small things; all else is left as it is."""

    truths: msgspec.Raw = msgspec.Raw()
    items: list[msgspec.Raw] | None = None


TRUTHS_BYTES = 32 * TRUTHS_LIMIT
DECLARATION_BYTES = 8 * BYTES_LIMIT
_feedback = msgspec.json.Decoder(FeedbackJson)
_bulk = msgspec.json.Decoder(Bulk)


def read_application(name: str, body: bytes) -> Application:
    """The application of this name from the rest of its fields. Raises `InvalidInput` or `TooLarge`."""
    if len(body) > DECLARATION_BYTES:
        raise TooLarge(f"application: got {len(body)} bytes of JSON, at most {DECLARATION_BYTES}")
    try:
        fields = msgspec.json.decode(body or b"{}", type=dict[str, Any])
        if fields.get("name", name) != name:
            raise InvalidInput(f"name: got {fields['name']!r}, wanted {name!r} as in the path, or none")
        application = msgspec.convert(fields | {"name": name}, Application)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(f"application: {error}") from error
    check_application(application)
    return application


def application_json(state: ApplicationState) -> dict[str, Any]:
    """`statistics` only where it has any."""
    document: dict[str, Any] = {
        "application": _fields(state.application),
        "revision": state.revision,
        "contexts": state.contexts,
    }
    if state.statistics:
        document["statistics"] = [_fields(statistics) for statistics in state.statistics]
    return document


def _fields(struct: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def prediction_json(application: str, answer: Answer, buffers: Sequence[Buffer]) -> dict[str, Any]:
    """An answer, a value of each output for each row. The outputs of task `any` are not in it."""
    document: dict[str, Any] = {"application": application}
    for tensor, buffer in zip(answer.outputs, buffers, strict=True):
        values = values_of(tensor, buffer)
        if tensor.datatype == "FP32":
            values = [round(value, CONFIDENCE_DIGITS) for value in values]
        document[tensor.name] = values
    return document | about(answer)


def about(answer: Answer) -> dict[str, Any]:
    """What an application says beside its outputs."""
    return {
        "models": answer.models,
        "missing": answer.missing,
        "cached": answer.cached,
        "prediction_id": answer.prediction.hex(),
    }


def read_feedback(body: bytes, signature: Callable[[], ModelSpec]) -> tuple[tuple[Observation, ...], list[Buffer]]:
    """The items, and the bytes of their inputs one after another. `signature`: of the application.

    Raises `InvalidInput` or `TooLarge`, and what `signature` does.
    """
    try:
        if len(body) > LONG_BYTES:
            _check_bulk(body)
        feedback = _feedback.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(f"body: {error}") from error
    observations, buffers = [], []
    for place, item in enumerate([feedback] if feedback.items is None else feedback.items):
        tensors, parts = read_inputs(item.inputs, Blob(memoryview(b"")), signature()) if item.inputs else ([], [])
        prediction = _prediction(place, item.prediction_id)
        observations.append(Observation(tuple(item.truths), prediction, item.context, tuple(tensors)))
        buffers += parts
    return tuple(observations), buffers


def _check_bulk(body: bytes) -> None:
    """5,000,000 items in 16 MB took 12 s to read, and nobody else was answered meanwhile."""
    bulk = _bulk.decode(body)
    if bulk.items is not None and len(bulk.items) > ITEMS_LIMIT:
        raise InvalidInput(f"items: got {len(bulk.items)}, wanted 1 to {ITEMS_LIMIT}")
    for item in [bulk, *map(_bulk.decode, bulk.items or ())]:
        if (size := len(memoryview(item.truths))) > TRUTHS_BYTES:
            raise TooLarge(f"truths: got {size} bytes of JSON, at most {TRUTHS_BYTES}")


def _prediction(place: int, text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise InvalidInput(f"item {place}: prediction_id: got {text[:80]!r}, wanted that of an answer") from error
