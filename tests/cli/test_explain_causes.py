"""`horologe explain` names what failed or was too slow, what a prediction was made of, and only remedies that help."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from cli.explained_recordings import answers, explanations, the_request
from controller.controller_builders import FRONTEND, MODEL, WORKER, a_controller
from horologe_common.clock import ms, s, us
from horologe_common.status import Status
from horologe_common.wire import Infer, Result, RowStatus, Submit
from horologe_controller.core.cluster.prediction_source import PredictionSource
from horologe_controller.core.scheduling.decisions import Reason
from horologe_sim.engine.simulated_faults import Fault
from horologe_sim.explaining.recorded_submits import ControllerObserver
from horologe_sim.explaining.request_explanation import explain
from horologe_sim.explaining.request_history import Attempt, RequestHistory, SubmitHistory, Work
from horologe_sim.explaining.surroundings import describe_source
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from horologe_sim.scenario.workload import LoadPhase
from sim.sim_builders import a_scenario, an_entry, poisson, recorded, recorded_slow_worker, with_network

if TYPE_CHECKING:
    from pathlib import Path


def test_an_action_that_did_not_run_has_no_execution(tmp_path: Path) -> None:
    path = recorded_slow_worker(tmp_path, 20, 300, 100.0)
    explained = [pair for pair in explanations(path, Status.LATE) if pair[0].submits[0].attempts[-1].status != "OK"]
    assert explained
    for _, explanation in explained:
        assert "worker/0 did not run it" in explanation.verdict
        assert "its window had passed" in explanation.verdict
        assert explanation.remedies == ["Batches before it as fast as predicted."]


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (Fault(ms(310), "worker/0", restart_ns=0), "worker/0 disconnected"),
        (Fault(ms(310), "worker/0", "stall", for_ns=ms(900)), "worker/0 hung"),
        (Fault(ms(310), "worker/0", "slow", factor=1000.0), "m/1 hung on worker/0"),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_the_worker_or_model_that_is_lost_or_hangs_is_named(tmp_path: Path, fault: Fault, cause: str) -> None:
    model = an_entry("m", {1: 40.0}, slo_ns=ms(600))
    even = LoadPhase("even", rate=20)
    path = recorded(tmp_path, SimulatedCluster(a_scenario(model, load=[even], duration_ns=ms(400), faults=(fault,))))
    failed = [pair for status in (Status.LOST, Status.LATE, Status.REFUSED) for pair in explanations(path, status)]
    verdicts = [explanation.verdict for _, explanation in failed]
    assert any(cause in verdict for verdict in verdicts), verdicts
    assert any(f"and {cause}" in line for _, explanation in failed for line in explanation.ahead)
    others = {"worker/0 disconnected", " worker/0 hung", "m/1 hung on worker/0"} - {cause, f" {cause}"}
    assert not any(other in verdict for verdict in verdicts for other in others), verdicts
    blamed = [explanation.remedies for _, explanation in failed if cause in explanation.verdict]
    assert not any("deadline" in remedy for remedies in blamed for remedy in remedies), blamed


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (PredictionSource("profile"), "by the profile"),
        (
            PredictionSource("profile", pace_permille=1400),
            "by the profile, times 1.40 for the pace of recent executions",
        ),
        (
            PredictionSource("profile", left_out_ns=us(342)),
            "by the profile; its only recent execution (0.342) took too long to count alone",
        ),
        (
            PredictionSource("executions", [us(10), us(11)], us(342)),
            "by the last 2 executions (0.010, 0.011), without one that took much longer (0.342)",
        ),
        (PredictionSource("trial", [us(342)]), "for a trial, less than by the last 1 execution (0.342)"),
        (PredictionSource("guess"), "by a guess, as it has never been measured"),
        (PredictionSource("distribution"), "by the distribution of its kind of request"),
    ],
)
def test_a_prediction_names_what_it_was_made_of(source: PredictionSource, sentence: str) -> None:
    assert describe_source(source) == sentence


def test_an_outlier_is_named_as_left_out(tmp_path: Path) -> None:
    """The device is slow for one batch. The next predictions are those of the profile."""
    scenario = a_scenario(
        an_entry("m", {1: 2.0}, slo_ns=ms(60)),
        load=[LoadPhase("even", rate=20)],
        duration_ns=ms(400),
        faults=(Fault(ms(1), "worker/0", "slow", factor=10.0, for_ns=ms(60)),),
    )
    path = recorded(tmp_path, SimulatedCluster(scenario))
    explained = [pair for pair in explanations(path, Status.OK) if pair[0].submits[0].attempts[-1].source.left_out_ns]
    assert explained
    for request, explanation in explained:
        assert request.submits[0].attempts[-1].expected_ns == ms(2)
        assert "(20.000)" in " ".join(explanation.ahead)
        assert "predicted 2.000 ms by" in " ".join(explanation.ahead)


def test_the_action_that_answered_a_request_is_decisive() -> None:
    """The model hung. Then the request was sent again, and the first action failed. Only that one was answered."""
    request = RequestHistory("c", 1, "", "m", 0, FRONTEND, 1, s(3), answered_ns=ms(1018), status="FAILED")
    first = Attempt(
        1, "worker/0", 0, 1, 1, ms(2), ms(1), ms(2), ms(3), ms(4), ms(1017), "FAILED", "no answer within 1 s"
    )
    first.failed_ns, first.hung_model = ms(500), "m/1"
    second = Attempt(2, "worker/0", 0, 1, 1, ms(1017), ms(1), ms(1017), ms(1018), ms(1018), ms(1018), "MISSING_INPUT")
    request.submits = [SubmitHistory(FRONTEND, 1, "m/1", ms(1), s(3), ms(1), attempts=[first, second])]
    explanation = explain(request)
    assert explanation.verdict.endswith("m/1 hung and failed on worker/0 after 1013.000 ms: no answer within 1 s")
    assert [(part.name, part.took_ns) for part in explanation.parts][-2:] == [
        ("executing", ms(1013)),
        ("back to the client", ms(1)),
    ]


def test_a_deadline_that_has_passed_on_the_way_counts_from_then() -> None:
    request = RequestHistory("c", 1, "", "m", 0, FRONTEND, 1, us(1), answered_ns=us(300), status="REFUSED")
    submit = SubmitHistory(FRONTEND, 1, "m/1", us(81), us(81), us(420), shares=1, resident=1, status="REFUSED")
    submit.reason, submit.missing_ns, submit.dispatch_ns = Reason.EXECUTION_TOO_LONG.sentence, us(880), us(460)
    request.submits = [submit]
    explanation = explain(request)
    assert explanation.ahead[-1] == "Its deadline had passed when it reached the controller."
    assert explanation.remedies == ["A deadline at least 0.960 ms later."]


@pytest.mark.parametrize(
    ("status", "reason", "remedies"),
    [
        ("UNKNOWN_MODEL", "it is not served", []),
        ("FAILED", "model m/1: is loaded nowhere", []),
        ("CANCELLED", "", []),
        ("LOST", "worker/0 has disconnected", []),
        ("REFUSED", Reason.QUEUE_FULL.sentence, ["Fewer queued requests, or a higher `controller.max_queued`."]),
        ("REFUSED", Reason.LOAD_BACKOFF.sentence, ["m/1 resident before it arrived."]),
    ],
)
def test_remedies_are_those_of_the_reason(status: str, reason: str, remedies: list[str]) -> None:
    """The model was not resident. That is a cause for none of the requests but the last."""
    request = RequestHistory("c", 1, "", "m", 0, FRONTEND, 1, ms(100), answered_ns=ms(2), status=status, reason=reason)
    request.submits = [SubmitHistory(FRONTEND, 1, "m/1", ms(1), ms(99), ms(2), shares=1, status=status, reason=reason)]
    assert explain(request).remedies == remedies


def test_a_request_without_a_worker_is_not_explained_by_other_requests(tmp_path: Path) -> None:
    scenario = a_scenario(
        an_entry("m", slo_ns=ms(20)),
        load=[poisson(400)],
        duration_ns=ms(800),
        faults=(Fault(ms(400), "worker/0"),),
    )
    path = recorded(tmp_path, SimulatedCluster(scenario))
    client, answer = list(answers(path, Status.REFUSED))[-1]
    explanation = explain(the_request(path, client, answer.id))
    assert answer.reason == Reason.NO_WORKER.sentence
    assert answer.reason in explanation.verdict
    assert explanation.remedies == ["A connected worker that serves m/1."]


@pytest.mark.parametrize(
    ("slo_ms", "rows", "delay_ms", "fewer_rows"), [(8, 8, 0.06, 4), (2.1, 1, 0.06, 0), (4, 1, 1, 0), (7, 8, 0.5, 2)]
)
def test_a_request_that_cannot_be_in_time_even_alone_shows_how_its_time_divides(
    tmp_path: Path, slo_ms: float, rows: int, delay_ms: float, fewer_rows: int
) -> None:
    model, other = an_entry("m", slo_ns=round(slo_ms * 1e6)), an_entry("other", slo_ns=ms(50))
    load = [poisson(100, models=("m",), rows=rows), poisson(300, models=("other",))]
    scenario = a_scenario(model, other, load=load, duration_ns=ms(600), split=True)
    scenario = with_network(scenario, delay_ns=round(delay_ms * 1e6))
    path = recorded(tmp_path, SimulatedCluster(scenario))
    refused = explanations(path, Status.REFUSED)
    refused = [pair for pair in refused if Reason.EXECUTION_TOO_LONG.sentence in pair[1].verdict]
    assert refused
    for request, explanation in refused:
        (submit,) = request.submits
        (needs,) = [line for line in explanation.ahead if line.startswith("Even alone it needs more than its ")]
        budget_ms, way_ms, worker_ms, execution_ms, return_ms = map(float, re.findall(r"[\d.]+(?= ms)", needs))
        missing_ms = submit.missing_ns / 1e6
        assert way_ms == pytest.approx((submit.arrived_ns - request.arrived_ns) / 1e6, abs=0.001)
        assert execution_ms == submit.expected_ns / 1e6
        assert way_ms + worker_ms + execution_ms + return_ms == pytest.approx(budget_ms + missing_ms, abs=0.005)
        fewer = [f"At most {fewer_rows} row" in remedy for remedy in explanation.remedies]
        assert any(fewer) == bool(fewer_rows)
        assert explanation.remedies[0] == f"A deadline at least {missing_ms:.3f} ms later."
        assert not any("share" in remedy or "ahead" in remedy for remedy in explanation.remedies)


def test_a_slow_way_to_the_controller_is_a_cause_of_its_own() -> None:
    request = RequestHistory("c", 1, "", "m", 0, "frontend/0#1", 1, ms(2), answered_ns=ms(1.2), status="REFUSED")
    submit = SubmitHistory("frontend/0#1", 1, "m/1", ms(1), ms(1.9), us(10), shares=1, resident=1)
    submit.status, submit.reason = "REFUSED", Reason.EXECUTION_TOO_LONG.sentence
    submit.missing_ns, submit.dispatch_ns, submit.running = us(300), us(900), [Work("other/1", 1, 1, ms(2))]
    request.submits = [submit]
    remedies = explain(request).remedies
    assert remedies == [
        "A deadline at least 0.300 ms later.",
        "A way from the frontend to the controller that takes 0.300 ms less.",
    ]


def test_a_request_behind_a_model_that_hangs_does_not_blame_its_own_model(tmp_path: Path) -> None:
    scenario = a_scenario(
        an_entry("m", {1: 4.0}, slo_ns=ms(20)),
        an_entry("other", {1: 4.0}, slo_ns=ms(20)),
        load=[poisson(220)],
        duration_ns=ms(1200),
        faults=(Fault(ms(320), "worker/0", "slow", factor=1000.0),),
    )
    path = recorded(tmp_path, SimulatedCluster(scenario))
    requests = [the_request(path, client, answer.id) for client, answer in answers(path, Status.LATE)]
    hung = [explain(request).verdict for request in requests if request.submits[0].attempts[-1].failed_ns]
    models = {re.search(r": (\S+) hung on worker/0", verdict) for verdict in hung}
    assert len({found and found[1] for found in models}) == 1, hung
    assert len({verdict.split(" ended")[0] for verdict in hung}) == 2, "requests for both models wait behind one"


FAILURES = [
    ("model sum/1: no answer within 1 s (`timeout` in model.toml)", 1000),
    ("model sum/1: process ended (exit code 3)", 5),
]


@pytest.mark.parametrize(("reason", "took_ms"), FAILURES)
@pytest.mark.parametrize("answered", [Status.FAILED, Status.LATE])
def test_a_model_that_fails_is_named_with_its_reason_and_without_a_deadline(
    reason: str, took_ms: float, answered: Status
) -> None:
    controller = a_controller()
    request = RequestHistory("c", 1, "", "sum", 0, FRONTEND, 1, ms(100))
    observer = ControllerObserver({(FRONTEND, 1): (request, "")})

    def observe(now_ns: int, sender: str, message: Any) -> list[Any]:
        observer.observe_message(now_ns, controller, sender, message, ())
        controller.handle(now_ns, sender, message, ())
        controller.tick(now_ns)
        outs, controller.out = controller.out, []
        observer.observe_tick(now_ns, controller, outs)
        return [out.message for out in outs]

    controller.out.clear()
    sent = observe(ms(10), FRONTEND, Submit(1, MODEL, ms(90), 1, FRONTEND, 1))
    (infer,) = [message for message in sent if isinstance(message, Infer)]
    rows = (RowStatus(0, 0, int(Status.FAILED), reason),)
    end_ns = ms(10 + took_ms)
    observe(end_ns, WORKER, Result(infer.action_id, int(Status.OK), ms(10), end_ns, rows=rows))
    request.status, request.answered_ns = answered.name, end_ns
    explanation = explain(request)
    assert explanation.verdict.endswith(f"sum/1 failed on worker/0 after {took_ms:.3f} ms: {reason}")
    assert explanation.remedies == []
    assert "worker/0 hung" not in str(explanation)
