"""Loss functions: the cost of a prediction given the truth, from 0 (right) to 1 (entirely wrong)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from horologe_common.status import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from horologe_common.applications import Application

Loss: TypeAlias = "Callable[[float, float], float]"
"""Function of (truth, value) that returns a loss in [0, 1]."""


def zero_one(truth: float, value: float) -> float:
    return 0.0 if value == truth else 1.0


def absolute(truth: float, value: float) -> float:
    """Return the distance in the unit of the predictions. `ClippedLoss` limits it to 1."""
    return abs(truth - value)


def relative(truth: float, value: float) -> float:
    """Return the distance divided by the larger magnitude, in any unit. `ClippedLoss` limits it to 1."""
    larger = max(abs(truth), abs(value))
    return abs(truth - value) / larger if larger else 0.0


class ClippedLoss:
    """Loss limited to [0, 1]; NaN becomes 1. It is a class because a snapshot cannot hold a closure."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss

    def __call__(self, truth: float, value: float) -> float:
        loss = self._loss(truth, value)
        return max(0.0, loss) if loss < 1 else 1.0


LOSSES: dict[str, Loss] = {"zero_one": zero_one, "absolute": absolute, "relative": relative}


def find_loss(application: Application, custom: Mapping[str, Loss]) -> Loss:
    """Return the loss that an application declares, from `LOSSES` or the operator's `custom` losses.

    Raises `InvalidInput` for an unknown name.
    """
    name = application.loss or ("absolute" if application.task == "regression" else "zero_one")
    loss = LOSSES.get(name) or custom.get(name)
    if loss is None:
        raise InvalidInput(f"loss: got {name!r}, wanted one of {', '.join((*LOSSES, *custom))}")
    return loss if loss is zero_one else ClippedLoss(loss)
