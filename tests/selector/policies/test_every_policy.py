"""Contract of every selection policy."""

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
every_policy = pytest.mark.parametrize("name", list(POLICIES))
some_models = st.lists(st.sampled_from(POOL), min_size=1, max_size=6, unique=True)
some_loss = st.sampled_from([0.0, 1.0]) | st.floats(0, 1)
some_rounds = st.lists(st.dictionaries(st.sampled_from(POOL), some_loss), max_size=30)
some_class = st.integers(0, 3).map(float)
some_number = st.floats(-1e9, 1e9)
few_examples = settings(max_examples=40, deadline=None)


def build_policy(name: str, models: Sequence[str], **chosen: Any) -> Policy:
    return make_policy(Application("digits", tuple(models), policy=name, settings=chosen))


def state_after(policy: Policy, rounds: Sequence[Mapping[str, float]], random_source: Random, state: Any = None) -> Any:
    """Return the state after the rounds. Each round's losses are observed for the selected models."""
    state = policy.init() if state is None else state
    for losses in rounds:
        selection = policy.select(state, random_source)
        selected = {model: loss for model, loss in losses.items() if model in selection.models}
        state = policy.observe(state, selection, selected)
    return state


def assert_sound(policy: Policy, state: Any, models: Sequence[str]) -> None:
    weights = policy.weights(state)
    assert list(weights) == list(models)
    assert all(0 <= weight <= 1 for weight in weights.values())
    assert math.isclose(sum(weights.values()), 1)


def shares_of(values: Sequence[float]) -> dict[float, float]:
    return {value: values.count(value) / len(values) for value in values}


@st.composite
def row_predictions(draw: st.DrawFn, selection: Selection) -> RowPredictions:
    """Draw predictions of at least one selected model, and fallbacks of the missing ones."""
    regression = draw(st.booleans())
    value = some_number if regression else some_class
    present = draw(st.sets(st.sampled_from(selection.models), min_size=1))
    averages = st.lists(value, max_size=1 if regression else 5).map(shares_of)
    fallbacks = {model: draw(averages) for model in selection.models if model not in present}
    predictions = {model: draw(value) for model in draw(st.permutations(sorted(present)))}
    return RowPredictions(predictions, fallbacks, regression)


@every_policy
@few_examples
@given(models=some_models, rounds=some_rounds, seed=st.integers(0, 99))
def test_weights_and_selections_contain_the_models(
    name: str, models: list[str], rounds: list[dict[str, float]], seed: int
) -> None:
    policy, random_source = build_policy(name, models), Random(seed)
    state = state_after(policy, rounds, random_source)
    assert_sound(policy, state, models)
    selection = policy.select(state, random_source)
    assert set(selection.models) <= set(models)
    assert len(set(selection.models)) == len(selection.models) >= 1
    assert 0 < selection.probability <= 1
    assert not policy.selects_one or len(selection.models) == 1


@every_policy
@few_examples
@given(data=st.data(), models=some_models, rounds=some_rounds)
def test_the_combined_value_is_among_the_votes_and_the_confidence_is_a_share(
    name: str, data: st.DataObject, models: list[str], rounds: list[dict[str, float]]
) -> None:
    policy = build_policy(name, models)
    state = state_after(policy, rounds, Random(1))
    selection = policy.select(state, Random(2))
    row = data.draw(row_predictions(selection))
    value, confidence = policy.combine(state, row)
    votes = {*row.predictions.values(), *(value for shares in row.fallbacks.values() for value in shares)}
    assert min(votes) <= value <= max(votes) if row.regression else value in votes
    assert 0 <= confidence <= len(row.predictions) / len(selection.models)
    reordered = RowPredictions(dict(reversed(list(row.predictions.items()))), row.fallbacks, row.regression)
    assert policy.combine(state, reordered) == (value, confidence)


@every_policy
def test_unanimous_predictions_have_confidence_1(name: str) -> None:
    policy = build_policy(name, POOL)
    state = policy.init()
    models = policy.select(state, Random(1)).models
    for regression in (False, True):
        assert policy.combine(state, RowPredictions(dict.fromkeys(models, 7.0), {}, regression)) == (7.0, 1.0)


