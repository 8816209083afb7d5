"""Losses lie in [0, 1] for any truth and value."""

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
few_examples = settings(max_examples=60, deadline=None)


def make_loss(loss: str = "", task: str = "classes", custom: dict[str, Loss] | None = None) -> Loss:
    return find_loss(Application("digits", ("cnn",), loss=loss, task=task), custom or {})


@pytest.mark.parametrize("name", LOSSES)
@few_examples
@given(truth=anything, value=anything)
def test_losses_lie_between_0_and_1(name: str, truth: float, value: float) -> None:
    assert 0 <= make_loss(name)(truth, value) <= 1


@pytest.mark.parametrize("name", LOSSES)
@few_examples
@given(truth=st.floats(allow_nan=False, allow_infinity=False))
def test_the_loss_of_the_truth_is_zero(name: str, truth: float) -> None:
    assert make_loss(name)(truth, truth) == 0


def test_the_default_loss_depends_on_the_task() -> None:
    assert make_loss()(3, 4) == 1
    assert make_loss(task="regression")(3, 3.25) == 0.25


def test_the_relative_loss_does_not_depend_on_the_unit() -> None:
    loss = make_loss("relative", "regression")
    assert loss(200.0, 150.0) == pytest.approx(0.25) == loss(0.2, 0.15)
    assert loss(1.0, -1.0) == 1


def test_custom_losses_are_clipped() -> None:
    custom: dict[str, Loss] = {"twice": lambda truth, value: 2 * abs(truth - value) - 0.1, "odd": lambda *_: math.nan}
    loss = make_loss("twice", "regression", custom)
    assert (loss(1, 1), loss(1, 1.25), loss(1, 5)) == (0, 0.4, 1)
    assert make_loss("odd", custom=custom)(1, 1) == 1


def test_the_error_for_an_unknown_loss_lists_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match=r"loss: got 'hinge', wanted one of zero_one, absolute, relative, own"):
        make_loss("hinge", custom={"own": lambda truth, value: 0.0})


@pytest.mark.parametrize("text", ["zero_one=math:dist", "mine=math:nothing", "mine=nowhere:dist", "mine"])
def test_a_missing_or_duplicate_loss_is_a_settings_error(text: str) -> None:
    assert list(load_losses(["mine=math:dist"])) == ["mine"]
    with pytest.raises(SettingsError, match=rf"selector.losses: got '{text}', wanted"):
        load_losses([text])
