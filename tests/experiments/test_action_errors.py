"""Prediction errors of single actions, compared with the metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from horologe_common.clock import ms
from horologe_common.models import PAGE_BYTES
from horologe_controller.core.controller import Controller
from horologe_experiments.live.action_errors import ActionErrors
from horologe_gpu_worker.core.worker import Worker
from horologe_gpu_worker.settings import WorkerSettings
from horologe_sim.engine.noise import NOISES
from horologe_sim.engine.world import START_NS
from horologe_sim.replay import replay_recording
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from sim.sim_builders import a_scenario, an_entry, poisson, recorded

if TYPE_CHECKING:
    from pathlib import Path

    from horologe_sim.scenario.scenario import Scenario

C = TypeVar("C")
METRICS = ("prediction", "completion")


def busy() -> Scenario:
    """Return a scenario with more models than fit into memory, and with noisy durations."""
    return a_scenario(
        an_entry("m", count=4),
        load=[poisson(300)],
        noise=NOISES["clockwork"],
        worker=WorkerSettings(pages_bytes=3 * PAGE_BYTES),
    )


def played(errors: ActionErrors, scenario: Scenario) -> SimulatedCluster:
    cluster = SimulatedCluster(scenario)
    cluster.world.observer = errors
    cluster.run()
    return cluster


def core_of(cluster: SimulatedCluster, kind: type[C]) -> C:
    cores = [core for process in cluster.world.processes.values() for core in process.cores.values()]
    return next(core for core in cores if isinstance(core, kind))


def test_values_agree_with_counts_and_sums_of_the_metrics() -> None:
    errors = ActionErrors()
    cluster = played(errors, busy())
    controller = core_of(cluster, Controller)
    counted = {
        (action, error, side): (histogram.total, histogram.sum)
        for error in METRICS
        for (name, *labels), histogram in controller.stats.histograms.items()
        if name == f"horologe_{error}_error_seconds"
        for action, side in [labels]
    }
    assert counted == {key: (len(values), sum(values)) for key, values in errors.values.items() if key[1] in METRICS}
    assert {key[:2] for key in counted} == {(action, error) for action in ("infer", "load") for error in METRICS}


def test_the_start_errors_of_infers_agree_with_the_worker() -> None:
    errors = ActionErrors()
    worker = core_of(played(errors, busy()), Worker)
    histogram = worker.stats.histograms[("horologe_start_error_seconds",)]
    values = errors.values["infer", "start", "under"]
    assert (histogram.total, histogram.sum) == (len(values), sum(values))


def test_only_actions_of_the_interval_count() -> None:
    whole, part = ActionErrors(), ActionErrors(START_NS + ms(500), START_NS + ms(1500))
    for errors in (whole, part):
        played(errors, busy())
    in_part, in_whole = part.statuses["infer", "OK"], whole.statuses["infer", "OK"]
    assert 0 < in_part < in_whole
    assert sum(len(values) for (_, error, _), values in part.values.items() if error == "start") == sum(
        count for (_, status), count in part.statuses.items() if status == "OK"
    )


def test_a_replay_has_the_errors_of_the_recorded_run(tmp_path: Path) -> None:
    live, replayed = ActionErrors(), ActionErrors()
    played(live, busy())
    path = recorded(tmp_path, SimulatedCluster(busy()), 100_000, roles=("controller",))
    report = replay_recording(path, observer=replayed)
    assert report.identical
    assert [core.partition("/")[0] for core in report.cores] == ["controller"]
    assert (replayed.values, replayed.statuses) == (live.values, live.statuses)
