"""Answers: a Reply or an exception for a prediction, the result of every other message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from horologe_common import wire
from horologe_common.status import HorologeError, Late, ModelFailed, Status, error_for
from horologe_common.wire.frames import decode_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from horologe_common.core.protocol import Buffer


AdminAnswer: TypeAlias = (
    wire.Models | wire.Description | wire.PipelineState | wire.Applications | wire.Acknowledged | wire.Tuning
)
ANSWERED_BY: dict[type[AdminAnswer], tuple[type, ...]] = {
    wire.Models: (wire.ModelInfo, wire.Admit),
    wire.Description: (wire.Describe,),
    wire.PipelineState: (wire.PipelineInfo,),
    wire.Tuning: (wire.Tune,),
    wire.Applications: (wire.Declare, wire.Withdraw, wire.Rollback, wire.ApplicationInfo),
    wire.Acknowledged: (wire.Feedback,),
}
"""The questions that each answer may belong to."""


class Reply(msgspec.Struct, frozen=True, eq=False):
    """The answer to a request. Its arrays are writable and share no memory."""

    outputs: dict[str, NDArray[Any]]
    """By tensor name; dimension 0 counts rows, as in the inputs."""
    value: Any
    """Return value of `predict`: the array of the only output if one array was passed, else `outputs`."""
    model: str
    version: str
    """The version that answered."""
    queue_ns: int
    """Queueing delay: nanoseconds from arrival at the server to the start of the batch."""
    exec_ns: int
    """Execution time of the batch in nanoseconds."""
    batch_size: int
    """Rows in the batch; 0 if the answer is from the cache."""
    cached: bool
    confidence: float = 0.0
    """For an application, as the fields below: share of the models that agree, in the row where it is lowest. Per row:
    `outputs["confidence"]`."""
    models: tuple[str, ...] = ()
    """Models whose predictions were used."""
    missing: tuple[str, ...] = ()
    """Models without a prediction in time."""
    defaulted: bool = False
    """True if a row holds the declared default. Per row: `outputs["defaulted"]`."""
    prediction_id: bytes = b""
    """Id of the prediction for feedback."""
    content_hashes: tuple[str, ...] = ()
    """With the option `content_hash`: hash of the files of the model that answered. For an application: of `models`."""
    request_id: int = 0
    """Number of the request at the server, for `horologe explain`."""

    @property
    def prediction(self) -> Any:
        """Prediction of an application for each row, INT64 or FP64; `value` for an application of task `any`."""
        return self.outputs.get("prediction", self.value)


def decode_answer(answer: wire.Answer, buffers: Sequence[Buffer], single: bool) -> Reply | HorologeError:
    """Return the Reply of an OK answer, else its exception. A `Late` has the late reply in `.reply`."""
    if answer.status != Status.OK and not answer.outputs:
        return _failure(answer)
    try:
        outputs = {
            tensor.name: decode_array(tensor, buffer).copy()
            for tensor, buffer in zip(answer.outputs, buffers, strict=True)
        }
    except HorologeError as error:
        return ModelFailed(f"the answer cannot be read: {error.reason}")
    value: Any = outputs
    if single and len(outputs) == 1:
        (value,) = outputs.values()
    reply = Reply(
        outputs,
        value,
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
        answer.content_hashes,
        answer.id,
    )
    if answer.status == Status.OK:
        return reply
    failure = _failure(answer)
    if isinstance(failure, Late):
        failure.reply = reply
    return failure


def _failure(answer: wire.Answer) -> HorologeError:
    error = error_for(answer.status, answer.reason, answer.retry_after_ns)
    error.request_id = answer.id
    return error


def admin_result(message: AdminAnswer) -> Any:
    """Return the result of a question, or an error."""
    if isinstance(message, wire.Description | wire.Acknowledged):
        return message
    if message.status != Status.OK:
        return error_for(message.status, message.reason)
    if isinstance(message, wire.PipelineState):
        return message
    if isinstance(message, wire.Tuning):
        return msgspec.json.decode(message.document)
    return message.models if isinstance(message, wire.Models) else message.applications
