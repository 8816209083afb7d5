"""What the server tells those who ask for other things than predictions, and what that is to them."""

from __future__ import annotations

from typing import Any, TypeAlias

from horologe_common import wire
from horologe_common.status import Status, error_for

Told: TypeAlias = wire.Models | wire.Description | wire.Applications | wire.Acknowledged
ANSWERED_BY: dict[type[Told], tuple[type, ...]] = {
    wire.Models: (wire.ModelInfo, wire.Admit),
    wire.Description: (wire.Describe,),
    wire.Applications: (wire.Declare, wire.Withdraw, wire.Rollback, wire.ApplicationInfo),
    wire.Acknowledged: (wire.Feedback,),
}


def answers(message: Told, question: wire.AnyMessage | None) -> bool:
    """Whether it is of the kind that answers such a question."""
    return type(question) in ANSWERED_BY[type(message)]


def result_of(message: Told) -> Any:
    """The end of the question: its result, or an error."""
    if isinstance(message, wire.Description | wire.Acknowledged):
        return message
    if message.status != Status.OK:
        return error_for(message.status, message.reason)
    return message.models if isinstance(message, wire.Models) else message.applications
