"""Behaviour of each selection policy: which model it prefers, how it combines, how it adapts."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from horologe_common.applications import Application
from horologe_common.status import InvalidInput
from horologe_selector.policies import make_policy
from horologe_selector.policy import RowPredictions, Selection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_selector.policy import Policy

MODELS = ("good", "fair", "poor")
ERRORS = {"good": 0.05, "fair": 0.2, "poor": 0.4}
SINGLE_CHOICE = ("exp3", "epsilon_greedy", "thompson")
TASK_ANY: dict[str, Any] = {"task": "any"}


def build_policy(name: str, models: Sequence[str] = MODELS, **settings: Any) -> Policy:
    return make_policy(Application("digits", tuple(models), policy=name, settings=settings))


def make_row(fallbacks: Any = (), regression: bool = False, **predictions: float) -> RowPredictions:
    return RowPredictions(predictions, dict(fallbacks), regression)


def train(policy: Policy, rounds: int, errors: dict[str, float], state: Any = None, seed: int = 1) -> tuple[Any, float]:
    """Return the state after feedback on `rounds` requests, and the mean loss of each first selected model."""
    random_source = Random(seed)
    state = policy.init() if state is None else state
    wrong = 0.0
    for _ in range(rounds):
        selection = policy.select(state, random_source)
        losses = {model: float(random_source.random() < errors[model]) for model in selection.models}
        wrong += losses[selection.models[0]]
        state = policy.observe(state, selection, losses)
    return state, wrong / rounds


@pytest.mark.parametrize(
    ("application", "policy"),
    [
        (Application("a", ("one",)), "Static"),
        (Application("a", ("one", "two")), "Exp4"),
        (Application("a", ("one", "two"), task="regression"), "Exp4"),
        (Application("a", ("one", "two"), **TASK_ANY), "Static"),
    ],
)
def test_the_default_policy_depends_on_the_models_and_task(application: Application, policy: str) -> None:
    assert type(make_policy(application)).__name__ == policy


def test_the_error_for_an_unknown_policy_lists_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match=r"policy: got 'ucb', wanted one of exp3, exp4"):
        build_policy("ucb")


@pytest.mark.parametrize(
    ("name", "settings", "name_in_error"),
    [
        ("exp3", {"eta": 0}, "eta"),
        ("exp3", {"gamma": 1.5}, "gamma"),
        ("exp3", {"eta": float("nan")}, "eta"),
        ("exp4", {"memory": 0.5}, "memory"),
        ("exp4", {"tolerance": -1}, "tolerance"),
        ("exp4", {"eta": {"good": 1}}, "eta"),
        ("epsilon_greedy", {"epsilon": -0.1}, "epsilon"),
        ("static", {"weights": {"best": 1}}, "best"),
        ("static", {"weights": {"good": -1}}, "good"),
        ("static", {"weights": {"good": float("nan")}}, "good"),
        ("static", {"weights": {"good": 0}}, "0.0 in all"),
        ("static", {"weights": 3}, "weights"),
    ],
)
def test_the_error_names_an_invalid_setting(name: str, settings: dict[str, Any], name_in_error: str) -> None:
    with pytest.raises(InvalidInput, match=f"settings.*{name_in_error}"):
        build_policy(name, **settings)


@pytest.mark.parametrize("name", SINGLE_CHOICE)
def test_the_best_model_is_found_and_selected(name: str) -> None:
    policy = build_policy(name)
    state, _ = train(policy, 3000, ERRORS)
    _, error = train(policy, 3000, ERRORS, state)
    assert max(ERRORS, key=policy.weights(state).__getitem__) == "good"
    assert error < 0.1


@pytest.mark.parametrize("name", SINGLE_CHOICE)
def test_a_failing_model_is_avoided_and_selected_again_after_recovery(name: str) -> None:
    policy = build_policy(name)
    state, _ = train(policy, 3000, ERRORS)
    state, _ = train(policy, 3000, ERRORS | {"good": 0.9}, state)
    _, error = train(policy, 1000, ERRORS | {"good": 0.9}, state)
    assert error < 0.3
    state, _ = train(policy, 3000, ERRORS, state)
    _, error = train(policy, 1000, ERRORS, state)
    assert error < 0.12


def test_exp3_divides_a_loss_by_the_probability_of_selection() -> None:
    policy = build_policy("exp3", MODELS[:2], gamma=0, eta=0.1, memory=1e12)
    rare = policy.observe(policy.init(), Selection(("good",), 0.25), {"good": 1.0})
    often = policy.init()
    for _ in range(4):
        often = policy.observe(often, Selection(("good",), 1.0), {"good": 1.0})
    assert policy.weights(rare) == pytest.approx(dict(policy.weights(often)))


def test_exp3_selects_each_model_with_the_probability_it_returns() -> None:
    policy, random_source = build_policy("exp3"), Random(1)
    state, _ = train(policy, 40, ERRORS)
    weights = policy.weights(state)
    selected = Counter(policy.select(state, random_source) for _ in range(20_000))
    for (model,), probability in selected:
        assert probability == weights[model]
        assert selected[Selection((model,), probability)] / 20_000 == pytest.approx(probability, abs=0.02)


def test_exp3_keeps_exploring_every_model() -> None:
    policy = build_policy("exp3", gamma=0.06)
    state, _ = train(policy, 20_000, {"good": 0.0, "fair": 1.0, "poor": 1.0})
    assert policy.weights(state) == pytest.approx({"good": 0.96, "fair": 0.02, "poor": 0.02}, abs=1e-6)


def test_exp4_weights_all_models_by_the_exponential_of_their_losses() -> None:
    policy = build_policy("exp4", eta=0.5, memory=1e12)
    state = policy.init()
    assert policy.select(state, Random(1)) == (MODELS, 1.0)
    state = policy.observe(state, Selection(MODELS), {"good": 0.0, "fair": 0.5, "poor": 1.0})
    weights = policy.weights(state)
    assert weights["fair"] / weights["good"] == pytest.approx(2.718281828**-0.25)
    assert weights["poor"] / weights["good"] == pytest.approx(2.718281828**-0.5)


def test_exp4_keeps_equal_models_equal_and_adapts_within_its_memory() -> None:
    policy = build_policy("exp4")
    state, _ = train(policy, 5000, {"good": 0.1, "fair": 0.1, "poor": 0.1})
    assert min(policy.weights(state).values()) > 0.1
    state, _ = train(policy, 400, {"good": 1.0, "fair": 0.1, "poor": 0.1}, state)
    assert policy.weights(state)["good"] < 0.01
    state, _ = train(policy, 400, {"good": 0.0, "fair": 0.1, "poor": 0.1}, state)
    assert max(MODELS, key=policy.weights(state).__getitem__) == "good"


def test_exp4_does_not_reward_a_model_for_being_absent() -> None:
    policy = build_policy("exp4")
    state, _ = train(policy, 500, ERRORS)
    state, random_source = policy.init(state), Random(1)
    for _ in range(500):
        losses = {model: float(random_source.random() < ERRORS[model]) for model in ("good", "fair")}
        state = policy.observe(state, Selection(MODELS), losses)
    weights = policy.weights(state)
    assert weights["poor"] < weights["good"]


def test_exp4_follows_the_greater_weight_not_the_greater_number() -> None:
    policy = build_policy("exp4", eta=1.0, memory=1e12)
    row = make_row(good=3, fair=8, poor=8)
    state = policy.init()
    assert policy.combine(state, row) == (8, 2 / 3)
    state = policy.observe(state, Selection(MODELS), {"good": 0.0, "fair": 1.0, "poor": 1.0})
    assert policy.combine(state, row) == (3, 1 / 3)


def test_a_missing_model_votes_with_its_average_and_lowers_the_confidence() -> None:
    policy = build_policy("average")
    state = policy.init()
    fallbacks = {"poor": {8.0: 0.75, 3.0: 0.25}}
    assert policy.combine(state, make_row(fallbacks, good=3, fair=8)) == (8, 1 / 3)
    assert policy.combine(state, make_row({"poor": {}}, good=3, fair=3)) == (3, 2 / 3)
    value, confidence = policy.combine(state, make_row({"poor": {4.0: 1.0}}, True, good=1, fair=1))
    assert (value, confidence) == (2, 0)


def test_missing_models_do_not_outvote_present_ones() -> None:
    policy = build_policy("exp4", eta=1, memory=1e12)
    state = policy.init()
    for _ in range(20):
        state = policy.observe(state, Selection(MODELS), {"good": 0.0, "fair": 1.0, "poor": 1.0})
    fallbacks = {"good": {1.0: 0.6, 2.0: 0.4}}
    assert policy.combine(state, make_row(fallbacks, fair=5, poor=5)) == (5, 2 / 3)
    assert policy.combine(state, make_row(fallbacks, fair=2, poor=1)).value == 1
    assert policy.combine(state, make_row({"good": {9.0: 1.0}}, True, fair=1, poor=1)).value == 5


def test_models_with_weight_zero_decide_if_they_alone_predicted() -> None:
    policy = build_policy("exp4", eta=100, memory=1e12)
    state = policy.init()
    for _ in range(100):
        state = policy.observe(state, Selection(MODELS), {"good": 0.0, "fair": 1.0, "poor": 1.0})
    assert policy.weights(state)["poor"] == 0
    assert policy.combine(state, make_row({"good": {}, "fair": {}}, poor=5)) == (5, 1 / 3)
    assert policy.combine(state, make_row({"good": {}, "fair": {}}, True, poor=5)) == (5, 1 / 3)


def test_numbers_agree_within_the_tolerance() -> None:
    row = make_row(regression=True, good=1.0, fair=2.0, poor=6.0)
    assert build_policy("average", tolerance=1).combine(None, row) == (3, 1 / 3)
    assert build_policy("average", tolerance=2).combine(None, row) == (3, 2 / 3)


def test_an_outlier_moves_the_mean_far_but_not_the_median() -> None:
    row = make_row(regression=True, good=1.0, fair=2.0, poor=1e9)
    assert build_policy("majority").combine(None, row).value == 2
    assert build_policy("average").combine(None, row).value > 1e8
    even = make_row({"poor": {}}, True, good=1.0, fair=2.0)
    assert build_policy("majority").combine(None, even).value == 1.5
    apart = make_row({"poor": {}}, True, good=1.7e308, fair=-1.7e308)
    assert build_policy("majority").combine(None, apart).value == 0


def test_static_distributes_contexts_by_weight() -> None:
    policy = build_policy("static", weights={"good": 90, "fair": 10})
    selected = Counter(policy.select(policy.init(), Random(context)).models[0] for context in range(10_000))
    assert selected["poor"] == 0
    assert selected["fair"] / 10_000 == pytest.approx(0.1, abs=0.015)
    assert policy.weights(policy.init()) == {"good": 0.9, "fair": 0.1, "poor": 0}


def test_a_canary_that_grows_only_gains_contexts() -> None:
    before, policy = (
        build_policy("static", weights={"good": 95, "fair": 5}),
        build_policy("static", weights={"good": 8, "fair": 2}),
    )
    for context in range(2000):
        was, now = (each.select(each.init(), Random(context)).models[0] for each in (before, policy))
        assert was == now or (was, now) == ("good", "fair")


def test_epsilon_greedy_tries_each_model_before_it_prefers_one() -> None:
    policy = build_policy("epsilon_greedy", epsilon=0)
    state = policy.init()
    selected = []
    for _ in range(5):
        (model,) = policy.select(state, Random(1)).models
        selected.append(model)
        state = policy.observe(state, Selection((model,)), {model: {"good": 0.2}.get(model, 0.5)})
    assert selected == ["good", "fair", "poor", "good", "good"]


def test_thompson_becomes_more_certain_with_observations() -> None:
    policy = build_policy("thompson")
    assert policy.weights(policy.init()) == pytest.approx(dict.fromkeys(MODELS, 1 / 3))
    state, _ = train(policy, 30, ERRORS)
    later, _ = train(policy, 1000, ERRORS, state)
    assert policy.weights(state)["good"] < policy.weights(later)["good"]


def test_a_new_model_starts_with_the_mean_of_the_others() -> None:
    before = build_policy("exp4", eta=1.0, memory=1e12)
    previous = before.observe(before.init(), Selection(MODELS), {"good": 0.0, "fair": 1.0, "poor": 1.0})
    policy = build_policy("exp4", ("new", "good", "fair", "poor"))
    weights = policy.weights(policy.init(previous))
    assert weights["new"] == pytest.approx(0.25)
    assert weights["good"] / weights["fair"] == pytest.approx(2.718281828)
