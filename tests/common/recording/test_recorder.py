"""The ring of a recorder, and its file."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from horologe_common.clock import ms
from horologe_common.core.hosting import CoreHost, NoTransport, raise_fault
from horologe_common.core.protocol import Out, PeerConnected
from horologe_common.recording.recorder import Recorder, RecorderSettings, install
from horologe_common.recording.recording_file import (
    Called,
    Entry,
    Handled,
    Segment,
    Ticked,
    read_segments,
    write_segments,
)
from horologe_common.recording.snapshot import Zeros, restore, snapshot, strip_tensors
from horologe_common.wire import Ping, Pong, Predict, Tensor
from horologe_gpu_worker.core.lanes import Finished

if TYPE_CHECKING:
    from pathlib import Path


class Echo:
    """A core that says what it hears, and counts."""

    __module__ = "horologe_common.core.protocol"
    address = "selector/0#1"
    strange: Any

    def __init__(self) -> None:
        self.out: list[Out] = []
        self.heard: list[int] = []

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Any) -> None:
        self.heard.append(message.sent_ns)
        self.out.append(Out(sender, Pong(message.sent_ns, now_ns)))

    def tick(self, now_ns: int) -> None: ...

    def wakeup_ns(self) -> int | None:
        return None


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> Echo:
    import horologe_common.core.protocol

    for cls in (Echo, Drains):
        monkeypatch.setattr(horologe_common.core.protocol, cls.__name__, cls, raising=False)
    return Echo()


def tell(recorder: Recorder, core: Any, now_ns: int) -> None:
    """Hand the core one message and one tick, as a reactor does."""
    recorder.observe_message(now_ns, core, "controller/0#1", Ping(now_ns), ())
    core.handle(now_ns, "controller/0#1", Ping(now_ns), ())
    core.tick(now_ns)
    outs, core.out = core.out, []
    recorder.observe_tick(now_ns, core, outs)


def written_segments(recorder: Recorder) -> list[Segment]:
    path = recorder.write("stop")
    assert path is not None
    return list(read_segments(path))


def test_the_ring_is_bounded_and_each_segment_starts_from_a_snapshot(tmp_path: Path, echo: Echo) -> None:
    recorder = Recorder(RecorderSettings(str(tmp_path), messages=10), "p", 3)
    for now_ns in range(100):
        tell(recorder, echo, now_ns)
    segments = written_segments(recorder)
    assert [len(segment.entries) for segment in segments] == [10, 10, 0]
    heard = [len(restore(segment.snapshot).heard) for segment in segments]
    assert heard == [90, 95, 100]
    first = segments[0].entries
    assert first[0] == Handled(90, "controller/0#1", Ping(90))
    assert first[1] == Ticked(90, (("controller/0#1", Pong(90, 90), ()),))


@pytest.mark.parametrize(("roles", "recorded"), [((), True), (("controller", "selector"), True), (("worker",), False)])
def test_only_cores_of_the_roles_asked_for_are_recorded(
    tmp_path: Path, echo: Echo, roles: tuple[str, ...], recorded: bool
) -> None:
    recorder = Recorder(RecorderSettings(str(tmp_path), roles=roles), "p")
    tell(recorder, echo, 1)
    assert [segment.core for segment in written_segments(recorder)] == [echo.address] * recorded


class Drains(Echo):
    """An `Echo` that observes turns and says when it drains."""

    def end_turn(self, now_ns: int, took_ns: int) -> None: ...

    def drain(self) -> None:
        self.out.append(Out("controller/0#1", Pong(0, 0)))

    def drained(self) -> bool:
        return True


@pytest.mark.usefixtures("echo")
def test_the_duration_of_a_turn_and_a_drain_are_recorded(tmp_path: Path) -> None:
    core, recorder = Drains(), Recorder(RecorderSettings(str(tmp_path)), "p")
    host = CoreHost([core], lambda: ms(7), NoTransport(), raise_fault)
    host.observer = recorder
    host.run_turn([(core.address, "controller/0#1", Ping(1), ())])
    host.end_turn(ms(8), ms(1))
    host.drain_core(core)
    host.run_turn()
    (segment,) = written_segments(recorder)
    kinds = [type(entry) for entry in segment.entries]
    assert kinds == [Handled, Ticked, Called, Called, Ticked]
    assert segment.entries[2:4] == [Called(ms(8), "end_turn", (ms(8), ms(1))), Called(ms(7), "drain")]


def test_a_call_of_any_other_method_is_not_read(tmp_path: Path, echo: Echo) -> None:
    path = tmp_path / "evil.rec"
    with path.open("wb") as file:
        segment = Segment(echo.address, 0, snapshot(echo), [])
        segment.entries.append(Called(1, "__init__"))
        write_segments(file, [segment], "stop")
    (segment,) = read_segments(path)
    assert not segment.entries
    assert "method: got '__init__', wanted one of end_turn, drain" in segment.damage


def test_a_fault_is_written_out_after_its_turn_and_not_every_time(tmp_path: Path, echo: Echo) -> None:
    recorder = Recorder(RecorderSettings(str(tmp_path)), "p")
    begin_ns = 10**12
    for now_ns in range(begin_ns, begin_ns + 3):
        recorder.observe_message(now_ns, echo, "x", Ping(1), ())
        recorder.observe_fault(now_ns, echo)
        recorder.observe_tick(now_ns, echo, [])
    assert [file.name for file in tmp_path.iterdir()] == ["p-001-fault.rec"]
    assert [len(one.entries) for one in read_segments(tmp_path / "p-001-fault.rec")] == [2]


def test_a_signal_asks_and_no_directory_means_off(tmp_path: Path, echo: Echo) -> None:
    class Hosting:
        observer: Any = None

    before = signal.getsignal(signal.SIGUSR1)
    try:
        off, on = Hosting(), Hosting()
        assert install(off, RecorderSettings(), "p") is off.observer is None  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGUSR1)  # would end the process by default
        recorder = install(on, RecorderSettings(str(tmp_path / "new" / "folder")), "p")  # type: ignore[arg-type]
        assert recorder is on.observer is not None
        os.kill(os.getpid(), signal.SIGUSR1)
        tell(recorder, echo, 1)
        assert (tmp_path / "new" / "folder" / "p-001-asked.rec").is_file()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_folder_that_cannot_be_written_is_no_fault_of_the_core(tmp_path: Path, echo: Echo) -> None:
    (tmp_path / "file").write_text("")
    recorder = Recorder(RecorderSettings(str(tmp_path / "file")), "p")
    tell(recorder, echo, 1)
    assert recorder.write("stop") is None


def test_a_core_that_cannot_be_taken_apart_is_left_alone(tmp_path: Path, echo: Echo) -> None:
    recorder = Recorder(RecorderSettings(str(tmp_path)), "p")
    echo.strange = (one for one in "xy")
    for now_ns in range(3):
        tell(recorder, echo, now_ns)
    assert written_segments(recorder) == []


def test_messages_survive_the_file_without_their_tensors(tmp_path: Path) -> None:
    tensor = Tensor("x", "FP32", (1, 4), 16)
    finished = Finished(1, "exec", 0, 5, 6, outputs=[(tensor, b"\1" * 16)], staged=object())
    told: list[Entry] = [
        Handled(1, "a", Predict(1, "m", "", 5, (tensor,)), (16,)),
        Handled(2, "b", PeerConnected("worker/0#1", "host")),
        Handled(3, "c", strip_tensors(finished)),
        Ticked(4, (("d", Ping(3), ()),)),
    ]
    file = tmp_path / "x.rec"
    with file.open("wb") as opened:
        write_segments(opened, [Segment("a/0#1", 0, b"", told)], "test")
    assert next(iter(read_segments(file))).entries == told
    assert strip_tensors(finished).outputs == ((tensor, Zeros(16)),)
    assert strip_tensors(finished).staged is None
