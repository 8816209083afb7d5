"""`controller.fairness`: whether a costly model is served under overload."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from horologe_common.clock import ms, s
from horologe_controller.settings import ControllerSettings
from horologe_experiments.clockwork.catalogue_models import catalogue_models
from horologe_experiments.harness.experiment_world import ExperimentWorld
from horologe_experiments.harness.interval_ledger import IntervalLedger
from horologe_experiments.harness.request_streams import PoissonStream, poisson
from horologe_sim.controller_only.controller_world import ClusterSettings
from horologe_sim.engine.noise import NOISES

if TYPE_CHECKING:
    from numpy.typing import NDArray

MODELS = catalogue_models(["resnet18_v1", "winograd_resnet152_v2"])


def take(rates: NDArray[np.float64], step: int) -> NDArray[np.float64]:
    return rates


def served(fairness: str) -> list[float]:
    """Return the parts of the requests of a cheap and a costly model that are in time at twice the capacity."""
    settings = ControllerSettings(fairness=fairness)  # type: ignore[arg-type]
    setting = ClusterSettings(noise=NOISES["none"], settle_ns=ms(500), controller=settings)
    rates = [np.array([2000.0, 0.0]), np.array([0.0, 500.0])]
    streams = [PoissonStream(partial(take, rate), s(4), lambda _: ms(100), group) for group, rate in enumerate(rates)]
    ledger = IntervalLedger(["cheap", "costly"], len(MODELS), s(4), s(1))
    world = ExperimentWorld(setting, [model.copies(1)[0] for model in MODELS], ledger, 1, poisson(streams, s(4), [1]))
    world.run(s(4))
    world.check()
    return [line.ok / line.sent for line in ledger.lines]


def test_fair_serves_the_costly_model_too_and_fewer_requests_in_all() -> None:
    most, fair = served("goodput"), served("fair")
    assert 4 * most[1] < most[0]
    assert 1.5 * most[1] < fair[1] < fair[0] < most[0]
