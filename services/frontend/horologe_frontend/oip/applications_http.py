"""Applications over HTTP: `/v1/applications/...`, with the keys, limits and errors of the Open Inference Protocol."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import msgspec

from horologe_common.applications import BYTES_LIMIT, Application, check_application, undeclared_application
from horologe_common.status import STATUS_NAMES, InvalidInput, Status, TooLarge, error_for
from horologe_common.wire import ApplicationInfo, Declare, Feedback, Observation, Rollback, Withdraw
from horologe_frontend.core.pending_feedback import ITEMS_LIMIT, TRUTHS_LIMIT
from horologe_frontend.http.http_messages import json_response
from horologe_frontend.http.steps import run_in_turns
from horologe_frontend.oip.applications_json import (
    ApplicationJson,
    ApplicationsJson,
    DeclarationJson,
    FeedbackJson,
    FeedbackStatusJson,
    PredictionJson,
    StandingJson,
)
from horologe_frontend.oip.binary_encoding import HEADER_LENGTH
from horologe_frontend.oip.inference import check_json_length, read_in_steps, read_inputs
from horologe_frontend.oip.inference_response import make_template, tensor_values
from horologe_frontend.oip.json_encoding import LONG_BYTES
from horologe_frontend.oip.predicts import complete_predict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Acknowledged, Answer, ApplicationState
    from horologe_frontend.gateway import Gateway
    from horologe_frontend.http.client_accounts import HeldBytes
    from horologe_frontend.http.http_messages import HttpRequest, HttpResponse
    from horologe_frontend.http.settings import HttpSettings
    from horologe_frontend.http.steps import Steps
    from horologe_frontend.oip.inference_response import OutputTensorJson, ResponseFormat
    from horologe_frontend.oip.routes import HttpRoute

CONFIDENCE_DIGITS = 6
"""Significant digits of a 32-bit float."""
TRUTHS_BYTES = 32 * TRUTHS_LIMIT
DECLARATION_BYTES = 8 * BYTES_LIMIT


class FeedbackSizes(msgspec.Struct):
    """The lists of a feedback whose lengths are checked before they are decoded."""

    truths: msgspec.Raw = msgspec.Raw()
    items: list[msgspec.Raw] | None = None


_feedback_decoder = msgspec.json.Decoder(FeedbackJson)
_sizes_decoder = msgspec.json.Decoder(FeedbackSizes)


class ApplicationsHandler:
    """Handle the routes whose name begins with `application`. Errors are raised, and `OipHandler` answers them."""

    def __init__(self, gateway: Gateway, settings: HttpSettings, client_of: Callable[[HttpRequest], str]) -> None:
        self._gateway = gateway
        self._settings = settings
        self._client_of = client_of

    async def handle_route(self, route: HttpRoute, request: HttpRequest, body: bytes, held: HeldBytes) -> HttpResponse:
        """Return the response. Raise `HorologeError` if the operation fails. `held` counts the memory that it takes."""
        name = route.model
        match route.operation.name:
            case "applications":
                states = await self._call(ApplicationInfo(0))
                return json_response(ApplicationsJson([application_json(state) for state in states]))
            case "application_declare":
                return _describe(name, await self._call(Declare(0, read_application(name, body))))
            case "application_withdraw":
                await self._call(Withdraw(0, name))
                return json_response({})
            case "application_rollback":
                return _describe(name, await self._call(Rollback(0, name)))
            case "application_predict":
                return await self._predict(name, request, body, held)
            case "application_feedback":
                return await self._feedback(name, body, held)
        context = parse_qs(request.query).get("context", [""])[-1]
        return _describe(name, await self._call(ApplicationInfo(0, name, context)))

    async def _call(self, message: Any) -> Sequence[ApplicationState]:
        reply = await self._gateway.call(message)
        if reply.status != Status.OK:
            raise error_for(reply.status, reply.reason)
        states: Sequence[ApplicationState] = reply.applications
        return states

    async def _predict(self, name: str, request: HttpRequest, body: bytes, held: HeldBytes) -> HttpResponse:
        application, spec = self._gateway.core.declared.find_with_signature(name)
        header_length = request.headers.get(HEADER_LENGTH)
        steps = read_in_steps(spec, "", body, header_length, self._settings.json_limit_bytes)
        inference = await run_in_turns(steps, held)
        predict = complete_predict(inference.predict, request, self._gateway.is_traced)
        answer, buffers = await self._gateway.predict(predict, inference.buffers, self._client_of(request))
        return await run_in_turns(_write_prediction(application, inference.form, answer, buffers), held)

    async def _feedback(self, name: str, body: bytes, held: HeldBytes) -> HttpResponse:
        check_json_length(len(body), self._settings.json_limit_bytes)
        steps = read_feedback(body, lambda: self._gateway.core.declared.find_with_signature(name)[1])
        items, buffers = await run_in_turns(steps, held)
        reply: Acknowledged = await self._gateway.call(Feedback(0, name, items), buffers)
        if not any(status == Status.OK for status in reply.statuses):
            first = next(iter(reply.statuses), int(Status.INVALID_INPUT))
            raise error_for(first, reply.reason, reply.retry_after_ns)
        return json_response(FeedbackStatusJson([STATUS_NAMES[status] for status in reply.statuses], reply.reason))


def _describe(name: str, states: Sequence[ApplicationState]) -> HttpResponse:
    for state in states:
        if state.application.name == name:
            return json_response(application_json(state))
    raise undeclared_application(name)


def _write_prediction(
    application: Application, form: ResponseFormat, answer: Answer, buffers: Sequence[Buffer]
) -> Steps[HttpResponse]:
    if answer.status != Status.OK:
        raise error_for(answer.status, answer.reason, answer.retry_after_ns)
    if application.task == "any":
        document_of = partial(prediction_json, application.name, form, answer)
        template, buffers = yield from make_template(form, answer.outputs, buffers, document_of)
        return (yield from template.fill_in_steps(buffers))
    document = prediction_json(application.name, form, answer)
    for tensor, buffer in zip(answer.outputs, buffers, strict=True):
        values = tensor_values(tensor, buffer)
        if tensor.datatype == "FP32":
            values = [round(value, CONFIDENCE_DIGITS) for value in values]
        setattr(document, tensor.name, values)
    return json_response(document)


def read_application(name: str, body: bytes) -> Application:
    """Return the application `name`, whose other fields are in the body. Raise `InvalidInput` or `TooLarge`."""
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


def application_json(state: ApplicationState) -> ApplicationJson:
    """Return the declaration and the state of an application. `statistics` is omitted where it is empty."""
    return ApplicationJson(
        DeclarationJson(**msgspec.structs.asdict(state.application)),
        state.revision,
        state.contexts,
        [StandingJson(**msgspec.structs.asdict(statistics)) for statistics in state.statistics],
    )


def prediction_json(
    application: str, form: ResponseFormat, answer: Answer, outputs: list[OutputTensorJson] | None = None
) -> PredictionJson:
    """Return an answer without the values of its outputs, or with the `outputs` of a model."""
    return PredictionJson(
        application=application,
        outputs=outputs,
        models=answer.models,
        missing=answer.missing,
        cached=answer.cached,
        prediction_id=answer.prediction.hex(),
        ignored_parameters=",".join(form.ignored),
    )


def read_feedback(
    body: bytes, signature: Callable[[], ModelSpec]
) -> Steps[tuple[tuple[Observation, ...], list[Buffer]]]:
    """Return the items and the bytes of their inputs. Raise `InvalidInput`, `TooLarge`, or as `signature` does."""
    try:
        if len(body) > LONG_BYTES:
            _check_sizes(body)
        feedback = _feedback_decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(f"body: {error}") from error
    observations: list[Observation] = []
    buffers: list[Buffer] = []
    for index, item in enumerate([feedback] if feedback.items is None else feedback.items):
        tensors, item_buffers = (yield from read_inputs(item.inputs, signature())) if item.inputs else ([], [])
        prediction = _prediction_bytes(index, item.prediction_id)
        observations.append(Observation(tuple(item.truths), prediction, item.context, tuple(tensors)))
        buffers += item_buffers
    return tuple(observations), buffers


def _check_sizes(body: bytes) -> None:
    """Refuse too many items or truths before they are decoded: 5,000,000 items in 16 MB blocked the loop for 12 s."""
    sizes = _sizes_decoder.decode(body)
    if sizes.items is not None and len(sizes.items) > ITEMS_LIMIT:
        raise InvalidInput(f"items: got {len(sizes.items)}, wanted 1 to {ITEMS_LIMIT}")
    for item in [sizes, *map(_sizes_decoder.decode, sizes.items or ())]:
        if (size := len(memoryview(item.truths))) > TRUTHS_BYTES:
            raise TooLarge(f"truths: got {size} bytes of JSON, at most {TRUTHS_BYTES}")


def _prediction_bytes(index: int, text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise InvalidInput(f"item {index}: prediction_id: got {text[:80]!r}, wanted that of an answer") from error
