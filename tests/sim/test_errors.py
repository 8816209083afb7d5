"""Errors of single actions, read off a run: what the metrics count, one value each."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from horologe_common.clock import ms
from horologe_common.models import PAGE_BYTES
from horologe_common.recording.recorder import Recorder, RecorderSettings
from horologe_controller.core.controller import Controller
from horologe_gpu_worker.core.worker import Worker
from horologe_gpu_worker.settings import WorkerSettings
from horologe_sim.engine.noise import NOISES
from horologe_sim.engine.world import START_NS
from horologe_sim.replay import replay_recording
from horologe_sim.report.action_errors import ActionErrors
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from sim_builders import a_scenario, an_entry, poisson

if TYPE_CHECKING:
    from pathlib import Path

    from horologe_sim.scenario.scenario import Scenario

C = TypeVar("C")
METRICS = ("prediction", "completion")


def busy() -> Scenario:
    """More models than fit, and durations that are not what they were."""
    return a_scenario(
        an_entry("m", count=4),
        load=[poisson(300)],
        noise=NOISES["clockwork"],
        worker=WorkerSettings(pages_bytes=3 * PAGE_BYTES),
    )


def played(errors: ActionErrors, scenario: Scenario) -> SimulatedCluster:
    house = SimulatedCluster(scenario)
    house.world.observer = errors
    house.run()
    return house


def core_of(house: SimulatedCluster, kind: type[C]) -> C:
    cores = [core for process in house.world.processes.values() for core in process.cores.values()]
    return next(core for core in cores if isinstance(core, kind))


def test_there_is_a_value_for_each_that_the_metrics_count_and_their_sums_agree() -> None:
    errors = ActionErrors()
    house = played(errors, busy())
    controller = core_of(house, Controller)
    counted = {
        (action, error, side): (histogram.total, histogram.sum)
        for error in METRICS
        for (name, action, side), histogram in controller.stats.histograms.items()
        if name == f"horologe_{error}_error_seconds"
    }
    assert counted == {key: (len(values), sum(values)) for key, values in errors.values.items() if key[1] in METRICS}
    assert {key[:2] for key in counted} == {(action, error) for action in ("infer", "load") for error in METRICS}


def test_the_start_error_of_an_infer_is_the_workers() -> None:
    errors = ActionErrors()
    worker = core_of(played(errors, busy()), Worker)
    histogram = worker.stats.histograms[("horologe_start_error_seconds",)]
    values = errors.values["infer", "start", "under"]
    assert (histogram.total, histogram.sum) == (len(values), sum(values))


def test_only_actions_sent_in_the_time_asked_for_count() -> None:
    whole, part = ActionErrors(), ActionErrors(START_NS + ms(500), START_NS + ms(1500))
    for errors in (whole, part):
        played(errors, busy())
    first, all_of_it = part.statuses["infer", "OK"], whole.statuses["infer", "OK"]
    assert 0 < first < all_of_it
    assert sum(len(values) for (_, error, _), values in part.values.items() if error == "start") == sum(
        count for (_, status), count in part.statuses.items() if status == "OK"
    )


def test_a_recording_has_the_errors_of_the_run_that_was_recorded(tmp_path: Path) -> None:
    live, again = ActionErrors(), ActionErrors()
    played(live, busy())
    recorder = Recorder(RecorderSettings(str(tmp_path), 100_000, roles=("controller",)), "sim")
    house = SimulatedCluster(busy())
    house.world.observer = recorder
    house.run()
    path = recorder.write("stop")
    assert path is not None
    report = replay_recording(path, observer=again)
    assert report.identical
    assert [core.partition("/")[0] for core in report.cores] == ["controller"]
    assert (again.values, again.statuses) == (live.values, live.statuses)
