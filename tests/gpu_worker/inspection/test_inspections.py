"""Models that hang, crash or are slow while they are inspected: the others are served, and the reason is named."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from gpu_worker.inspection_harness import RunningScans
from harness.model_folders import (
    ECHO,
    SIGNATURE,
    a_folder,
    a_graph,
    a_python_model,
    a_pytorch_model,
    an_emulated_model,
    an_onnx_model,
)
from harness.waiting import is_running, until
from horologe_common.status import UnknownModel
from horologe_gpu_worker.runtimes.python import python_runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Run = Callable[..., RunningScans]

HANG = "import time\ntime.sleep(1e6)\n"
WARM_UP = """
class Model:
    runs = 0
    def predict_batch(self, inputs):
        Model.runs += 1
        while Model.runs > {runs}:
            pass
        return {{"y": inputs["x"]}}
"""
HANGS = {
    "in its import, with the interpreter's lock": "import ctypes\nctypes.PyDLL(None).sleep(1000000)\n",
    "in a loop of its import": "while True: pass\n",
    "in its constructor": ECHO + "    def __init__(self):\n        import time\n        time.sleep(60)\n",
    "while it is measured": WARM_UP.format(runs=4),
    "and ignores signals": "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + HANG,
    "in a child that it waits for": "import subprocess\nsubprocess.run(['sleep', '1000000'])\n",
}
CRASHES = {
    "exit": ("import os\nos._exit(7)\n", "process ended (exit code 7)"),
    "SystemExit": ("raise SystemExit(3)\n", "process ended (exit code 3)"),
    "signal": ("import os\nos.kill(os.getpid(), 11)\n", "process ended (SIGSEGV)"),
    "out of memory": ("x = bytearray(1 << 42)\n", "MemoryError"),
    "late": ("import time\ntime.sleep(1)\nraise RuntimeError('no licence')\n", "no licence"),
}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    (tmp_path / "models").mkdir()
    running: list[RunningScans] = []

    def start(**settings: Any) -> RunningScans:
        running.append(RunningScans(tmp_path, **settings))
        return running[-1]

    yield start
    for scans in running:
        scans.scans.stop()


@pytest.mark.parametrize("source", HANGS.values(), ids=HANGS)
def test_a_model_that_hangs_does_not_delay_the_others(tmp_path: Path, run: Run, source: str) -> None:
    a_python_model(tmp_path / "models", source, name="bad", load_timeout='"1000s"', timeout='"1000s"')
    a_python_model(tmp_path / "models", name="code")
    an_emulated_model(tmp_path / "models")
    scans = run()
    scans.begin_all()
    scans.wait_served("code", "pretend")
    assert scans.is_loading("bad")


@pytest.mark.parametrize("kind", ["in its import, with the interpreter's lock", "while it is measured"])
def test_a_model_that_hangs_is_stopped_at_its_timeout(tmp_path: Path, run: Run, kind: str) -> None:
    a_python_model(tmp_path / "models", HANGS[kind], name="bad", load_timeout='"3s"', timeout='"1000s"')
    (report,) = run().scan("bad")
    assert report.profile is None
    assert "load_timeout" in report.reason
    assert "3 s" in report.reason


@pytest.mark.parametrize(("source", "wanted"), CRASHES.values(), ids=CRASHES)
def test_a_model_that_ends_its_process_is_unavailable_with_the_reason(
    tmp_path: Path, run: Run, source: str, wanted: str
) -> None:
    a_python_model(tmp_path / "models", source, name="bad")
    an_onnx_model(tmp_path / "models")
    scans = run()
    scans.begin_all()
    scans.wait_served("graph")
    until(lambda: not scans.is_loading("bad"))
    assert wanted in scans.reports["bad/1"].reason


def test_a_graph_that_loops_in_c_is_stopped(tmp_path: Path, run: Run) -> None:
    a_folder(
        tmp_path / "models", "loop", 'batch_sizes = [1]\nload_timeout = "3s"\n', model_onnx=looping_graph(turns=1 << 62)
    )
    a_folder(tmp_path / "models", "brief", "batch_sizes = [1]\n", model_onnx=looping_graph(turns=3))
    scans = run()
    scans.begin_all()
    scans.wait_served("brief")
    until(lambda: not scans.is_loading("loop"))
    assert "got no result within 3 s, while loading loop/1" in scans.reports["loop/1"].reason


def test_a_huge_file_is_not_read_for_ever(tmp_path: Path, run: Run) -> None:
    huge = a_python_model(tmp_path / "models", name="huge", load_timeout='"2s"')
    with (huge / "weights.bin").open("wb") as file:
        file.truncate(200 << 30)
    a_python_model(tmp_path / "models", name="code")
    scans = run()
    scans.begin_all()
    scans.wait_served("code")
    until(lambda: not scans.is_loading("huge"))
    assert "got no result within 2 s, while reading its files" in scans.reports["huge/1"].reason


def test_a_process_that_is_killed_while_it_inspects_is_named(tmp_path: Path, run: Run) -> None:
    """As the kernel does if memory runs out."""
    huge = a_python_model(tmp_path / "models", name="huge")
    with (huge / "weights.bin").open("wb") as file:
        file.truncate(200 << 30)
    scans = run()
    scans.begin("huge")
    until(lambda: scans.progress.get("huge/1") == ["reading its files"])
    for pid in inspecting_children():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not scans.is_loading("huge"))
    assert "its process ended (SIGKILL) while reading its files" in scans.reports["huge/1"].reason


@pytest.mark.parametrize("file", ["model.py", "model.toml", "weights.bin"])
def test_a_fifo_among_the_files_is_not_waited_for(tmp_path: Path, run: Run, file: str) -> None:
    folder = a_python_model(tmp_path / "models", name="pipe")
    (folder / file).unlink(missing_ok=True)
    os.mkfifo(folder / file)
    an_emulated_model(tmp_path / "models")
    scans = run(load_timeout_ns=5_000_000_000)
    scans.begin_all()
    scans.wait_served("pretend")
    until(lambda: not scans.is_loading("pipe"))


def test_more_hanging_models_than_places_do_not_keep_the_others_waiting(tmp_path: Path, run: Run) -> None:
    """The first four hold all places, and one more is stopped to make room and begun again later."""
    for number in range(4):
        a_python_model(tmp_path / "models", HANG, name=f"a-hang-{number}", load_timeout='"3s"')
    an_emulated_model(tmp_path / "models", name="z-fine")
    scans = run(inspections=2, quantum_ns=500_000_000, slow_max=1)
    scans.begin_all()
    scans.wait_served("z-fine")
    assert any(scans.is_loading(f"a-hang-{number}") for number in range(4))
    until(lambda: not any(scans.is_loading(f"a-hang-{number}") for number in range(4)))
    assert all("within 3 s" in scans.reports[f"a-hang-{number}/1"].reason for number in range(4))


def test_a_version_is_served_while_another_of_the_model_is_loading(tmp_path: Path, run: Run) -> None:
    a_python_model(tmp_path / "models", name="code")
    second = a_folder(tmp_path / "models", "code", SIGNATURE, "2", model_py=HANG)
    (second / "model.toml").write_text('load_timeout = "4s"\nbatch_sizes = [1]\n' + SIGNATURE)
    scans = run()
    scans.begin("code")
    scans.wait_served("code")
    assert scans.finished.empty()
    assert scans.store.spec("code/1").batch_sizes == (1, 2)
    finished = scans.finished.get(timeout=15)
    assert [bool(report.profile) for report in finished.models] == [True, False]


def test_what_is_done_to_a_model_is_reported(tmp_path: Path, run: Run) -> None:
    an_onnx_model(tmp_path / "models")
    scans = run()
    assert [report.loading for report in scans.store.list_models()] == ["waiting to be read"]
    scans.scan("graph")
    assert scans.progress["graph/1"] == [
        "reading its files", "loading graph/1", "waiting to measure graph/1",
        "measuring graph/1: batch sizes [1, 2]", "",
    ]  # fmt: skip


def test_a_measured_model_is_not_loaded_again_by_the_next_start(tmp_path: Path, run: Run) -> None:
    counter = tmp_path / "loads"
    a_python_model(tmp_path / "models", f"open({str(counter)!r}, 'a').write('x')\n" + ECHO)
    first, second = run().scan("code"), run().scan("code")
    assert first == second
    assert counter.read_text() == "x"


def test_a_slow_model_is_loaded_once_for_its_measurement_and_its_first_load(tmp_path: Path, run: Run) -> None:
    counter = tmp_path / "loads"
    source = f"import time\nopen({str(counter)!r}, 'a').write('x')\ntime.sleep(1.1)\n"
    a_python_model(tmp_path / "models", source + ECHO)
    scans = run()
    (report,) = scans.scan("code")
    assert scans.store.is_open("code/1")
    model = scans.store.open(report.spec)
    assert not scans.store.is_open("code/1")
    x = np.ones((2, 4), np.float32)
    assert np.array_equal(model.run(2, {"x": x})["y"], x)
    model.close()
    assert counter.read_text() == "x"


def test_few_processes_wait_for_their_first_load(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_runtime, "KEPT_MAX", 1)
    monkeypatch.setattr(python_runtime, "KEPT_LOAD_NS", 0)
    for name in ("a", "b"):
        a_python_model(tmp_path / "models", f"# {name}\n" + ECHO, name=name)
    scans = run()
    reports = [*scans.scan("a"), *scans.scan("b")]
    assert [scans.store.is_open(report.spec.key) for report in reports] == [False, True]
    (tmp_path / "models" / "b" / "1" / "model.py").write_text("# changed\n" + ECHO)
    (changed,) = scans.scan("b")
    assert scans.store.is_open("b/1")
    scans.store.open(changed.spec).close()


def test_an_unchanged_model_is_not_inspected_again_and_a_changed_one_is(tmp_path: Path, run: Run) -> None:
    folder = an_onnx_model(tmp_path / "models")
    scans = run()
    (first,) = scans.scan("graph")
    assert scans.scan("graph") == (first,)
    (folder / "model.toml").write_text("batch_sizes = [4]\n")
    (changed,) = scans.scan("graph")
    assert changed.spec.batch_sizes == (4,)
    (folder / "model.onnx").write_bytes(b"broken")
    (broken,) = scans.scan("graph")
    assert broken.profile is None
    with pytest.raises(UnknownModel):
        scans.store.spec("graph/1")


@pytest.mark.parametrize("build", [a_python_model, an_onnx_model, an_emulated_model, a_pytorch_model])
def test_models_of_every_runtime_are_opened_as_they_were_inspected(
    tmp_path: Path, run: Run, build: Callable[[Path], Path]
) -> None:
    name = build(tmp_path / "models").parent.name
    scans = run()
    first = scans.scan(name)
    assert first[0].profile is not None, first[0].reason
    model = scans.store.open(first[0].spec)
    x = np.ones((2, 4), np.float32)
    assert np.array_equal(model.run(2, {"x": x})["y"], x)
    model.close()
    assert scans.scan(name) == first


def test_models_without_versions_or_files_are_reported(tmp_path: Path, run: Run) -> None:
    (tmp_path / "models" / "empty").mkdir()
    (tmp_path / "models" / "empty" / "model.onnx").write_bytes(b"")
    scans = run()
    assert [report.spec.key for report in scans.store.list_models()] == ["empty/"]
    (report,) = scans.scan("empty")
    wanted = tmp_path / "models" / "empty" / "1"
    assert report.reason.endswith(f"empty: got no version folder, wanted {wanted} with the model in it")
    assert scans.scan("nothing") == ()
    assert scans.scan("../models") == ()


def test_stopping_ends_the_processes(tmp_path: Path, run: Run) -> None:
    pid = tmp_path / "pid"
    a_python_model(tmp_path / "models", f"import os\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\n" + HANG)
    scans = run()
    scans.begin("code")
    until(lambda: pid.exists() and pid.read_text())
    scans.scans.stop()
    until(lambda: not is_running(int(pid.read_text())))


def inspecting_children() -> list[int]:
    """Return the processes of this one that inspect models."""
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    pids = [int(pid) for file in children for pid in file.read_text().split()]
    return [pid for pid in pids if b"inspection_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def looping_graph(turns: int) -> bytes:
    """Return a graph with `y` = `x`, which is copied in each turn of a loop."""

    def ends(**kinds: tuple[int, list[Any]]) -> list[Any]:
        return [helper.make_tensor_value_info(name, *kind) for name, kind in kinds.items()]

    flag: tuple[int, list[Any]] = (TensorProto.BOOL, [])
    rows: tuple[int, list[Any]] = (TensorProto.FLOAT, ["rows", 4])
    body = helper.make_graph(
        [helper.make_node("Identity", ["goes"], ["on"]), helper.make_node("Identity", ["before"], ["after"])],
        "body",
        ends(turn=(TensorProto.INT64, []), goes=flag, before=rows),
        ends(on=flag, after=rows),
    )
    loop = helper.make_node("Loop", ["turns", "", "x"], ["y"], body=body)
    return a_graph(loop, inputs={"x": rows}, outputs={"y": rows}, constants=[("turns", np.array(turns))])


def test_a_model_whose_name_is_not_utf8_has_a_reason(tmp_path: Path, run: Run) -> None:
    """Messages have `?` for what UTF-8 cannot encode, also those that name the model to scan."""
    for name in (b"bad\xff\xfe", b"what?", b"what\xff"):
        an_emulated_model(tmp_path / "models", name=os.fsdecode(name))
    scans = run()
    scans.begin_all()
    scans.wait_served("what?")
    until(lambda: "bad??/1" in scans.reports and scans.reports["bad??/1"].reason)
    assert scans.reports["bad??/1"].reason.startswith("name: got 'bad\\udcff\\udcfe', wanted printable characters")
    assert [bool(report.reason) for name in ("bad??", "what?") for report in scans.scan(name)] == [True, False]
