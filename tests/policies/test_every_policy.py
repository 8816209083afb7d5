"""What every selection policy must hold to."""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horologe_common.applications import Application
from horologe_common.status import InvalidInput
from horologe_selector.policies import POLICIES, make_policy
from horologe_selector.policy import RowPredictions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_selector.policy import Policy, Selection

POOL = ("cnn", "mlp/2", "forest", "linear/1", "noop", "slow")
everyone = pytest.mark.parametrize("name", list(POLICIES))
some_models = st.lists(st.sampled_from(POOL), min_size=1, max_size=6, unique=True)
some_loss = st.sampled_from([0.0, 1.0]) | st.floats(0, 1)
some_rounds = st.lists(st.dictionaries(st.sampled_from(POOL), some_loss), max_size=30)
some_class = st.integers(0, 3).map(float)
some_number = st.floats(-1e9, 1e9)
briefly = settings(max_examples=40, deadline=None)


def a_policy(name: str, models: Sequence[str], **chosen: Any) -> Policy:
    return make_policy(Application("digits", tuple(models), policy=name, settings=chosen))


def after(policy: Policy, rounds: Sequence[Mapping[str, float]], chance: Random, state: Any = None) -> Any:
    """The state after feedback on the models that were selected, as far as a round has it."""
    state = policy.init() if state is None else state
    for losses in rounds:
        selection = policy.select(state, chance)
        known = {model: loss for model, loss in losses.items() if model in selection.models}
        state = policy.observe(state, selection, known)
    return state


def assert_sound(policy: Policy, state: Any, models: Sequence[str]) -> None:
    weights = policy.weights(state)
    assert list(weights) == list(models)
    assert all(0 <= weight <= 1 for weight in weights.values())
    assert math.isclose(sum(weights.values()), 1)


def shares_of(values: Sequence[float]) -> dict[float, float]:
    return {value: values.count(value) / len(values) for value in values}


@st.composite
def ballots(draw: st.DrawFn, selection: Selection) -> RowPredictions:
    """What may have become of a selection: at least one prediction, and averages, if any, of those missing."""
    regression = draw(st.booleans())
    value = some_number if regression else some_class
    there = draw(st.sets(st.sampled_from(selection.models), min_size=1))
    known = st.lists(value, max_size=1 if regression else 5).map(shares_of)
    absent = {model: draw(known) for model in selection.models if model not in there}
    predictions = {model: draw(value) for model in draw(st.permutations(sorted(there)))}
    return RowPredictions(predictions, absent, regression)


@everyone
@briefly
@given(models=some_models, rounds=some_rounds, seed=st.integers(0, 99))
def test_weights_and_selections_are_of_the_models(
    name: str, models: list[str], rounds: list[dict[str, float]], seed: int
) -> None:
    policy, chance = a_policy(name, models), Random(seed)
    state = after(policy, rounds, chance)
    assert_sound(policy, state, models)
    selection = policy.select(state, chance)
    assert set(selection.models) <= set(models)
    assert len(set(selection.models)) == len(selection.models) >= 1
    assert 0 < selection.probability <= 1
    assert not policy.selects_one or len(selection.models) == 1


@everyone
@briefly
@given(data=st.data(), models=some_models, rounds=some_rounds)
def test_what_is_combined_lies_among_the_votes_and_its_confidence_is_a_share(
    name: str, data: st.DataObject, models: list[str], rounds: list[dict[str, float]]
) -> None:
    policy = a_policy(name, models)
    state = after(policy, rounds, Random(1))
    selection = policy.select(state, Random(2))
    ballot = data.draw(ballots(selection))
    value, confidence = policy.combine(state, ballot)
    votes = {*ballot.predictions.values(), *(one for shares in ballot.fallbacks.values() for one in shares)}
    assert min(votes) <= value <= max(votes) if ballot.regression else value in votes
    assert 0 <= confidence <= len(ballot.predictions) / len(selection.models)
    back = RowPredictions(dict(reversed(list(ballot.predictions.items()))), ballot.fallbacks, ballot.regression)
    assert policy.combine(state, back) == (value, confidence)


@everyone
def test_all_who_agree_are_right_with_confidence_1(name: str) -> None:
    policy = a_policy(name, POOL)
    state = policy.init()
    models = policy.select(state, Random(1)).models
    for regression in (False, True):
        assert policy.combine(state, RowPredictions(dict.fromkeys(models, 7.0), {}, regression)) == (7.0, 1.0)


