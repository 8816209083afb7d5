"""Feedback: the caller's true values as messages, and the errors in their answers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from horologe.core.encoding import Signature, encode_inputs
from horologe.core.input_arrays import FLOAT64, convert_input
from horologe.core.pending_requests import check_texts
from horologe.core.reply import Reply
from horologe_common.applications import undeclared_application
from horologe_common.status import InvalidInput, Status, error_for
from horologe_common.wire import Acknowledged, ApplicationState, Feedback, Observation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from horologe_common.core.protocol import Buffer

ITEMS_LIMIT = 64
"""Items in one message."""


class FeedbackMessage(NamedTuple):
    """A Feedback, which `question` makes from its id, and the bytes of its inputs."""

    question: Callable[[int], Feedback]
    buffers: Sequence[Buffer]


def feedback_messages(
    application: str, predictions: Any, truths: Any, context: str, inputs: Any, signature: Signature | None
) -> Iterator[FeedbackMessage]:
    """Yield the messages of a call. `signature` is needed if there are inputs. Raises `InvalidInput`."""
    check_texts(application, context)
    items = _items(predictions, truths, inputs)
    for at in range(0, len(items), ITEMS_LIMIT):
        observations: list[Observation] = []
        buffers: list[bytes] = []
        for prediction, truth, given in items[at : at + ITEMS_LIMIT]:
            headers, payloads = encode_inputs(signature, given) if given is not None and signature else ((), [])
            observations.append(Observation(_truths(truth), _prediction_id(prediction), context, headers))
            buffers += payloads
        yield FeedbackMessage(partial(Feedback, application=application, items=tuple(observations)), buffers)


def raise_first_error(acknowledged: Acknowledged) -> None:
    """Raise the error of the first item that is not OK."""
    for place, status in enumerate(acknowledged.statuses):
        if status != Status.OK:
            which = f"item {place}: " if len(acknowledged.statuses) > 1 else ""
            raise error_for(status, f"{which}{acknowledged.reason}", acknowledged.retry_after_ns)


def find_application(states: Sequence[ApplicationState], name: str) -> ApplicationState:
    """Return the application of this name. Raises `UnknownModel`."""
    for state in states:
        if state.application.name == name:
            return state
    raise undeclared_application(name)


def _items(predictions: Any, truths: Any, inputs: Any) -> list[tuple[Any, Any, Any]]:
    if not isinstance(predictions, list) and not isinstance(inputs, list):
        return [(predictions, truths, inputs)]
    count = len(predictions if isinstance(predictions, list) else inputs)
    columns = [[None] * count if column is None else column for column in (predictions, truths, inputs)]
    if any(not hasattr(column, "__len__") or len(column) != count for column in columns):
        raise InvalidInput(f"feedback: got lists of different lengths, wanted {count} of each")
    return list(zip(*columns, strict=True))


def _truths(truth: Any) -> tuple[float, ...]:
    try:
        array = convert_input("truth", truth, FLOAT64)
        return tuple(array.astype(np.float64).reshape(-1).tolist())
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"truth: got {truth!r}, wanted a number for each row") from error


def _prediction_id(prediction: Any) -> bytes:
    if isinstance(prediction, Reply):
        prediction = prediction.prediction_id
    if prediction is None:
        return b""
    if not isinstance(prediction, bytes):
        raise InvalidInput(f"prediction: got {type(prediction).__name__}, wanted a Reply or its prediction_id")
    return prediction
