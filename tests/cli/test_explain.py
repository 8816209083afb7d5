"""`horologe explain`: a recording tells why a request was refused, late or slow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from cli.explained_recordings import answers, explanations, the_request
from horologe_cli.main import app
from horologe_common.clock import ms, s
from horologe_common.recording.recorder import Recorder, RecorderSettings
from horologe_common.status import Status
from horologe_gpu_worker.settings import WorkerSettings
from horologe_sim.explaining.recorded_requests import find_requests
from horologe_sim.explaining.request_explanation import explain
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from sim.sim_builders import a_scenario, an_entry, poisson, recorded, recorded_slow_worker

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def overloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scenario = a_scenario(
        an_entry("m", slo_ns=ms(30)), an_entry("other", slo_ns=ms(20)),
        load=[poisson(700, models=("m",)), poisson(700, models=("other",))], duration_ns=ms(800),
    )  # fmt: skip
    return recorded(tmp_path_factory.mktemp("recordings"), SimulatedCluster(scenario))


def test_a_refused_request_names_the_work_ahead(overloaded: Path) -> None:
    refused = [(to, answer) for to, answer in answers(overloaded, Status.REFUSED) if answer.retry_after_ns]
    client, answer = refused[len(refused) // 2]
    request = the_request(overloaded, client, answer.id)
    assert (request.status, request.submits[0].status) == ("REFUSED", "REFUSED")
    explanation = explain(request)
    assert answer.reason in explanation.verdict
    assert any("requests for" in line for line in explanation.ahead), explanation.ahead
    assert any(line.startswith("A batch of its own was predicted to take 2.000 ms by ") for line in explanation.ahead)
    assert request.submits[0].missing_ns >= answer.retry_after_ns
    assert explanation.remedies[0] == f"A deadline at least {request.submits[0].missing_ns / 1e6:.3f} ms later."
    assert any("more that can run the models ahead" in remedy for remedy in explanation.remedies)


@pytest.mark.parametrize(("expected_ms", "resident"), [(2, True), (40, False)])
def test_a_resident_model_saves_only_a_request_that_its_execution_leaves_time_for(
    overloaded: Path, expected_ms: float, resident: bool
) -> None:
    client, answer = next(answers(overloaded, Status.REFUSED))
    request = the_request(overloaded, client, answer.id)
    (submit,) = request.submits
    request.submits = [msgspec.structs.replace(submit, resident=0, expected_ns=ms(expected_ms), missing_ns=ms(1))]
    remedies = explain(request).remedies
    assert (f"{submit.model} resident before it arrived." in remedies) == resident
    assert ("A deadline at least 1.000 ms later." in remedies) != resident, "a LOAD takes longer than what was missing"


def test_an_answered_request_is_split_into_parts(overloaded: Path) -> None:
    client, answer = list(answers(overloaded, Status.OK))[50]
    request = the_request(overloaded, client, answer.id)
    explanation = explain(request)
    assert "in time" in explanation.verdict
    assert [part.name for part in explanation.parts][-2:] == ["executing", "back to the client"]
    assert sum(part.took_ns for part in explanation.parts) == request.answered_ns - request.arrived_ns
    executing = next(part for part in explanation.parts if part.name == "executing")
    assert executing.took_ns == pytest.approx(answer.exec_ns, abs=ms(0.1))
    assert explanation.remedies == []


def test_a_late_request_names_the_deviation_from_the_plan(tmp_path: Path) -> None:
    path = recorded_slow_worker(tmp_path, 400, 400, 3.0)
    late = [(to, answer) for to, answer in answers(path, Status.LATE)]
    explained = [explain(the_request(path, client, answer.id)) for client, answer in late]
    assert explained
    assert all("LATE" in explanation.verdict for explanation in explained)
    assert any("its batch took 10.000 ms longer than predicted" in explanation.verdict for explanation in explained)
    assert any("Batches before it as fast as predicted." in explanation.remedies for explanation in explained)


def test_an_execution_that_outlasts_the_answer_is_counted_to_its_end(tmp_path: Path) -> None:
    """The frontend's timer answers LATE soon after the deadline, and the execution ends 180 ms after it or later."""
    path = recorded_slow_worker(tmp_path, 20, 300, 100.0)
    requests = [the_request(path, client, answer.id) for client, answer in answers(path, Status.LATE)]
    explained = [(one, explain(one)) for one in requests if one.submits[0].attempts[-1].status == "OK"]
    assert explained
    for request, explanation in explained:
        (submit,) = request.submits
        late = f"{(submit.attempts[-1].end_ns - submit.deadline_ns) / 1e6:.3f} ms"
        assert f"without outputs; its execution ended {late} after" in explanation.verdict
        assert explanation.remedies[0] == f"A deadline {late} later."


