"""What is particular to each selection policy: whom it comes to prefer, how it combines, what it forgets."""

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
LEARN_ALONE = ("exp3", "epsilon_greedy", "thompson")
TASK_ANY: dict[str, Any] = {"task": "any"}


def a_policy(name: str, models: Sequence[str] = MODELS, **settings: Any) -> Policy:
    return make_policy(Application("digits", tuple(models), policy=name, settings=settings))


def a_ballot(absent: Any = (), regression: bool = False, **predictions: float) -> RowPredictions:
    return RowPredictions(predictions, dict(absent), regression)


def fed(policy: Policy, rounds: int, errors: dict[str, float], state: Any = None, seed: int = 1) -> tuple[Any, float]:
    """The state after feedback on as many requests, and the error of what was asked, its first model's."""
    chance = Random(seed)
    state = policy.init() if state is None else state
    wrong = 0.0
    for _ in range(rounds):
        selection = policy.select(state, chance)
        losses = {model: float(chance.random() < errors[model]) for model in selection.models}
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
def test_what_is_not_declared_follows_from_the_models(application: Application, policy: str) -> None:
    assert type(make_policy(application)).__name__ == policy


def test_an_unknown_policy_is_answered_with_the_known() -> None:
    with pytest.raises(InvalidInput, match=r"policy: got 'ucb', wanted one of exp3, exp4"):
        a_policy("ucb")


