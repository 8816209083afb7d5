"""Applications over HTTP: `/v1/applications/...`, beside the Open Inference Protocol and with its rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import msgspec

from horologe_common.applications import BYTES_LIMIT, Application, check_application, undeclared_application
from horologe_common.status import InvalidInput, Status, TooLarge, error_for
from horologe_common.wire import ApplicationInfo, Declare, Feedback, Observation, Rollback, Withdraw
from horologe_frontend.core.feedback import ITEMS_LIMIT, TRUTHS_LIMIT
from horologe_frontend.http.responses import json_response
from horologe_frontend.oip.binary_encoding import HEADER_LENGTH, Blob
from horologe_frontend.oip.inference import check_json_length, read_inputs, read_request, write_outputs
from horologe_frontend.oip.json_encoding import LONG_BYTES, TensorJson, values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Acknowledged, Answer, ApplicationState
    from horologe_frontend.gateway import Port
    from horologe_frontend.http.request_reader import Request
    from horologe_frontend.http.responses import Response
    from horologe_frontend.http.settings import HttpSettings
    from horologe_frontend.oip.inference import Inference
    from horologe_frontend.oip.routes import Route


class ApplicationDoor:
    """Requests whose route begins with `application`. Raises what `Oip.handle` makes responses of."""

    def __init__(self, port: Port, settings: HttpSettings) -> None:
        self._port = port
        self._settings = settings

    async def answer(self, asked: Route, request: Request, body: bytes) -> Response:
        match asked.name:
            case "applications":
                states = await self._ask(ApplicationInfo(0))
                return json_response({"applications": [application_json(state) for state in states]})
            case "application_rollback":
                return _one(asked.model, await self._ask(Rollback(0, asked.model)))
            case "application_predict":
                return await self._predict(asked.model, request, body)
            case "application_feedback":
                return await self._feedback(asked.model, body)
        return await self._application(asked.model, request, body)

    async def _application(self, name: str, request: Request, body: bytes) -> Response:
        if request.method == "PUT":
            return _one(name, await self._ask(Declare(0, read_application(name, body))))
        if request.method == "DELETE":
            await self._ask(Withdraw(0, name))
            return json_response({})
        context = parse_qs(request.query).get("context", [""])[-1]
        return _one(name, await self._ask(ApplicationInfo(0, name, context)))

    async def _ask(self, question: Any) -> Sequence[ApplicationState]:
        answer = await self._port.ask(question)
        if answer.status != Status.OK:
            raise error_for(answer.status, answer.reason)
        states: Sequence[ApplicationState] = answer.applications
        return states

    async def _predict(self, name: str, request: Request, body: bytes) -> Response:
        application, spec = self._port.application(name)
        header_length = request.headers.get(HEADER_LENGTH)
        inference = read_request(spec, "", body, header_length, self._settings.json_limit_bytes)
        answer, buffers = await self._port.predict(inference.predict, inference.buffers)
        return _response(application, inference, answer, buffers)

    async def _feedback(self, name: str, body: bytes) -> Response:
        check_json_length(len(body), self._settings.json_limit_bytes)
        items, buffers = read_feedback(body, lambda: self._port.application(name)[1])
        told: Acknowledged = await self._port.ask(Feedback(0, name, items), buffers)
        if not any(status == Status.OK for status in told.statuses):
            first = next(iter(told.statuses), int(Status.INVALID_INPUT))
            raise error_for(first, told.reason, told.retry_after_ns)
        return json_response({"statuses": [Status(one).name for one in told.statuses], "reason": told.reason})


def _one(name: str, states: Sequence[ApplicationState]) -> Response:
    for state in states:
        if state.application.name == name:
            return json_response(application_json(state))
    raise undeclared_application(name)


def _response(application: Application, inference: Inference, answer: Answer, buffers: Sequence[Buffer]) -> Response:
    """Raises the error that an answer other than OK stands for."""
    if answer.status != Status.OK:
        raise error_for(answer.status, answer.reason, answer.retry_after_ns)
    if application.task != "any":
        return json_response(prediction_json(application.name, answer, buffers))
    rest = about(answer)
    return write_outputs(
        inference, answer, buffers, lambda outputs: {"application": application.name, "outputs": outputs, **rest}
    )


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
