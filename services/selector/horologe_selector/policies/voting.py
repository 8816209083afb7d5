"""One prediction of several: votes, means and medians, each with the share of models that agree (Clipper 5.2.1).

A missing model takes part with what it predicts on average (5.2.2), and agrees with nothing. Its weight is its own, but
those missing together count at most as much as those there: else, where one model has most of the weight, its most
frequent class would be the answer to everything that it misses. Models are gone through in the order they are declared
in, so that the order of their answers never matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_selector.policy import Guess

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_selector.policy import Ballot


def combine(weights: Mapping[str, float], ballot: Ballot, tolerance: float) -> Guess:
    """The weighted vote, or for regression the weighted mean. `weights`: of all models, in order; at least 0."""
    votes = gather(weights, ballot)
    if ballot.regression:
        total = sum(votes.values())
        value = sum([one * weight for one, weight in votes.items()]) / total
        return Guess(min(max(value, min(votes)), max(votes)), agreement(value, ballot, tolerance))
    value = max(votes, key=votes.__getitem__)
    return Guess(value, agreement(value, ballot, 0.0))


def gather(weights: Mapping[str, float], ballot: Ballot) -> dict[float, float]:
    """Weight by value, of the models there and of the averages of those missing; more than 0 in all.

    Where all models there weigh nothing, they weigh the same.
    """
    votes: dict[float, float] = {}
    there = 0.0
    for model, weight in weights.items():
        if model in ballot.predictions:
            value = ballot.predictions[model]
            votes[value] = votes.get(value, 0.0) + weight
            there += weight
    if there <= 0:
        return {ballot.predictions[model]: 1.0 for model in weights if model in ballot.predictions}
    missing = {model: weights[model] for model, shares in ballot.absent.items() if shares and weights.get(model)}
    if missing:
        scale = min(1.0, there / sum(missing.values()))
        for model in weights:
            if model in missing:
                for value, share in ballot.absent[model].items():
                    votes[value] = votes.get(value, 0.0) + scale * missing[model] * share
    return votes


def agreement(value: float, ballot: Ballot, tolerance: float) -> float:
    """Share of the models selected whose prediction is there and at most `tolerance` away from the value."""
    agreeing = 0
    for one in ballot.predictions.values():
        if one == value or abs(one - value) <= tolerance:
            agreeing += 1
    return agreeing / (len(ballot.predictions) + len(ballot.absent))
