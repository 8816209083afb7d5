"""The pipelines of InferLine's Fig. 2 in the simulator: their drivers have the structure that the planner assumes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from horologe_common.clock import ms
from horologe_planning.catalogue import EXAMPLE_PIPELINES, catalogue_profiles
from sim.sim_builders import a_scenario, an_entry, played, poisson

REPOSITORY = Path(__file__).parents[2] / "benchmarks" / "emulated-pipelines"
TIMES = {
    path.parts[-3]: tomllib.loads(path.read_text())["emulated"]["exec_ms"] for path in REPOSITORY.glob("*/1/model.toml")
}


def test_the_emulated_models_have_the_times_of_the_catalogue() -> None:
    profiles = catalogue_profiles()
    models = {stage.model for structure in EXAMPLE_PIPELINES.values() for stage in structure.stages}
    assert models <= TIMES.keys()
    for model, times in TIMES.items():
        profile = profiles[model].get("v100") or profiles[model]["cpu"]
        assert {int(size): ms(time) for size, time in times.items()} == pytest.approx(profile.latency_ns, abs=200)


@pytest.mark.parametrize("name", EXAMPLE_PIPELINES)
def test_the_learned_structure_is_that_of_the_example(name: str) -> None:
    models = [
        an_entry(model, {int(size): time for size, time in times.items()}, weights_mb=16.0)
        for model, times in TIMES.items()
    ]
    scenario = a_scenario(
        *models, load=(poisson(60, models=(name,)),), pipelines=str(REPOSITORY / "pipelines"), workers=4,
        duration_ns=ms(6000),
    )  # fmt: skip
    house = played(scenario)
    report = house.report()
    assert report.total.ok > 0.9 * report.total.sent
    state = house.world.core("selector/0").pipelines.registry.describe(1, name)  # type: ignore[attr-defined]
    learned = {stage.model: stage for stage in state.structure.stages}
    example = EXAMPLE_PIPELINES[name]
    models_of = {stage.name: stage.model for stage in example.stages}
    assert learned.keys() == set(models_of.values())
    for stage in example.stages:
        got = learned[stage.model]
        assert got.visits == pytest.approx(stage.visits, abs=0.1), stage.name
        assert got.fan_out == pytest.approx(stage.fan_out, abs=0.15), stage.name
        assert set(got.parents) == {models_of[parent] for parent in stage.parents}, stage.name
