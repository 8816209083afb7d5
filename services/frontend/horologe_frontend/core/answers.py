"""Answers to clients in place of that of the selector: it has failed, is late, or has outputs that are not wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.application_answers import answer_tensors
from horologe_common.status import Status
from horologe_common.wire import Answer

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_frontend.core.requests import ClientRequest

FAILURES = frozenset(map(int, (Status.REFUSED, Status.LATE, Status.LOST, Status.FAILED)))
"""If an application has a default, the client gets it instead of these statuses."""
NOT_CONNECTED = ", because no selector or no controller was connected"


def default_answer(request: ClientRequest) -> tuple[Answer, Sequence[Buffer]] | None:
    """Return the answer with the declared default of the application, or None if it has no default."""
    application, rows = request.application, request.query.rows
    if application is None or application.default is None:
        return None
    outputs, buffers = answer_tensors(application, [application.default] * rows, [0.0] * rows, [True] * rows)
    return Answer(request.id, int(Status.OK), outputs, defaulted=True), buffers


def answer_failure(
    request: ClientRequest, answer: Answer, buffers: Sequence[Buffer]
) -> tuple[Answer, Sequence[Buffer]]:
    """Return the answer to a request that has failed: the default if there is one, LOST if it may have run."""
    if default := default_answer(request):
        return msgspec.structs.replace(default[0], inputs_retained=answer.inputs_retained), default[1]
    if answer.status == Status.REFUSED and request.may_have_run:
        reason = f"its selector failed, and it was not run again: {answer.reason}"
        answer = msgspec.structs.replace(answer, status=int(Status.LOST), reason=reason)
    return answer, buffers


def timeout_answer(request: ClientRequest, workers: Container[str], services_connected: bool) -> Answer:
    """Return the answer to a request that was not answered in time.

    REFUSED: no worker was ever given its inputs, so none of its work was done. LATE: what has its inputs is connected.
    LOST: the process that had them died. An application's request may have been given to several workers.
    """
    if request.worker in workers or (not request.worker and services_connected and not request.query.model):
        return Answer(request.id, int(Status.LATE), (), "not finished by the deadline")
    if not request.worker and not request.may_have_run and request.query.model:
        reason = "not started by the deadline" + ("" if services_connected else NOT_CONNECTED)
        return Answer(request.id, int(Status.REFUSED), (), reason)
    return Answer(request.id, int(Status.LOST), (), "no answer by the deadline")


def select_outputs(
    answer: Answer, buffers: Sequence[Buffer], names: tuple[str, ...]
) -> tuple[Answer, Sequence[Buffer]]:
    """Return the answer with the requested outputs only, in the requested order."""
    positions = {tensor.name: index for index, tensor in enumerate(answer.outputs)}
    order = [positions[name] for name in names if name in positions]
    outputs = tuple(answer.outputs[index] for index in order)
    return msgspec.structs.replace(answer, outputs=outputs), [buffers[index] for index in order]
