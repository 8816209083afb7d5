"""Applications over HTTP: `/v1/applications/...`, beside the Open Inference Protocol and with its rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from horologe_common.applications import undeclared_application
from horologe_common.status import Status, error_for
from horologe_common.wire import ApplicationInfo, Declare, Feedback, Rollback, Withdraw
from horologe_frontend.http.exchange import json_response
from horologe_frontend.oip.application_json import (
    about,
    application_json,
    prediction_json,
    read_application,
    read_feedback,
)
from horologe_frontend.oip.binary_encoding import HEADER_LENGTH
from horologe_frontend.oip.inference import check_json_length, read_request, write_outputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.applications import Application
    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import Acknowledged, Answer, ApplicationState
    from horologe_frontend.gateway import Port
    from horologe_frontend.http.exchange import Request, Response
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
