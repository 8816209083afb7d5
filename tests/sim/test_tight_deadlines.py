"""Hidden lengths and tight deadlines, with the controller alone: idle devices try requests that may be late."""

from __future__ import annotations

import numpy as np
import pytest

from horologe_common.clock import ms, s
from horologe_common.distribution import Distribution
from horologe_common.models import ModelSpec, Profile, TensorSpec
from horologe_common.wire import ModelReport
from horologe_controller.core.runtime_distributions import RuntimeDistributions, SoloDistribution
from horologe_experiments.clockwork.catalogue_models import catalogue_models
from horologe_experiments.harness.experiment_world import ExperimentWorld
from horologe_experiments.harness.interval_ledger import IntervalLedger
from horologe_sim.controller_only.controller_world import ClusterSettings
from horologe_sim.controller_only.direct_device import DeviceEntry
from horologe_sim.controller_only.request_load import STATIC, Chunk, DynamicRequest
from horologe_sim.engine.noise import NOISES
from horologe_sim.engine.simulated_device import SimModel

BASE_NS, SIZES, SECONDS = ms(1), (1, 2, 4), 20
TENSOR = TensorSpec("x", "FP32", (-1, 1))
SPEC = ModelSpec("text", "1", "emulated", (TENSOR,), (TENSOR,), SIZES, weights_bytes=1 << 20)
TEXT = SimModel(ModelReport(SPEC, Profile({size: size * ms(50) for size in SIZES}, ms(1))), base_ns=BASE_NS)
(RESNET,) = catalogue_models(["resnet50_v1"])


def solo_times(count: int) -> list[int]:
    """Return execution times between 10 and 100 ms."""
    times_ns: list[int] = np.random.default_rng(3).integers(ms(10), ms(100), count).tolist()
    return times_ns


def play(gap_ms: float, at_once: int = 1, devices: int = 1, static: float = 0.0, slo_ms: float = 0) -> ExperimentWorld:
    """Send `at_once` texts every `gap_ms`. Nobody knows their execution times; their deadlines are 1.5 times as long.

    `slo_ms`: deadline of all texts instead. `static`: requests per second for a model of 2.6 ms, in time after 80 ms.
    """
    times = [begin for begin in range(0, s(SECONDS), ms(gap_ms)) for _ in range(at_once)] if at_once else []
    texts = [
        (at, 0, ms(slo_ms) or took * 3 // 2, DynamicRequest(took))
        for at, took in zip(times, solo_times(len(times)), strict=True)
    ]
    arrivals = np.random.default_rng(4).integers(0, s(SECONDS), int(static * SECONDS)).tolist()
    rows = sorted(texts + [(at, 1, ms(80), STATIC) for at in arrivals], key=lambda row: row[0])
    times_ns, models, slos_ns, requests = (list(column) for column in zip(*rows, strict=True))
    setting = ClusterSettings(noise=NOISES["none"], settle_ns=ms(500), devices=devices, grace_ns=ms(500))
    served = [TEXT, *RESNET.copies(1)]
    ledger = IntervalLedger(["text", "static"], 2, s(SECONDS + 1))
    chunk = Chunk(times_ns, models, slos_ns, models, requests)
    world = ExperimentWorld(setting, served, ledger, 1, [chunk], devices=[DeviceEntry(served)] * devices)
    parts = [SoloDistribution("", 0, Distribution.from_samples(solo_times(1000)))]
    world.controller.cluster.distributions[SPEC.key] = RuntimeDistributions(BASE_NS, parts)
    world.run(s(SECONDS))
    world.check()
    return world


@pytest.mark.parametrize(("at_once", "devices"), [(1, 1), (2, 2)])
def test_an_idle_device_tries_a_request_that_may_be_in_time(at_once: int, devices: int) -> None:
    text = play(150, at_once, devices).ledger.lines[0]
    assert text.ok > 0.97 * text.sent


def test_under_load_few_answers_are_late() -> None:
    text = play(60).ledger.lines[0]
    assert text.ok > 0.4 * text.sent
    assert text.late < 0.1 * text.sent


def test_requests_that_may_be_in_time_do_not_push_aside_sure_ones() -> None:
    """A third of the texts take less than their budget, so none of them is in time by the median."""
    text, static = play(60, static=120, slo_ms=40).ledger.lines
    assert text.ok > 0
    assert static.ok > 0.99 * static.sent
