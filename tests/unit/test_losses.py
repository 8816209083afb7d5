"""Losses lie in [0, 1], whatever they are given."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horologe_common.applications import Application
from horologe_common.service.settings import SettingsError
from horologe_common.status import InvalidInput
from horologe_selector.bootstrap import load_losses
from horologe_selector.core.applications.losses import LOSSES, find_loss

if TYPE_CHECKING:
    from horologe_selector.core.applications.losses import Loss

anything = st.floats()
briefly = settings(max_examples=60, deadline=None)


def a_loss(loss: str = "", task: str = "classes", custom: dict[str, Loss] | None = None) -> Loss:
    return find_loss(Application("digits", ("cnn",), loss=loss, task=task), custom or {})


@pytest.mark.parametrize("name", LOSSES)
@briefly
@given(truth=anything, value=anything)
def test_in_0_to_1(name: str, truth: float, value: float) -> None:
    assert 0 <= a_loss(name)(truth, value) <= 1


@pytest.mark.parametrize("name", LOSSES)
@briefly
@given(truth=st.floats(allow_nan=False, allow_infinity=False))
def test_the_truth_costs_nothing(name: str, truth: float) -> None:
    assert a_loss(name)(truth, truth) == 0


def test_the_default_follows_from_the_task() -> None:
    assert a_loss()(3, 4) == 1
    assert a_loss(task="regression")(3, 3.25) == 0.25


def test_relative_knows_no_unit() -> None:
    loss = a_loss("relative", "regression")
    assert loss(200.0, 150.0) == pytest.approx(0.25) == loss(0.2, 0.15)
    assert loss(1.0, -1.0) == 1


def test_one_of_the_operators_own() -> None:
    custom: dict[str, Loss] = {"twice": lambda truth, value: 2 * abs(truth - value) - 0.1, "odd": lambda *_: math.nan}
    loss = a_loss("twice", "regression", custom)
    assert (loss(1, 1), loss(1, 1.25), loss(1, 5)) == (0, 0.4, 1)
    assert a_loss("odd", custom=custom)(1, 1) == 1


def test_an_unknown_one_is_answered_with_the_known() -> None:
    with pytest.raises(InvalidInput, match=r"loss: got 'hinge', wanted one of zero_one, absolute, relative, own"):
        a_loss("hinge", custom={"own": lambda truth, value: 0.0})


@pytest.mark.parametrize("text", ["zero_one=math:dist", "mine=math:nothing", "mine=nowhere:dist", "mine"])
def test_a_loss_that_is_not_there_or_already_there_is_an_error_of_its_setting(text: str) -> None:
    assert list(load_losses(["mine=math:dist"])) == ["mine"]
    with pytest.raises(SettingsError, match=rf"selector.losses: got '{text}', wanted"):
        load_losses([text])