@every_policy
@few_examples
@given(models=some_models, rounds=some_rounds)
def test_a_state_survives_message_pack(name: str, models: list[str], rounds: list[dict[str, float]]) -> None:
    policy = build_policy(name, models)
    state = state_after(policy, rounds, Random(1))
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=policy.state_type)
    assert read == state
    assert policy.init(read) == state, "init(previous) of an unchanged declaration returns an equal state"
    assert policy.select(read, Random(3)) == policy.select(state, Random(3))


@every_policy
@few_examples
@given(rounds=some_rounds, seed=st.integers(0, 99))
def test_equal_random_numbers_give_equal_states_and_states_are_not_mutated(
    name: str, rounds: list[dict[str, float]], seed: int
) -> None:
    policy = build_policy(name, POOL)
    state = policy.init()
    before = msgspec.msgpack.encode(state)
    assert state_after(policy, rounds, Random(seed), state) == state_after(policy, rounds, Random(seed), state)
    assert msgspec.msgpack.encode(state) == before


@every_policy
@few_examples
@given(old=some_models, new=some_models, rounds=some_rounds)
def test_a_new_declaration_keeps_what_is_known_about_its_models(
    name: str, old: list[str], new: list[str], rounds: list[dict[str, float]]
) -> None:
    before, policy = build_policy(name, old), build_policy(name, new)
    previous = state_after(before, rounds, Random(1))
    state = policy.init(previous)
    assert_sound(policy, state, new)
    assert_sound(policy, state_after(policy, rounds, Random(2), state), new)
    assert before.weights(before.init(previous)) == pytest.approx(dict(before.weights(previous)))


@every_policy
@pytest.mark.parametrize("other", POLICIES)
def test_a_state_of_another_policy_is_ignored(name: str, other: str) -> None:
    before, policy = build_policy(other, POOL), build_policy(name, POOL)
    previous = state_after(before, [dict.fromkeys(POOL, 1.0)] * 5, Random(1))
    assert_sound(policy, policy.init(previous), POOL)


@every_policy
@few_examples
@given(rounds=some_rounds)
def test_feedback_may_be_late_or_about_removed_models(name: str, rounds: list[dict[str, float]]) -> None:
    before, policy = build_policy(name, POOL), build_policy(name, POOL[:3])
    state = policy.init()
    old = before.init()
    for losses in rounds:
        selection = before.select(old, Random(1))
        state = policy.observe(
            state, selection, {model: losses[model] for model in losses if model in selection.models}
        )
    assert_sound(policy, state, POOL[:3])


@every_policy
@pytest.mark.parametrize("extreme", ["all wrong", "all right", "one right", "turning", "one absent"])
def test_twenty_thousand_extreme_observations_keep_the_policy_sound(name: str, extreme: str) -> None:
    models = POOL[:3]
    policy, random_source = build_policy(name, models), Random(1)
    state = policy.init()
    for at in range(20_000):
        selection = policy.select(state, random_source)
        wrong = {
            "all wrong": dict.fromkeys(models, 1.0),
            "all right": dict.fromkeys(models, 0.0),
            "one right": {models[0]: 0.0, models[1]: 1.0, models[2]: 1.0},
            "turning": {model: float((at // 2_000 + place) % 2) for place, model in enumerate(models)},
            "one absent": {models[0]: 1.0, models[1]: 0.0},
        }[extreme]
        state = policy.observe(state, selection, {model: wrong[model] for model in selection.models if model in wrong})
    assert_sound(policy, state, models)
    assert policy.combine(
        state, RowPredictions(dict.fromkeys(policy.select(state, random_source).models, 1.0), {})
    ) == (1, 1)


@every_policy
def test_an_unknown_setting_is_named(name: str) -> None:
    with pytest.raises(InvalidInput, match="speed"):
        build_policy(name, POOL, speed=1.0)


@every_policy
def test_task_any_needs_a_policy_that_selects_one_model(name: str) -> None:
    application = Application("text", POOL, task="any", policy=name)
    if build_policy(name, POOL).selects_one:
        assert make_policy(application).selects_one
    else:
        with pytest.raises(InvalidInput, match="task 'any'"):
            make_policy(application)
