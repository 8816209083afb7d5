"""Pipelines in the simulator, on the whole path: every query has one answer, whatever dies."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from harness.pipeline_folders import CHAIN, DIAMOND, write_pipelines
from horologe_common.applications import Application
from horologe_common.clock import ms
from horologe_selector.settings import SelectorSettings
from sim.sim_builders import a_scenario, an_entry, assert_at_rest, cut, kill, played, poisson, stall

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_sim.engine.simulated_faults import Fault
    from horologe_sim.scenario.scenario import Scenario

MODELS = tuple(an_entry(name, {1: 2.0, 2: 3.0, 4: 5.0}) for name in "abc")


def a_pipeline(tmp_path: Path, source: str, rate: float = 100, slo: str = "100ms", **fields: Any) -> Scenario:
    folder = write_pipelines(tmp_path / "pipelines", {"p": source}, slo)
    load = (poisson(rate, models=("p",)),)
    return a_scenario(*MODELS, load=load, pipelines=folder, workers=fields.pop("workers", 2), **fields)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("source", [CHAIN, DIAMOND])
def test_queries_are_answered_with_their_own_outputs(tmp_path: Path, source: str, split: bool) -> None:
    house = played(a_pipeline(tmp_path, source, split=split, wire=split))
    report = house.report()
    assert report.total.ok == report.total.sent > 150
    assert_at_rest(house)


def test_the_structure_is_learned(tmp_path: Path) -> None:
    house = played(a_pipeline(tmp_path, DIAMOND))
    state = house.world.core("selector/0").pipelines.registry.describe(1, "p")  # type: ignore[attr-defined]
    stages = {stage.name: stage for stage in state.structure.stages}
    assert {name: stage.parents for name, stage in stages.items()} == {
        "a": (), "b": ("a",), "c": ("a",), "a#2": ("b", "c"),
    }  # fmt: skip
    state.structure.validate()
    assert all((stage.visits, stage.fan_out) == (1, 1) for stage in stages.values())


@pytest.mark.parametrize("process", ["selector", "controller", "worker/0", "frontend", "driver/p"])
def test_each_query_has_one_answer_if_a_process_is_killed(tmp_path: Path, process: str) -> None:
    faults = (kill(process, 500), kill(process, 1100, void=True))
    house = played(a_pipeline(tmp_path, DIAMOND, rate=300, split=True, faults=faults))
    assert house.report().total.ok > 0
    assert_at_rest(house)


FOUR_STAGES = """
    async def run(call, inputs):
        tensors = inputs
        for model in "abcd":
            tensors = {"x": (await call(model, tensors))["y"]}
        return {"y": tensors["x"]}
    """


def overloaded(tmp_path: Path, shared: bool, drop: bool) -> tuple[int, float]:
    """Return the answered queries at 1.5 times the capacity, and the wasted share of the device time."""
    times = {1: 5.0, 2: 7.0, 4: 11.0, 8: 19.0}
    models = [an_entry(name, times, workers=() if shared else (number,)) for number, name in enumerate("abcd")]
    folder = write_pipelines(tmp_path / "pipelines", {"p": FOUR_STAGES})
    load = (poisson(1.5 * 8 / 0.019, models=("p",)),)
    selector = SelectorSettings(pipeline_drop=drop)
    house = played(a_scenario(*models, load=load, pipelines=folder, workers=4, duration_ns=ms(2000), selector=selector))
    rows = sum(size * batches for meter in house.meters.values() for (_, size), batches in meter.rows.items())
    answered = house.report().total.ok
    return answered, 1 - 4 * answered / rows


@pytest.mark.parametrize("shared", [False, True])
def test_queries_that_would_be_late_are_dropped_early(tmp_path: Path, shared: bool) -> None:
    answered, wasted = overloaded(tmp_path, shared, drop=True)
    assert wasted < 0.15  # the first round trip of the overload included
    assert answered > 1.3 * overloaded(tmp_path, shared, drop=False)[0]


SOURCES = {
    "chain": CHAIN,
    "diamond": DIAMOND,
    "outer": """
        async def run(call, inputs):
            return await call("diamond", inputs)
        """,
    "tolerant": """
        async def run(call, inputs):
            try:
                return await call("a", inputs)
            except call.Failed:
                return {"y": inputs["x"]}
        """,
}
DRIVERS = ["driver/diamond", "driver/chain"]
PROCESSES = ["selector", "controller", "frontend", "worker/0", "worker/1"]
KINDS: dict[str, Callable[[str, float, float], Fault]] = {"kill": kill, "stall": stall, "cut": cut}
TIMES = st.integers(0, 900), st.integers(20, 300)
FAULTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(sorted(KINDS)), st.sampled_from(PROCESSES), *TIMES),
        st.tuples(st.just("kill"), st.sampled_from(DRIVERS), *TIMES),
    ),
    max_size=4,
)
RESTARTS: list[list[tuple[str, str, int, int]]] = [
    [("kill", "selector", 0, 20), ("stall", "selector", 0, 21)],
    [("kill", "selector", 5, 20), ("stall", "selector", 10, 21)],
    [("kill", "selector", 300, 20), ("stall", "selector", 321, 150)],
    [("kill", "selector", 300, 20), ("cut", "selector", 325, 20)],
    [("kill", "selector", 300, 20), ("kill", "selector", 330, 20), ("kill", "selector", 400, 20)],
    [("kill", "selector", 300, 20), ("kill", "controller", 310, 20)],
    [("kill", "driver/chain", 300, 0), ("stall", "selector", 310, 100)],
    [("kill", "driver/chain", 300, 0), ("kill", "driver/chain", 330, 0), ("kill", "driver/chain", 380, 0)],
]
"""Faults while a selector or a driver restarts: kind, process, time and duration in milliseconds."""


def faults_of(rows: list[tuple[str, str, int, int]]) -> tuple[Fault, ...]:
    return tuple(KINDS[kind](process, at, length) for kind, process, at, length in rows)


@pytest.mark.parametrize(
    "faults", RESTARTS, ids=lambda rows: "+".join(f"{kind}-{process}" for kind, process, *_ in rows)
)
@pytest.mark.parametrize("application", ["", "whole", "both"])
def test_what_is_deployed_is_never_unknown_while_a_selector_restarts(
    tmp_path: Path, faults: list[tuple[str, str, int, int]], application: str
) -> None:
    """`played` asserts that no request is answered UNKNOWN_MODEL."""
    applications = tuple(
        Application(name, models, slo_ms=50, task="any", cache=False)
        for name, models in (("whole", ("chain",)), ("both", ("chain", "a")))
    )
    pipelines = write_pipelines(tmp_path / "pipelines", {"chain": CHAIN}, "50ms")
    load = (poisson(200, application=application) if application else poisson(200, models=("chain",)),)
    house = played(
        a_scenario(
            *MODELS, load=load, pipelines=pipelines, applications=applications, workers=2, split=True,
            faults=faults_of(faults), duration_ns=ms(800),
        )
    )  # fmt: skip
    assert house.report().total.ok > 50
    assert_at_rest(house)


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@example(RESTARTS[0], 1, "50ms")
@example(RESTARTS[1], 1, "50ms")
@given(FAULTS, st.integers(0, 1000), st.sampled_from(["50ms", "200ms"]))
def test_any_pipelines_with_any_faults(faults: Any, seed: int, slo: str) -> None:
    with TemporaryDirectory() as folder:
        pipelines = write_pipelines(Path(folder), SOURCES, slo)
        load = (poisson(120, models=tuple(SOURCES), cancel_share=0.1, cancel_ns=ms(10)),)
        house = played(
            a_scenario(
                *MODELS, load=load, pipelines=pipelines, workers=2, split=True, faults=faults_of(faults), seed=seed,
                duration_ns=ms(1000),
            )
        )  # fmt: skip
        assert_at_rest(house)
        selector: Any = house.world.core("selector/0")
        assert len(selector.pipelines.runs) == 0
        assert selector.pipelines.staging.ids() == []


def test_a_pipeline_and_a_model_in_one_application(tmp_path: Path) -> None:
    application = Application("both", ("p", "a"), slo_ms=100, task="any", cache=False)
    scenario = a_pipeline(tmp_path, CHAIN, applications=(application,))
    house = played(msgspec.structs.replace(scenario, load=(poisson(100, application="both"),)))
    report = house.report()
    assert report.total.ok == report.total.sent > 150
    state = house.world.core("selector/0").pipelines.registry.describe(1, "p")  # type: ignore[attr-defined]
    assert state.answered > 50
