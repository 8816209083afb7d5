"""Recordings of a world, replayed: the cores do again what they did, and a changed one is found out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fakes.key_entries import entry
from frontend.frontend_builders import CLIENT, a_frontend
from harness.builders import a_predict, some_bytes
from horologe_common.clock import ms, us
from horologe_common.models import ModelSpec, TensorSpec
from horologe_common.recording.recorder import Recorder, RecorderSettings
from horologe_common.status import Status
from horologe_common.string_tensors import join_strings
from horologe_common.wire import Admit, Models, Predict, Tensor
from horologe_controller.core.actions import Actions
from horologe_frontend.audit import write_call
from horologe_frontend.core.access import KeysReplaced
from horologe_sim.replay import replay_recording
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from sim.sim_builders import a_scenario, an_entry, kill, poisson, recorded, stall, with_network

if TYPE_CHECKING:
    from pathlib import Path

    from horologe_common.core.protocol import Out
    from horologe_frontend.core.frontend import Frontend


@pytest.mark.parametrize("messages", [700, 20_000])
@pytest.mark.parametrize("split", [False, True])
def test_every_core_does_again_what_it_did(tmp_path: Path, messages: int, split: bool) -> None:
    scenario = a_scenario(
        an_entry(),
        an_entry("apart", input_ms=0.2, output_ms=0.1),
        an_entry("cached", cache=True),
        load=[poisson(300, rows=2, cancel_share=0.1, cancel_ns=ms(2)), poisson(900, for_ns=ms(500))],
        workers=2,
        split=split,
        faults=(kill("worker/1", 600, 200), stall("worker/0", 1300, 40)),
    )
    report = replay_recording(recorded(tmp_path, SimulatedCluster(scenario), messages))
    assert report.identical, report.table()
    assert {core.partition("/")[0] for core in report.cores} == {"frontend", "selector", "controller", "worker"}
    assert all(core.faults == 0 and core.ticks > 50 for core in report.cores.values())
    assert report.cores["controller/0#00000001"].handled["Submit"] > 100


def test_the_durations_of_turns_are_replayed(tmp_path: Path) -> None:
    scenario = a_scenario(load=[poisson(3000)], duration_ns=ms(300))
    path = recorded(tmp_path, SimulatedCluster(with_network(scenario, message_ns=us(17), turn_ns=us(30))))
    report = replay_recording(path)
    assert report.identical, report.table()


def test_requests_with_strings_are_replayed(tmp_path: Path) -> None:
    """A recording has no bytes of tensors. The strings of a replay must fill their tensors too."""
    tensors = (TensorSpec("x", "BYTES", (-1, 2)),)
    frontend = a_frontend(ModelSpec("text", "1", "onnx", tensors, tensors, (1, 2, 4), text=True))
    recorder = Recorder(RecorderSettings(str(tmp_path)), "frontend")
    for number, words in enumerate(([b"a", b"bc"], [b"", b""], [b"a\0", b"d" * 300, b"", b"x"]), 1):
        payload = join_strings(words)
        predict = Predict(number, "text", "", ms(50), (Tensor("x", "BYTES", (len(words) // 2, 2), len(payload)),))
        record_turn(recorder, frontend, predict, payload)
    assert replayed(recorder, frontend) == {"Submit": 3, "Ping": 2}


def test_audited_calls_are_replayed(tmp_path: Path) -> None:
    """The audit log is written by a function that a recording does not contain."""
    frontend = a_frontend()
    frontend.set_audit(write_call)
    recorder = Recorder(RecorderSettings(str(tmp_path)), "frontend")
    [forwarded] = record_turn(recorder, frontend, Admit(1, "sum", "", True))
    record_turn(recorder, frontend, Models(forwarded.message.id, ()), sender=forwarded.to)
    assert replayed(recorder, frontend) == {"Admit": 1, "Models": 1}


def test_a_change_of_the_key_file_is_replayed(tmp_path: Path) -> None:
    frontend = a_frontend()
    before, after = entry("first key", infer=("sum",)), entry("second key", infer=("other",), rate=2.0)
    frontend.access.replace_keys({"bob": before})
    recorder = Recorder(RecorderSettings(str(tmp_path)), "frontend")
    outs = record_turn(recorder, frontend, a_predict(1), some_bytes(), sender="user/02:bob")
    record_turn(recorder, frontend, KeysReplaced((("bob", after),)), sender=frontend.address)
    record_turn(recorder, frontend, KeysReplaced(()), sender=CLIENT)  # only the host may replace them
    outs += record_turn(recorder, frontend, a_predict(2), some_bytes(), sender="user/02:bob")
    assert [type(out.message).__name__ for out in outs] == ["Query", "Answer"]
    assert outs[1].message.status == Status.FORBIDDEN
    assert replayed(recorder, frontend) == {"Answer": 1, "Query": 1}
    (recording,) = tmp_path.iterdir()
    assert b"bob" in recording.read_bytes()
    assert b"first key" not in recording.read_bytes()


def record_turn(
    recorder: Recorder, frontend: Frontend, message: Any, *buffers: bytes, sender: str = CLIENT
) -> list[Out]:
    """Record a turn of a frontend that handles a message. Return what it sends."""
    recorder.observe_message(0, frontend, sender, message, buffers)
    frontend.handle(0, sender, message, buffers)
    frontend.tick(0)
    outs, frontend.out = frontend.out, []
    recorder.observe_tick(0, frontend, outs)
    return outs


def replayed(recorder: Recorder, frontend: Frontend) -> dict[str, int]:
    """Replay the recording. Return how many messages of each kind the frontend has sent."""
    path = recorder.write("stop")
    assert path is not None
    report = replay_recording(path)
    assert report.identical, report.table()
    return report.cores[frontend.address].put_out


def test_one_core_and_a_part_of_the_time(tmp_path: Path) -> None:
    path = recorded(tmp_path, SimulatedCluster(a_scenario()))
    whole = replay_recording(path, core="controller")
    part = replay_recording(path, core="controller", until_s=0.5)
    assert list(whole.cores) == list(part.cores) == ["controller/0#00000001"]
    first, second = part.cores["controller/0#00000001"], whole.cores["controller/0#00000001"]
    assert part.identical
    assert first.seconds <= 0.5 < second.seconds
    assert first.ticks < second.ticks


@pytest.mark.interpreted
def test_the_first_difference_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recorded(tmp_path, SimulatedCluster(a_scenario()))
    start = Actions._start_batch

    def late(self: Actions, now_ns: int, batch: object) -> list[Out]:
        return start(self, now_ns + 1, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(Actions, "_start_batch", late)
    report = replay_recording(path)
    assert not report.identical
    difference = report.cores["controller/0#00000001"].difference
    assert "'Infer'" in difference
    assert "recorded is" in difference
    assert json.loads(report.to_json())["identical"] is False
    assert "differs" in report.table()


@pytest.mark.interpreted
def test_a_fault_is_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recorded(tmp_path, SimulatedCluster(a_scenario()))

    def broken(self: Actions, now_ns: int, batch: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(Actions, "_start_batch", broken)
    core = replay_recording(path, core="controller").cores["controller/0#00000001"]
    assert core.faults > 0
    assert "ZeroDivisionError: oh" in core.fault
