"""Weights that fall exponentially with losses, as Exp3 and Exp4 keep them: as logarithms, the largest being 0.

So nothing overflows, and what underflows weighs nothing.
"""

from __future__ import annotations

from math import exp, log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def carried(models: Sequence[str], known: Mapping[str, float] | None) -> dict[str, float]:
    """Logarithms for these models: as known; of those not known, the mean weight of the others."""
    kept = {model: known[model] for model in models if model in known} if known else {}
    if not kept:
        return dict.fromkeys(models, 0.0)
    top = max(kept.values())
    middle = log(sum([exp(one - top) for one in kept.values()]) / len(kept))
    return {model: kept[model] - top if model in kept else middle for model in models}


def shares(logs: Mapping[str, float], even: float = 0.0) -> dict[str, float]:
    """Weights that sum to 1; of which `even` is spread evenly over all."""
    top = max(logs.values())
    weights = {model: exp(one - top) for model, one in logs.items()}
    scale, floor = (1 - even) / sum(weights.values()), even / len(weights)
    return {model: weight * scale + floor for model, weight in weights.items()}


def lessened(logs: Mapping[str, float], keep: float, costs: Mapping[str, float]) -> dict[str, float]:
    """Logarithms times `keep`, less the cost of those models that have one; the largest becomes 0."""
    found = {model: keep * one - costs.get(model, 0.0) for model, one in logs.items()}
    top = max(found.values())
    return {model: one - top for model, one in found.items()}
