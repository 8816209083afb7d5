"""Applications in the simulator, on the whole path, with emulated classifiers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from horologe_common.applications import Application
from horologe_common.clock import ms, s
from horologe_common.status import InvalidInput
from horologe_sim.engine.noise import Noise
from horologe_sim.engine.traceable_inputs import Skill, label, truth
from horologe_sim.scenario.scenario import Scenario, read_scenario
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from horologe_sim.scenario.workload import LoadPhase
from sim.sim_builders import a_scenario, an_entry, assert_at_rest, kill, played, poisson

if TYPE_CHECKING:
    from pathlib import Path

    from horologe_sim.scenario.scenario import ModelEntry

SLOW = Noise(tail_share=1.0, tail_ns=ms(100))


def a_classifier(name: str, worker: int, **fields: Any) -> ModelEntry:
    return an_entry(name, {1: 3.0, 2: 4.0, 4: 6.0}, echo=False, accuracy=0.8, workers=(worker,), **fields)


def asked(rate: float = 100, **fields: Any) -> LoadPhase:
    return poisson(rate, application="digits", **fields)


def an_ensemble(*models: ModelEntry, load: Any = (), application: Any = None, **fields: Any) -> Scenario:
    declared = {"slo_ms": 30.0, "default": 0.0, "cache": False} | (application or {})
    names = tuple(model.name for model in models)
    return a_scenario(
        *models,
        load=load or (asked(),),
        workers=len(models),
        applications=(Application("digits", names, **declared),),
        **fields,
    )


@pytest.mark.parametrize("split", [False, True])
def test_an_application_is_served_and_judged(split: bool) -> None:
    house = played(an_ensemble(*(a_classifier(f"m{number}", number) for number in range(3)), split=split))
    report = house.report()
    one = report.applications["digits"]
    assert report.total.ok == report.total.sent == one.answers > 150
    assert (one.missing_mean, one.defaulted) == (0, 0)
    assert one.accuracy is not None
    assert 0.75 < one.accuracy < 0.95
    assert "digits" in report.table()
    assert_at_rest(house)


def test_a_model_that_is_too_slow_is_missing_and_nothing_is_late() -> None:
    slow = a_classifier("slow", 2, noise=SLOW)
    house = played(an_ensemble(a_classifier("a", 0), a_classifier("b", 1), slow))
    report = house.report()
    one = report.applications["digits"]
    assert report.total.ok == report.total.sent
    assert one.missing_mean == pytest.approx(1 / 3, abs=0.05)
    assert one.incomplete > 0.9
    assert report.overdue_ms == 0


def test_models_and_applications_share_a_load_and_contexts_are_named() -> None:
    models = (a_classifier("a", 0), a_classifier("b", 1))
    house = played(an_ensemble(*models, load=(asked(50, contexts=3), poisson(50))))
    assert sorted(house.report().models) == ["a", "b", "digits"]
    assert sorted(house.tally.counts) == ["a", "b", "digits"]


def test_applications_outlive_the_selector() -> None:
    models = (a_classifier("a", 0), a_classifier("b", 1))
    house = played(an_ensemble(*models, faults=(kill("edge", 500, 200),)))
    line = house.tally.counts["digits"]
    assert line.statuses["OK"] > 0.7 * line.sent
    assert house.world.processes["edge"].incarnation == 2


def test_a_classifier_is_right_as_often_as_it_says_and_errs_with_others_where_they_are_alike() -> None:
    marks = range(4000)

    def errs(name: str, alike: float) -> list[int]:
        return [mark for mark in marks if label(name, Skill(0.8, alike), mark) != truth(mark)]

    assert len({truth(mark) for mark in marks}) == 10
    assert len(errs("a", 0.5)) == pytest.approx(800, rel=0.1)
    assert errs("a", 1.0) == errs("b", 1.0)
    both = set(errs("a", 0.0)) & set(errs("b", 0.0))
    assert len(both) == pytest.approx(160, rel=0.25)


def test_a_scenario_file_declares_applications(tmp_path: Path) -> None:
    file = tmp_path / "digits.toml"
    file.write_text(
        'workers = 2\nduration = "500ms"\n'
        '[[models]]\nname = "m"\ncount = 2\nexec_ms = { 1 = 3.0 }\naccuracy = 0.9\nslo = "50ms"\n'
        '[[applications]]\nname = "digits"\nmodels = ["m-0", "m-1"]\nslo_ms = 30\n'
        '[[load]]\napplication = "digits"\nrate = 50\n'
    )
    report = played(read_scenario(file)).report()
    assert report.total.ok == report.total.sent == report.applications["digits"].answers > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"applications": (Application("a", ("a",)),)}, "'a', which is a model"),
        ({"applications": (Application("digits", ("z",)),)}, "'z', wanted a model"),
        ({"load": (poisson(1, application="other"),)}, "'other', wanted one of digits"),
        ({"path": "direct"}, 'path = "whole"'),
        ({"applications": (Application("digits", ("a",), task="guess"),)}, "task: got 'guess'"),
    ],
)
def test_invalid_fields_are_named(changes: dict[str, Any], message: str) -> None:
    facts = {"load": (asked(),), "applications": (Application("digits", ("a",)),)} | changes
    with pytest.raises(InvalidInput, match=message):
        SimulatedCluster(a_scenario(a_classifier("a", 0), **facts))


@pytest.mark.parametrize("process", ["selector", "controller", "worker/0"])
@pytest.mark.parametrize("void", [False, True])
def test_with_a_default_no_query_is_late_or_unanswered_whatever_dies_behind_the_frontend(
    process: str, void: bool
) -> None:
    models = (a_classifier("a", 0), a_classifier("b", 1))
    house = played(an_ensemble(*models, split=True, faults=(kill(process, 500, 400, void=void),), duration_ns=s(1)))
    line = house.tally.counts["digits"]
    assert line.statuses == {"OK": line.sent}
    assert house.tally.overdue_ns == 0
    assert_at_rest(house)
