"""What comes back: a Reply, or the exception that an answer stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.status import HorologeError, Late, ModelFailed, Status, error_for
from horologe_common.wire.frames import decode_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import Answer


class Reply(msgspec.Struct, frozen=True, eq=False):
    """The answer to one request. Arrays are the caller's own: writable, backed by nothing else."""

    outputs: dict[str, NDArray[Any]]
    """By tensor name; dimension 0 counts rows, as in the inputs."""
    value: Any
    """What `predict` returns: the sole output if a sole input was given as an array, else `outputs`."""
    model: str
    version: str
    """The version that answered."""
    queue_ns: int
    """Nanoseconds from arrival at the server to the start of the batch."""
    exec_ns: int
    """Nanoseconds the batch ran."""
    batch_size: int
    """The batch this request rode in; 0 if the cache answered."""
    cached: bool
    confidence: float = 0.0
    """Of an application, as all that follows: the share of the models asked that agree, the least of all rows. Each
    row's is `outputs["confidence"]`."""
    models: tuple[str, ...] = ()
    """That have answered."""
    missing: tuple[str, ...] = ()
    """Asked, and not there in time."""
    defaulted: bool = False
    """Whether any row is the declared default. Each row's is `outputs["defaulted"]`."""
    prediction_id: bytes = b""
    """What feedback names it by."""

    @property
    def prediction(self) -> Any:
        """An application's prediction for each row, whole numbers or float64; of task `any`, what `value` is."""
        return self.outputs.get("prediction", self.value)


def reply_of(answer: Answer, buffers: Sequence[Buffer], single: bool) -> Reply | HorologeError:
    """The Reply for an OK answer, else its exception (a `Late` one carries what came as `.reply`)."""
    if answer.status != Status.OK and not answer.outputs:
        return error_for(answer.status, answer.reason, answer.retry_after_ns)
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
    )
    if answer.status == Status.OK:
        return reply
    failure = error_for(answer.status, answer.reason, answer.retry_after_ns)
    if isinstance(failure, Late):
        failure.reply = reply
    return failure
