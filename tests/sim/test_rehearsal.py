"""Rehearsals by calls and in their process, and a tuner that changes the scheduler by them."""

from __future__ import annotations

import msgspec
import pytest

from horologe_common.clock import ms, s
from horologe_common.models import Profile
from horologe_common.wire import RequestTrace, ScheduledModel, ScheduledShare, SchedulingState, TracedRequest
from horologe_controller.core.runtime_distributions import RuntimeDistributions
from horologe_controller.schedulers import AUTO
from horologe_controller.settings import ControllerSettings
from horologe_experiments.clockwork.catalogue_models import catalogue_models
from horologe_experiments.tournament.match import play
from horologe_experiments.tournament.rehearsal import build_changing
from horologe_experiments.tournament.traits import FIXED
from horologe_experiments.tournament.workload import Workload, build_workload
from horologe_sim.controller_only.rehearsed_tuner import RehearsedTuner
from horologe_sim.rehearsal_process import rehearse
from horologe_tuner.core.rehearsal.rehearsal_documents import Candidate, RehearsalCall, RehearsalScores
from horologe_tuner.rehearsal_process import run_rehearsal
from horologe_tuner.settings import TunerSettings

DEFAULT = Candidate("horologe", "horologe")
(RESNET,) = catalogue_models(["resnet50_v1"])


def a_call(workload: Workload, *candidates: Candidate) -> RehearsalCall:
    """Return the call with which a tuner would rehearse a workload."""
    rows = [
        TracedRequest(model, at_ns, slo_ns or s(30), 1, best_effort=not slo_ns)
        for at_ns, model, slo_ns in zip(
            workload.chunk.times_ns, workload.chunk.models, workload.chunk.slos_ns, strict=True
        )
    ]
    if workload.chunk.requests:
        rows = [
            msgspec.structs.replace(row, length=request.length, application=request.application)
            for row, request in zip(rows, workload.chunk.requests, strict=True)
        ]
    models = []
    for model in workload.models:
        known: RuntimeDistributions | None = workload.distributions.get(model.report.spec.key)
        models.append(ScheduledModel(model.report, known.publish(model.report.spec.key) if known else None))
    keys = tuple(model.report.spec.key for model in workload.models)
    shares = tuple(ScheduledShare(workload.cluster.pages, factor) for factor in workload.factors)
    state = SchedulingState(msgspec.to_builtins(ControllerSettings()), tuple(models), shares, ms(0.06), ms(0.06))
    return RehearsalCall(RequestTrace(keys, tuple(rows)), state, candidates, 30.0, 7)


def last_scores(call: RehearsalCall) -> RehearsalScores:
    *_, scores = rehearse(call, lambda: 0.0)
    return scores


@pytest.mark.parametrize("name", ["edf", "horologe"])
def test_a_rehearsal_serves_what_the_scheduler_serves(name: str) -> None:
    workload = build_workload(FIXED["slo-100ms"], 1500)
    scores = last_scores(a_call(workload, Candidate(name, name)))
    served = sum(scores.in_time[name]) / sum(scores.sent)
    assert served == pytest.approx(play(workload, name, {}).value, abs=0.04)


def test_dynamic_models_are_played_by_their_distributions() -> None:
    traits = msgspec.structs.replace(FIXED["slo-100ms"], models=3, catalogue="dynamic", load=0.6)
    workload = build_workload(traits, 1000)
    scores = last_scores(a_call(workload, DEFAULT))
    assert sum(scores.in_time["horologe"]) / sum(scores.sent) == pytest.approx(
        play(workload, "horologe", {}).value, abs=0.08
    )


def test_without_time_only_the_first_candidates_are_played() -> None:
    call = a_call(build_workload(FIXED["slo-100ms"], 300), DEFAULT, Candidate("edf", "edf"))
    *_, scores = rehearse(call, lambda: 31.0)
    assert list(scores.in_time) == ["horologe"]


@pytest.mark.alone  # the process gets only time that nobody else wants
def test_the_process_answers_as_the_function_does() -> None:
    call = a_call(build_workload(FIXED["slo-100ms"], 300), DEFAULT, Candidate("edf", "edf"))
    expected = last_scores(call)
    scores = run_rehearsal(call)
    assert (scores.sent, scores.in_time, scores.error) == (expected.sent, expected.in_time, "")


def test_a_process_that_fails_is_reported() -> None:
    call = a_call(build_workload(FIXED["slo-100ms"], 300), DEFAULT)
    broken = msgspec.structs.replace(call, candidates=(Candidate("nope", "nope"),))
    assert "KeyError" in run_rehearsal(broken).error


def test_a_workload_that_changes_repeats_and_keeps_its_models() -> None:
    workload = build_changing(3, 400)
    assert workload.chunk == build_changing(3, 400).chunk
    times = list(workload.chunk.times_ns)
    assert times == sorted(times)
    assert times[-1] < workload.duration_ns


def test_a_tuner_that_rehearses_costs_hardly_anything() -> None:
    """The traffic changes while the tuner rehearses, and auto serves about as much as the default at least."""
    workload = build_changing(2, 300)
    settings = TunerSettings(rehearsal_interval_ns=workload.duration_ns // 4, rehearsal_share=1.0)
    tuner = RehearsedTuner(settings)
    auto = play(workload, AUTO, {}, tuner=tuner)
    assert tuner.calls >= 2
    assert auto.value >= play(workload, "horologe", {}).value - 0.02


def test_a_replay_starts_with_the_models_that_are_loaded() -> None:
    """One of two models fits. A LOAD takes longer than the SLO, so requests for the other model are lost at first."""
    reports = [model.report for model in RESNET.copies(2)]
    reports = [
        msgspec.structs.replace(report, profile=Profile(report.profile.exec_ns, ms(200)))
        for report in reports
        if report.profile
    ]
    keys = tuple(report.spec.key for report in reports)
    rows = tuple(TracedRequest(1, ms(10) * number, ms(50)) for number in range(100))

    def served(loaded: int) -> RehearsalScores:
        share = ScheduledShare(round(reports[0].spec.pages), resident=(loaded,))
        models = tuple(ScheduledModel(report) for report in reports)
        state = SchedulingState(msgspec.to_builtins(ControllerSettings()), models, (share,))
        return last_scores(RehearsalCall(RequestTrace(keys, rows), state, (DEFAULT,), 30.0, 7))

    assert served(1).in_time["horologe"] == served(1).sent
    assert served(0).in_time["horologe"][0] == 0
