"""A selector's answer as the client gets it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.application_outputs import answer_tensors
from horologe_common.status import Status
from horologe_common.wire import Answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_frontend.core.requests import Request

UNANSWERED = frozenset(map(int, (Status.REFUSED, Status.LATE, Status.LOST, Status.FAILED)))
"""Where an application has a default, that is better."""


def addressed(answer: Answer, client_id: int) -> Answer:
    """The answer under the id that the client gave its request."""
    return Answer(
        client_id,
        answer.status,
        answer.outputs,
        answer.reason,
        answer.retry_after_ns,
        answer.model,
        answer.version,
        answer.queue_ns,
        answer.exec_ns,
        answer.batch_size,
        answer.cached,
        answer.confidence,
        answer.models,
        answer.missing,
        answer.defaulted,
        answer.prediction,
    )


def default_of(request: Request) -> tuple[Answer, Sequence[Buffer]] | None:
    """What its application has declared to be answered where nothing better is known; None if nothing is."""
    application, rows = request.application, request.query.rows
    if application is None or application.default is None:
        return None
    outputs, buffers = answer_tensors(application, [application.default] * rows, [0.0] * rows, [True] * rows)
    return Answer(request.id, int(Status.OK), outputs, defaulted=True), buffers


def or_default(request: Request, answer: Answer, buffers: Sequence[Buffer]) -> tuple[Answer, Sequence[Buffer]]:
    """The answer, or the default where that is better."""
    if answer.status in UNANSWERED and (default := default_of(request)):
        return msgspec.structs.replace(default[0], inputs_retained=answer.inputs_retained), default[1]
    return answer, buffers


def silent(request: Request, working: bool) -> Answer:
    """Nobody has answered. `working`: a worker has its inputs, and is there."""
    if working:
        return Answer(request.id, int(Status.LATE), (), "not finished by the deadline")
    return Answer(request.id, int(Status.LOST), (), "nothing heard of it by the deadline")


def only(answer: Answer, buffers: Sequence[Buffer], wanted: tuple[str, ...]) -> tuple[Answer, Sequence[Buffer]]:
    """The answer with the outputs asked for, in the order asked."""
    at = {tensor.name: index for index, tensor in enumerate(answer.outputs)}
    order = [at[name] for name in wanted if name in at]
    outputs = tuple(answer.outputs[index] for index in order)
    return msgspec.structs.replace(answer, outputs=outputs), [buffers[index] for index in order]