def test_a_cold_start_shows_its_load_and_the_evicted_models(tmp_path: Path) -> None:
    scenario = a_scenario(
        an_entry("m", count=4, load_ms=30.0, slo_ns=ms(200)),
        load=[poisson(15)],
        worker=WorkerSettings(pages_bytes=2 << 24),
        duration_ns=s(2),
    )
    path = recorded(tmp_path, SimulatedCluster(scenario))
    cold = [(request, one) for request, one in explanations(path, Status.OK) if not request.submits[0].resident]
    assert cold
    assert all(request.submits[0].load.model == request.submits[0].model for request, _ in cold)
    for request, explanation in cold:
        load, ahead = request.submits[0].load, " ".join(explanation.ahead)
        assert "Its LOAD on worker/0, share 0, was predicted to take 30.000 ms" in ahead
        assert "loading its model" in [part.name for part in explanation.parts]
        assert all(f"{model} had been evicted" in ahead for model in load.evicted[-1:])
    assert any(request.submits[0].load.evicted for request, _ in cold)


def test_the_measurements_of_a_prediction_are_named(overloaded: Path) -> None:
    (to, answer), *_, (last_to, last_answer) = answers(overloaded, Status.OK)
    first, last = (explain(the_request(overloaded, *who)).ahead for who in ((to, answer.id), (last_to, last_answer.id)))
    assert any("predicted 2.000 ms by the profile, took" in line for line in first), first
    assert any(" by the last " in line for line in last), last


def test_recordings_that_overlap_contain_a_request_once(tmp_path: Path) -> None:
    scenario = a_scenario(an_entry("m", slo_ns=ms(30)), load=[poisson(1400)], duration_ns=ms(300))
    cluster = SimulatedCluster(scenario)
    recorder = Recorder(RecorderSettings(str(tmp_path)), "sim")
    cluster.world.observer = recorder
    cluster.run()
    paths = [path for path in (recorder.write("asked"), recorder.write("stop")) if path]
    for status in (Status.OK, Status.REFUSED):
        *_, (client, answer) = answers(paths[0], status)
        (request,) = find_requests(paths, f"{client}:{answer.id}")
        assert request == the_request(paths[0], client, answer.id)


def test_the_command_prints_json_and_text(overloaded: Path) -> None:
    client, answer = next(answers(overloaded, Status.REFUSED))
    arguments = ["explain", f"{client}:{answer.id}", "--recording", str(overloaded.parent)]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    (entry,) = json.loads(result.output)
    assert entry["request"]["status"] == "REFUSED"
    assert entry["explanation"]["verdict"]
    text = CliRunner().invoke(app, arguments)
    assert text.exit_code == 0
    assert entry["explanation"]["verdict"] in text.output


def test_an_unknown_id_and_a_missing_recording_are_errors(overloaded: Path, tmp_path: Path) -> None:
    unknown = CliRunner().invoke(app, ["explain", "no-such-id", "--recording", str(overloaded)])
    assert unknown.exit_code == 1
    missing = CliRunner().invoke(app, ["explain", "1", "--recording", str(tmp_path)])
    assert missing.exit_code == 2


def test_a_recording_that_is_not_readable_is_named(overloaded: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.rec"
    damaged.write_bytes(
        overloaded.read_bytes().replace(b"horologe_frontend.core.frontend", b"horologe_frontend.core.frontenb")
    )
    result = CliRunner().invoke(app, ["explain", "none-has-this", "--recording", str(damaged)])
    assert result.exit_code != 0
    assert "in none of 1 recordings; a part of damaged.rec is not readable: snapshot" in " ".join(result.output.split())
