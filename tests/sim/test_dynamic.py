"""Models whose time depends on the input, with the controller alone: who is in time, and that every law is kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from horologe_common.clock import ms, s, us
from horologe_common.distribution import Distribution
from horologe_common.models import ModelSpec, Profile, TensorSpec
from horologe_common.wire import ModelReport
from horologe_controller.core.runtime_distributions import RuntimeDistributions, SoloDistribution
from horologe_controller.settings import ControllerSettings
from horologe_experiments.clockwork.catalogue_models import catalogue_models
from horologe_experiments.harness.experiment_world import ExperimentWorld, Loop
from horologe_experiments.harness.interval_ledger import IntervalLedger
from horologe_sim.controller_only.controller_world import ClusterSettings
from horologe_sim.controller_only.direct_device import DeviceEntry
from horologe_sim.controller_only.request_load import STATIC, Chunk, DynamicRequest
from horologe_sim.engine.noise import NOISES
from horologe_sim.engine.simulated_device import SimModel

BASE_NS = ms(7)
SIZES = (1, 2, 4, 8, 16)
ROW_MS = {"chat": 1.5, "mail": 8.0}
SPEC = ModelSpec(
    "text",
    "1",
    "emulated",
    (TensorSpec("x", "FP32", (-1, 1)),),
    (TensorSpec("y", "FP32", (-1, 1)),),
    SIZES,
    weights_bytes=1 << 20,
)
TEXT = SimModel(ModelReport(SPEC, Profile({size: BASE_NS + size * ms(5) for size in SIZES}, ms(1))), base_ns=BASE_NS)
(RESNET,) = catalogue_models(["resnet50_v1"])


def solos(application: str, rng: np.random.Generator, count: int) -> list[int]:
    """Draw solo times of requests of one application, in ns."""
    rows_ms = np.maximum(0.2, rng.normal(ROW_MS[application], ROW_MS[application] / 6, count))
    return [BASE_NS + int(row_ms * 1e6) for row_ms in rows_ms]


def played(
    scheduler: str,
    rate: float,
    slo_ms: float,
    seed: int = 1,
    static: float = 0.0,
    seconds: float = 5,
    factors: tuple[float, ...] = (1.0,),
) -> ExperimentWorld:
    """Half the requests are chats, half are mails; `static` more ask for ResNet-50s on the same devices."""
    rng = np.random.default_rng(seed)
    count, others = int(rate * seconds), int(static * seconds)
    mails = rng.random(count) < 0.5
    takes = {one: iter(solos(one, rng, count)) for one in ROW_MS}
    requests = [DynamicRequest(next(takes[one]), one) for one in np.where(mails, "mail", "chat").tolist()]
    models = [0] * count + rng.integers(1, 4, others).tolist()
    times = rng.integers(0, s(seconds), count + others)
    order = np.argsort(times, kind="stable").tolist()
    chunk = Chunk(
        times[order].tolist(),
        [models[at] for at in order],
        [ms(slo_ms)] * len(order),
        [min(1, models[at]) for at in order],
        [requests[at] if at < count else STATIC for at in order],
    )
    controller = ControllerSettings(scheduler=scheduler, margin_ns=us(100))
    setting = ClusterSettings(
        noise=NOISES["none"], settle_ns=ms(500), controller=controller, devices=len(factors), grace_ns=ms(500)
    )
    ledger = IntervalLedger(["text", "static"], 4, s(1))
    served = [TEXT, *RESNET.copies(3)]
    devices = [DeviceEntry(served, factor) for factor in factors]
    world = ExperimentWorld(setting, served, ledger, seed, [chunk], devices=devices)
    parts = [SoloDistribution(one, 0, Distribution.from_samples(solos(one, rng, 500))) for one in ROW_MS]
    world.controller.cluster.distributions[SPEC.key] = RuntimeDistributions(BASE_NS, parts)
    world.run(s(seconds))
    world.check()
    assert not world.open
    for line in world.ledger.lines:
        assert line.sent == line.ok + line.late + line.lost + line.refused
    return world


def in_time(world: ExperimentWorld) -> int:
    return sum(line.ok for line in world.ledger.lines)


@pytest.mark.parametrize("static", [0.0, 300.0])
def test_knowing_distributions_serves_more_than_knowing_quantiles(static: float) -> None:
    assert in_time(played("horologe", 150, 60, static=static)) > 1.08 * in_time(
        played("clockwork", 150, 60, static=static)
    )


def test_where_there_is_time_for_all_all_are_in_time() -> None:
    text, static = played("horologe", 40, 100, static=100).ledger.lines
    assert text.ok == text.sent
    assert static.ok == static.sent


def test_batches_of_dynamic_models_leave_more_time_on_a_slow_device() -> None:
    text, _ = played("horologe", 150, 60, factors=(1.0, 3.0)).ledger.lines
    assert text.late < 0.05 * text.sent


@settings(max_examples=12, deadline=None)
@given(
    some.sampled_from(["horologe", "orloj"]),
    some.floats(5, 400),
    some.floats(8, 300),
    some.integers(0, 9),
    some.floats(0, 500),
)
def test_every_request_has_one_end(scheduler: str, rate: float, slo_ms: float, seed: int, static: float) -> None:
    played(scheduler, rate, slo_ms, seed, static, seconds=1)


def test_best_effort_work_keeps_nobody_waiting() -> None:
    """A batch may wait for more requests, not for those that come only when it has been answered."""
    setting = ClusterSettings(settle_ns=ms(500), controller=ControllerSettings(scheduler="horologe"))
    loops = [Loop(0, s(5), 0), Loop(0, 0, 1), Loop(0, 0, 1)]
    ledger = IntervalLedger(["one by one", "best effort"], 1, s(1))
    world = ExperimentWorld(setting, RESNET.copies(1), ledger, 1, (), loops)
    world.run(s(2))
    assert ledger.line("one by one").times.max_ns < ms(30)
