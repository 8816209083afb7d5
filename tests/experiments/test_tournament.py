"""The tournament: workloads repeat by seed, every scheduler can play them, and the second form keeps the requests."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from horologe_common.clock import ms, s
from horologe_common.service.settings import SettingsError
from horologe_controller.schedulers import SCHEDULERS
from horologe_experiments.clockwork.catalogue_models import catalogue_models
from horologe_experiments.harness.experiment_world import ExperimentWorld
from horologe_experiments.harness.interval_ledger import IntervalLedger
from horologe_experiments.tournament.match import play
from horologe_experiments.tournament.separate_queues import register_separate_queues
from horologe_experiments.tournament.tournament import Tournament
from horologe_experiments.tournament.traits import FIXED, DeviceFault, Slo, Traits, draw_traits, find_traits
from horologe_experiments.tournament.workload import build_workload
from horologe_sim.controller_only.controller_world import ClusterSettings
from horologe_sim.controller_only.direct_device import DeviceEntry
from horologe_sim.controller_only.request_load import Chunk
from horologe_sim.engine.simulated_faults import Fault, schedule_faults

SMALL = 150
DYNAMIC = Traits("d", 3, (1.0,), models=2, catalogue="dynamic", slo=Slo("times", 5, 5), arrivals="poisson", load=0.7)
(RESNET,) = catalogue_models(["resnet50_v1"])


def test_traits_repeat_by_seed_and_cover_the_space() -> None:
    drawn = [draw_traits(seed) for seed in range(1, 200)]
    assert drawn == [draw_traits(seed) for seed in range(1, 200)]
    assert {traits.arrivals for traits in drawn} == {"poisson", "gamma", "bursts", "azure", "nasa", "closed"}
    assert {traits.catalogue for traits in drawn} == {"clockwork", "mixed", "dynamic", "nexus"}
    assert min(len(traits.devices) for traits in drawn) == 1
    assert max(len(traits.devices) for traits in drawn) > 15
    assert min(traits.load for traits in drawn) < 0.3
    assert max(traits.load for traits in drawn) > 2.5
    assert any(fault.slowness == 0 for traits in drawn for fault in traits.faults)
    assert any(fault.slowness > 1 for traits in drawn for fault in traits.faults)


@pytest.mark.parametrize("name", [*FIXED, *map(str, range(1, 7))])
def test_a_workload_offers_its_load_and_repeats(name: str) -> None:
    traits = find_traits(name)
    first, again = (build_workload(traits, SMALL) for _ in range(2))
    assert first.chunk == again.chunk
    assert first.loops == again.loops
    times = first.chunk.times_ns
    assert list(times) == sorted(times)
    if not first.loops:
        offered = len(times) / (first.duration_ns / 1e9)
        assert offered == pytest.approx(traits.load * first.capacity, rel=0.5)
        assert all(0 <= model < len(first.models) for model in first.chunk.models)


def test_a_row_shows_what_was_played_and_how_to_replay_it() -> None:
    changes = {"workloads": ["12"], "requests": 100, "processes": 1, "schedulers": ["horologe", "edf"]}
    found = Tournament().run(1, True, changes, lambda part, label: None)
    (row,) = found.rows
    played = build_workload(find_traits("12"), 100)
    assert len(played.factors) < len(find_traits("12").devices)
    assert row["traits"].startswith(f"{len(played.factors)} device")
    assert row["score / bound"] == pytest.approx(row["horologe"] / row["bound"], abs=1e-3)
    (worst,) = found.series["The 10 least margins"]
    assert """'workloads=["12"]' --set requests=100""" in worst["replay"]


def test_fixed_workloads_have_the_slo_of_their_name() -> None:
    workload = build_workload(FIXED["slow-network"], SMALL)
    assert set(workload.chunk.slos_ns) == {ms(50)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"requests": 0}, "requests: got 0, wanted a whole number of at least 1"),
        ({"schedulers": ["edf"]}, "schedulers: got edf, wanted 'horologe' among them"),
        ({"schedulers": ["horologe", "zz"]}, "schedulers: got 'zz', wanted some of clockwork"),
        (
            {"variants": {"off": {"nosuch": False}}},
            "variants.off: nosuch: got an unknown name, wanted one of workers",
        ),
        ({"variants": {"off": {"admission": "zz"}}}, "variants.off: admission: got 'zz', wanted true or false"),
        ({"variants": {"edf": {"admission": False}}}, "variants.edf: got the name of another column"),
    ],
)
def test_a_wrong_scene_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        Tournament().run(1, True, changes, lambda part, label: None)


def test_a_replay_of_one_workload_has_no_bars_and_says_so() -> None:
    changes = {"workloads": ["12"], "requests": 100, "processes": 1, "schedulers": ["horologe", "edf"]}
    found = Tournament().run(1, True, changes, lambda part, label: None)
    assert found.bars == []
    assert found.holds
    assert "too few" in found.facts["bars"]
    Tournament().draw(found)


def test_an_unknown_workload_is_named() -> None:
    with pytest.raises(ValueError, match="'nope', wanted a seed or one of slo-100ms"):
        find_traits("nope")


@pytest.mark.parametrize("scheduler", [name for name in SCHEDULERS if name != "fifo"])
@pytest.mark.parametrize("name", ["slow-device", "8"])
def test_every_scheduler_ends_every_request(scheduler: str, name: str) -> None:
    workload = build_workload(find_traits(name), SMALL)
    score = play(workload, scheduler, {})
    assert score.value >= 0
    assert score == play(workload, scheduler, {})


def test_a_queue_for_each_kind_helps_a_scheduler_that_cannot_tell_them_apart() -> None:
    workload = build_workload(DYNAMIC, 1000)
    assert play(workload, register_separate_queues("edf"), {}).value > play(workload, "edf", {}).value


@pytest.mark.parametrize("scheduler", ["clockwork", "edf", "nexus", "clipper", "deferred"])
def test_the_second_form_of_every_scheduler_ends_every_request(scheduler: str) -> None:
    workload = build_workload(find_traits("3"), SMALL)
    score = play(workload, register_separate_queues(scheduler), {})
    ended = score.value + score.late + score.timed_out + score.refused
    assert ended == pytest.approx(1, abs=2e-5), "each part is rounded to five digits"


def test_a_device_that_takes_longer_than_its_profile_serves_less() -> None:
    traits = msgspec.structs.replace(FIXED["slo-100ms"], devices=(1.0,), models=1)
    slow = msgspec.structs.replace(traits, faults=(DeviceFault(0, 0, 1001, 4.0),))
    fast_score, slow_score = (play(build_workload(each, SMALL), "clockwork", {}) for each in (traits, slow))
    assert slow_score.value < fast_score.value


def test_requests_on_a_lost_device_are_answered_and_it_serves_again_when_it_comes_back() -> None:
    ledger = IntervalLedger(["all"], 1, s(1))
    setting = ClusterSettings(settle_ns=ms(100))
    times = range(0, s(3), ms(10))
    chunk = Chunk(list(times), [0] * len(times), [ms(100)] * len(times), [0] * len(times))
    world = ExperimentWorld(setting, RESNET.copies(1), ledger, 1, [chunk])
    schedule_faults(world, [Fault(s(1), "worker/0", restart_ns=s(1))], world.begin_ns)
    world.run(s(3))
    world.check()
    assert not world.open
    before, lost, after = (panel.lines[0] for panel in ledger.panels[:3])
    assert before.ok == before.sent
    assert lost.ok < 10
    assert after.ok > 0.9 * after.sent


def test_devices_may_have_execution_times_of_their_own() -> None:
    devices = [DeviceEntry(RESNET.copies(1), factor) for factor in (1.0, 2.0)]
    world = ExperimentWorld(ClusterSettings(), RESNET.copies(1), IntervalLedger(["all"], 1, s(1)), 1, devices=devices)
    first, second = (device.reports()[0].profile for device in world.devices.values())
    assert first is not None
    assert second is not None
    assert second.exec_ns[16] == 2 * first.exec_ns[16]


def test_two_models_that_do_not_fit_together_take_turns_within_their_budgets() -> None:
    """One device at half of its capacity has memory for one of them, and their requests can wait for many LOADs."""
    assert play(build_workload(find_traits("30179"), 1500), "horologe", {}).value == 1.0


def test_a_model_is_loaded_though_the_batches_of_another_follow_each_other_without_a_gap() -> None:
    """Six devices hold one model each, of two models that both exceed their part of the devices."""
    traits = msgspec.structs.replace(find_traits("30186"), faults=())
    assert play(build_workload(traits, 600), "horologe", {}).worst_model >= 0.5
