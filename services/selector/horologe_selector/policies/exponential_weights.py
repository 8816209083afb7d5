"""Exponential weights for Exp3 and Exp4, as logarithms of which the largest is 0.

Logarithms do not overflow; a weight that underflows becomes 0.
"""

from __future__ import annotations

from math import exp, log
from typing import TYPE_CHECKING, Annotated

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LogWeight = Annotated[float, msgspec.Meta(ge=-1e30, le=0)]
"""Range that a stored log weight must have. The largest rates and memories of the policies reach -1e23."""


def carry_over_weights(models: Sequence[str], previous: Mapping[str, float] | None) -> dict[str, float]:
    """Return the log weights of `models`: previous ones where known, else the mean weight of those known."""
    kept = {model: previous[model] for model in models if model in previous} if previous else {}
    if not kept:
        return dict.fromkeys(models, 0.0)
    top = max(kept.values())
    mean = log(sum([exp(log_weight - top) for log_weight in kept.values()]) / len(kept))
    return {model: kept[model] - top if model in kept else mean for model in models}


def normalize_weights(log_weights: Mapping[str, float], uniform_share: float = 0.0) -> dict[str, float]:
    """Return weights that sum to 1; `uniform_share` of the sum is spread evenly over all models."""
    top = max(log_weights.values())
    weights = {model: exp(log_weight - top) for model, log_weight in log_weights.items()}
    scale, floor = (1 - uniform_share) / sum(weights.values()), uniform_share / len(weights)
    return {model: weight * scale + floor for model, weight in weights.items()}


def discount_weights(log_weights: Mapping[str, float], discount: float, costs: Mapping[str, float]) -> dict[str, float]:
    """Multiply the log weights by `discount`, subtract each model's cost, and shift so that the largest is 0."""
    reduced = {model: discount * weight - costs.get(model, 0.0) for model, weight in log_weights.items()}
    top = max(reduced.values())
    return {model: weight - top for model, weight in reduced.items()}