@everyone
@briefly
@given(models=some_models, rounds=some_rounds)
def test_a_state_is_kept_as_message_pack(name: str, models: list[str], rounds: list[dict[str, float]]) -> None:
    policy = a_policy(name, models)
    state = after(policy, rounds, Random(1))
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=policy.state_type)
    assert read == state
    assert policy.init(read) == state, "a state is carried over whenever it is read"
    assert policy.select(read, Random(3)) == policy.select(state, Random(3))


@everyone
@briefly
@given(rounds=some_rounds, seed=st.integers(0, 99))
def test_the_same_chance_gives_the_same_and_states_given_are_not_changed(
    name: str, rounds: list[dict[str, float]], seed: int
) -> None:
    policy = a_policy(name, POOL)
    state = policy.init()
    before = msgspec.msgpack.encode(state)
    assert after(policy, rounds, Random(seed), state) == after(policy, rounds, Random(seed), state)
    assert msgspec.msgpack.encode(state) == before


@everyone
@briefly
@given(old=some_models, new=some_models, rounds=some_rounds)
def test_other_models_of_the_application_carry_on_with_what_is_known(
    name: str, old: list[str], new: list[str], rounds: list[dict[str, float]]
) -> None:
    before, policy = a_policy(name, old), a_policy(name, new)
    known = after(before, rounds, Random(1))
    state = policy.init(known)
    assert_sound(policy, state, new)
    assert_sound(policy, after(policy, rounds, Random(2), state), new)
    again = before.weights(before.init(known))
    assert again == pytest.approx(dict(before.weights(known)))


@everyone
@pytest.mark.parametrize("other", POLICIES)
def test_what_another_policy_has_learned_is_no_obstacle(name: str, other: str) -> None:
    before, policy = a_policy(other, POOL), a_policy(name, POOL)
    known = after(before, [dict.fromkeys(POOL, 1.0)] * 5, Random(1))
    assert_sound(policy, policy.init(known), POOL)


@everyone
@briefly
@given(rounds=some_rounds)
def test_feedback_may_be_late_or_of_models_that_are_gone(name: str, rounds: list[dict[str, float]]) -> None:
    before, policy = a_policy(name, POOL), a_policy(name, POOL[:3])
    state = policy.init()
    old = before.init()
    for losses in rounds:
        selection = before.select(old, Random(1))
        state = policy.observe(
            state, selection, {model: losses[model] for model in losses if model in selection.models}
        )
    assert_sound(policy, state, POOL[:3])


@everyone
@pytest.mark.parametrize("extreme", ["all wrong", "all right", "one right", "turning", "one absent"])
def test_a_hundred_thousand_extreme_observations_leave_it_sound(name: str, extreme: str) -> None:
    models = POOL[:3]
    policy, chance = a_policy(name, models), Random(1)
    state = policy.init()
    for at in range(100_000):
        selection = policy.select(state, chance)
        wrong = {
            "all wrong": dict.fromkeys(models, 1.0),
            "all right": dict.fromkeys(models, 0.0),
            "one right": {models[0]: 0.0, models[1]: 1.0, models[2]: 1.0},
            "turning": {model: float((at // 10_000 + place) % 2) for place, model in enumerate(models)},
            "one absent": {models[0]: 1.0, models[1]: 0.0},
        }[extreme]
        state = policy.observe(state, selection, {model: wrong[model] for model in selection.models if model in wrong})
    assert_sound(policy, state, models)
    assert policy.combine(state, RowPredictions(dict.fromkeys(policy.select(state, chance).models, 1.0), {})) == (1, 1)


@everyone
def test_an_unknown_setting_is_named(name: str) -> None:
    with pytest.raises(InvalidInput, match="speed"):
        a_policy(name, POOL, speed=1.0)


@everyone
def test_outputs_are_passed_on_only_by_policies_that_ask_one_model(name: str) -> None:
    application = Application("text", POOL, task="any", policy=name)
    if a_policy(name, POOL).selects_one:
        assert make_policy(application).selects_one
    else:
        with pytest.raises(InvalidInput, match="task 'any'"):
            make_policy(application)
