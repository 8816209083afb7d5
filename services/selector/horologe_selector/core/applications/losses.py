"""What a prediction costs, given the truth: from 0, right, to 1, all wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from horologe_common.status import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from horologe_common.applications import Application

Loss: TypeAlias = "Callable[[float, float], float]"
"""`(truth, value) -> [0, 1]`."""


def zero_one(truth: float, value: float) -> float:
    return 0.0 if value == truth else 1.0


def absolute(truth: float, value: float) -> float:
    """The distance, in the unit of the predictions; 1 from a distance of 1 on."""
    return abs(truth - value)


def relative(truth: float, value: float) -> float:
    """The distance over the larger of the two, whatever the unit; 1 where their signs differ."""
    larger = max(abs(truth), abs(value))
    return abs(truth - value) / larger if larger else 0.0


class Clipped:
    """A loss brought into [0, 1]; what is not a number counts as 1. A class, so that it is part of a snapshot."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss

    def __call__(self, truth: float, value: float) -> float:
        found = self._loss(truth, value)
        return max(0.0, found) if found < 1 else 1.0


LOSSES: dict[str, Loss] = {"zero_one": zero_one, "absolute": absolute, "relative": relative}


def loss_of(application: Application, custom: Mapping[str, Loss]) -> Loss:
    """The loss an application declares: of LOSSES, or one that the operator has registered as `custom`.

    Raises `InvalidInput` for a name that is not known.
    """
    name = application.loss or ("absolute" if application.task == "regression" else "zero_one")
    loss = LOSSES.get(name) or custom.get(name)
    if loss is None:
        raise InvalidInput(f"loss: got {name!r}, wanted one of {', '.join((*LOSSES, *custom))}")
    return loss if loss is zero_one else Clipped(loss)
