"""`horologe explain` of queries that call several models: pipelines and applications."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cli.explained_recordings import answers, explanations, the_request
from harness.pipeline_folders import CHAIN, write_pipelines
from horologe_common.applications import Application
from horologe_common.clock import ms
from horologe_common.status import Status
from horologe_sim.explaining.request_explanation import explain
from horologe_sim.explaining.request_history import Attempt, RequestHistory, SubmitHistory
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from horologe_sim.scenario.workload import LoadPhase
from sim.sim_builders import a_scenario, an_entry, poisson, recorded

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("nested", [False, True])
def test_a_refused_query_of_a_pipeline_explains_the_stage_that_was_refused(tmp_path: Path, nested: bool) -> None:
    outer = """
        async def run(call, inputs):
            return await call("p", inputs)
        """
    folder = write_pipelines(tmp_path / "pipelines", {"p": CHAIN} | ({"outer": outer} if nested else {}), "60ms")
    load = [poisson(150, models=("outer" if nested else "p",)), poisson(400, models=("b",))]
    models = [an_entry("a", {1: 2.0, 2: 3.0, 4: 5.0}), an_entry("b", {1: 4.0, 2: 7.0, 4: 13.0})]
    scenario = a_scenario(*models, load=load, pipelines=folder, duration_ns=ms(800))
    path = recorded(tmp_path, SimulatedCluster(scenario))
    refused = [(to, answer) for to, answer in answers(path, Status.REFUSED) if "stage b: " in answer.reason]
    client, answer = refused[len(refused) // 2]
    request = the_request(path, client, answer.id)
    explanation, stage = explain(request), "p/b" if nested else "b"
    assert answer.reason in explanation.verdict
    (submit,) = [submit for submit in request.submits if submit.stage == stage]
    assert (submit.status, submit.model) == ("REFUSED", "b/1")
    assert submit.request_id.startswith("selector/0:")
    first, *ahead = explanation.ahead
    assert first == (
        f"It called 2 stages: {stage[:-1]}a, {stage}. "
        f"Stage {stage} ended as REFUSED: request {submit.request_id} for b/1, explained here."
    )
    assert any("requests for b/1" in line for line in ahead)
    assert explanation.remedies[0] == f"A deadline at least {submit.missing_ns / 1e6:.3f} ms later."
    assert [part.name for part in explanation.parts] == [
        f"until its stage {stage} reached the controller",
        "in the controller's queue",
        "after that stage, and back to the client",
    ]
    assert sum(part.took_ns for part in explanation.parts) == request.answered_ns - request.arrived_ns


def test_a_query_of_a_pipeline_that_its_selector_refuses_has_no_stage(tmp_path: Path) -> None:
    folder = write_pipelines(tmp_path / "pipelines", {"p": CHAIN}, "20ms")
    models = [an_entry("a", {1: 2.0}), an_entry("b", {1: 4.0, 2: 7.0})]
    scenario = a_scenario(*models, load=[poisson(600, models=("p",))], pipelines=folder, duration_ns=ms(800))
    path = recorded(tmp_path, SimulatedCluster(scenario))
    refused = [(to, answer) for to, answer in answers(path, Status.REFUSED) if "queries are open" in answer.reason]
    client, answer = refused[-1]
    explanation = explain(the_request(path, client, answer.id))
    assert answer.reason in explanation.verdict
    assert [line.partition(":")[0] for line in explanation.ahead] == [
        "It is a query of a pipeline, and no Submit of a stage was recorded"
    ]
    assert explanation.remedies == []


@pytest.mark.parametrize(("end_ms", "remedies"), [(40, []), (120, ["A deadline at least 25.000 ms later."])])
def test_a_late_query_that_went_on_after_its_last_stage_is_not_explained_by_it(
    end_ms: float, remedies: list[str]
) -> None:
    """The stage was planned to end at 95 ms, and took 5 ms longer than predicted."""
    reason = "pipeline p: not finished by the deadline: the driver has not returned"
    request = RequestHistory("c", 1, "", "p", 0, "frontend/0#1", 1, ms(100), False, ms(100), "LATE", reason, True)
    submit = SubmitHistory("selector/0#1", 1, "a/1", ms(1), ms(95), ms(30), stage="a", request_id="selector/0:1")
    attempt = Attempt(1, "worker/0", 0, 1, 1, ms(2), ms(30), ms(2), ms(32), ms(end_ms - 35), ms(end_ms), "OK")
    submit.attempts, submit.shares, submit.resident = [attempt], 1, 1
    request.submits = [submit]
    explanation = explain(request)
    assert (reason in explanation.verdict) == (not remedies)
    assert explanation.remedies[:1] == remedies


def test_the_member_of_an_application_that_was_refused_is_explained(tmp_path: Path) -> None:
    members = [an_entry(name, {1: 2.0, 2: 3.0, 4: 5.0}, accuracy=0.9, echo=False) for name in "ab"]
    load = [LoadPhase("poisson", rate=500, application="both")]
    application = Application("both", ("a", "b"), slo_ms=15)
    scenario = a_scenario(*members, load=load, applications=(application,), duration_ns=ms(800))
    path = recorded(tmp_path, SimulatedCluster(scenario))
    explained = explanations(path, Status.REFUSED)
    assert explained
    for request, explanation in explained:
        refused = [submit.model for submit in request.submits if submit.status == "REFUSED"]
        assert any(explanation.ahead[0] == f"It called 2 models. {model} ended as REFUSED." for model in refused)
        assert explanation.remedies