@pytest.mark.parametrize(
    ("name", "settings", "told"),
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
def test_a_wrong_setting_is_named(name: str, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput, match=f"settings.*{told}"):
        a_policy(name, **settings)


@pytest.mark.parametrize("name", LEARN_ALONE)
def test_the_best_model_is_found_and_asked(name: str) -> None:
    policy = a_policy(name)
    state, _ = fed(policy, 3000, ERRORS)
    _, error = fed(policy, 3000, ERRORS, state)
    assert max(ERRORS, key=policy.weights(state).__getitem__) == "good"
    assert error < 0.1


@pytest.mark.parametrize("name", LEARN_ALONE)
def test_a_model_that_fails_is_left_and_taken_up_again_once_it_recovers(name: str) -> None:
    policy = a_policy(name)
    state, _ = fed(policy, 3000, ERRORS)
    state, _ = fed(policy, 3000, ERRORS | {"good": 0.9}, state)
    _, error = fed(policy, 1000, ERRORS | {"good": 0.9}, state)
    assert error < 0.3
    state, _ = fed(policy, 3000, ERRORS, state)
    _, error = fed(policy, 1000, ERRORS, state)
    assert error < 0.12


def test_exp3_divides_a_loss_by_the_probability_of_asking() -> None:
    policy = a_policy("exp3", MODELS[:2], gamma=0, eta=0.1, memory=1e12)
    rare = policy.observe(policy.init(), Selection(("good",), 0.25), {"good": 1.0})
    often = policy.init()
    for _ in range(4):
        often = policy.observe(often, Selection(("good",), 1.0), {"good": 1.0})
    assert policy.weights(rare) == pytest.approx(dict(policy.weights(often)))


def test_exp3_asks_each_model_by_its_probability_and_tells_it() -> None:
    policy, chance = a_policy("exp3"), Random(1)
    state, _ = fed(policy, 40, ERRORS)
    weights = policy.weights(state)
    asked = Counter(policy.select(state, chance) for _ in range(20_000))
    for (model,), probability in asked:
        assert probability == weights[model]
        assert asked[Selection((model,), probability)] / 20_000 == pytest.approx(probability, abs=0.02)


def test_exp3_goes_on_trying_every_model() -> None:
    policy = a_policy("exp3", gamma=0.06)
    state, _ = fed(policy, 20_000, {"good": 0.0, "fair": 1.0, "poor": 1.0})
    assert policy.weights(state) == pytest.approx({"good": 0.96, "fair": 0.02, "poor": 0.02}, abs=1e-6)


def test_exp4_asks_all_and_weighs_them_by_the_exponential_of_their_losses() -> None:
    policy = a_policy("exp4", eta=0.5, memory=1e12)
    state = policy.init()
    assert policy.select(state, Random(1)) == (MODELS, 1.0)
    state = policy.observe(state, Selection(MODELS), {"good": 0.0, "fair": 0.5, "poor": 1.0})
    weights = policy.weights(state)
    assert weights["fair"] / weights["good"] == pytest.approx(2.718281828**-0.25)
    assert weights["poor"] / weights["good"] == pytest.approx(2.718281828**-0.5)


def test_exp4_lets_models_that_do_equally_well_keep_their_votes_and_forgets_within_its_memory() -> None:
    policy = a_policy("exp4")
    state, _ = fed(policy, 5000, {"good": 0.1, "fair": 0.1, "poor": 0.1})
    assert min(policy.weights(state).values()) > 0.1
    state, _ = fed(policy, 400, {"good": 1.0, "fair": 0.1, "poor": 0.1}, state)
    assert policy.weights(state)["good"] < 0.01
    state, _ = fed(policy, 400, {"good": 0.0, "fair": 0.1, "poor": 0.1}, state)
    assert max(MODELS, key=policy.weights(state).__getitem__) == "good"


def test_exp4_does_not_reward_a_model_for_being_absent() -> None:
    policy = a_policy("exp4")
    state, _ = fed(policy, 500, ERRORS)
    state, chance = policy.init(state), Random(1)
    for _ in range(500):
        losses = {model: float(chance.random() < ERRORS[model]) for model in ("good", "fair")}
        state = policy.observe(state, Selection(MODELS), losses)
    weights = policy.weights(state)
    assert weights["poor"] < weights["good"]


def test_exp4_can_be_overruled_by_several_only_if_they_weigh_more() -> None:
    policy = a_policy("exp4", eta=1.0, memory=1e12)
    ballot = a_ballot(good=3, fair=8, poor=8)
    state = policy.init()
    assert policy.combine(state, ballot) == (8, 2 / 3)
    state = policy.observe(state, Selection(MODELS), {"good": 0.0, "fair": 1.0, "poor": 1.0})
    assert policy.combine(state, ballot) == (3, 1 / 3)


def test_a_missing_model_votes_with_its_average_and_lowers_the_confidence() -> None:
    policy = a_policy("average")
    state = policy.init()
    absent = {"poor": {8.0: 0.75, 3.0: 0.25}}
    assert policy.combine(state, a_ballot(absent, good=3, fair=8)) == (8, 1 / 3)
    assert policy.combine(state, a_ballot({"poor": {}}, good=3, fair=3)) == (3, 2 / 3)
    value, confidence = policy.combine(state, a_ballot({"poor": {4.0: 1.0}}, True, good=1, fair=1))
    assert (value, confidence) == (2, 0)


def test_what_a_missing_model_predicts_on_average_does_not_outvote_what_is_there() -> None:
    policy = a_policy("exp4", eta=1, memory=1e12)
    state = policy.init()
    for _ in range(20):
        state = policy.observe(state, Selection(MODELS), {"good": 0.0, "fair": 1.0, "poor": 1.0})
    absent = {"good": {1.0: 0.6, 2.0: 0.4}}
    assert policy.combine(state, a_ballot(absent, fair=5, poor=5)) == (5, 2 / 3)
    assert policy.combine(state, a_ballot(absent, fair=2, poor=1)).value == 1
    assert policy.combine(state, a_ballot({"good": {9.0: 1.0}}, True, fair=1, poor=1)).value == 5


def test_where_only_models_that_weigh_nothing_have_answered_they_answer() -> None:
    policy = a_policy("exp4", eta=100, memory=1e12)
    state = policy.init()
    for _ in range(100):
        state = policy.observe(state, Selection(MODELS), {"good": 0.0, "fair": 1.0, "poor": 1.0})
    assert policy.weights(state)["poor"] == 0
    assert policy.combine(state, a_ballot({"good": {}, "fair": {}}, poor=5)) == (5, 1 / 3)
    assert policy.combine(state, a_ballot({"good": {}, "fair": {}}, True, poor=5)) == (5, 1 / 3)


def test_numbers_agree_within_the_tolerance() -> None:
    ballot = a_ballot(regression=True, good=1.0, fair=2.0, poor=6.0)
    assert a_policy("average", tolerance=1).combine(None, ballot) == (3, 1 / 3)
    assert a_policy("average", tolerance=2).combine(None, ballot) == (3, 2 / 3)


def test_one_model_can_move_the_mean_far_but_not_the_median() -> None:
    ballot = a_ballot(regression=True, good=1.0, fair=2.0, poor=1e9)
    assert a_policy("majority").combine(None, ballot).value == 2
    assert a_policy("average").combine(None, ballot).value > 1e8
    even = a_ballot({"poor": {}}, True, good=1.0, fair=2.0)
    assert a_policy("majority").combine(None, even).value == 1.5
    apart = a_ballot({"poor": {}}, True, good=1.7e308, fair=-1.7e308)
    assert a_policy("majority").combine(None, apart).value == 0


def test_static_shares_contexts_out_by_its_weights() -> None:
    policy = a_policy("static", weights={"good": 90, "fair": 10})
    asked = Counter(policy.select(policy.init(), Random(context)).models[0] for context in range(10_000))
    assert asked["poor"] == 0
    assert asked["fair"] / 10_000 == pytest.approx(0.1, abs=0.015)
    assert policy.weights(policy.init()) == {"good": 0.9, "fair": 0.1, "poor": 0}


def test_a_canary_that_grows_only_gains_contexts() -> None:
    before, policy = (
        a_policy("static", weights={"good": 95, "fair": 5}),
        a_policy("static", weights={"good": 8, "fair": 2}),
    )
    for context in range(2000):
        was, now = (one.select(one.init(), Random(context)).models[0] for one in (before, policy))
        assert was == now or (was, now) == ("good", "fair")


def test_epsilon_greedy_tries_each_model_before_it_prefers_one() -> None:
    policy = a_policy("epsilon_greedy", epsilon=0)
    state = policy.init()
    asked = []
    for _ in range(5):
        (model,) = policy.select(state, Random(1)).models
        asked.append(model)
        state = policy.observe(state, Selection((model,)), {model: {"good": 0.2}.get(model, 0.5)})
    assert asked == ["good", "fair", "poor", "good", "good"]


def test_thompson_is_unsure_of_what_it_has_not_seen_and_surer_with_every_observation() -> None:
    policy = a_policy("thompson")
    assert policy.weights(policy.init()) == pytest.approx(dict.fromkeys(MODELS, 1 / 3))
    state, _ = fed(policy, 30, ERRORS)
    later, _ = fed(policy, 1000, ERRORS, state)
    assert policy.weights(state)["good"] < policy.weights(later)["good"]


def test_a_new_model_starts_with_the_mean_of_the_others() -> None:
    before = a_policy("exp4", eta=1.0, memory=1e12)
    known = before.observe(before.init(), Selection(MODELS), {"good": 0.0, "fair": 1.0, "poor": 1.0})
    policy = a_policy("exp4", ("new", "good", "fair", "poor"))
    weights = policy.weights(policy.init(known))
    assert weights["new"] == pytest.approx(0.25)
    assert weights["good"] / weights["fair"] == pytest.approx(2.718281828)
