"""`benchmarks/sharing.py`: its MPS control daemon, its model repository, and the command that it runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import sharing
from bench_gpu.nets import TINY
from horologe_gpu_worker.runtimes import RUNTIMES

DAEMON = f"""#!{sys.executable}
import os, pathlib, sys
control = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]) / "control"
if "-d" in sys.argv:
    control.touch()
else:
    pathlib.Path(os.environ["LOG"]).write_text(sys.stdin.read() + str(control.exists()))
"""


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a pretend MPS control daemon. Return the file of its log."""
    program = tmp_path / "bin" / sharing.DAEMON
    program.parent.mkdir()
    program.write_text(DAEMON)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.delenv(sharing.PIPES, raising=False)
    return tmp_path / "log"


def test_a_daemon_runs_while_it_is_needed(daemon: Path) -> None:
    with sharing.mps_daemon() as environment:
        pipes = Path(environment[sharing.PIPES])
        assert (pipes / "control").exists()
        assert not daemon.exists()
    assert daemon.read_text() == "quit\nTrue"
    assert not pipes.exists()


def test_a_daemon_that_runs_already_is_used(daemon: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "control").touch()
    monkeypatch.setenv(sharing.PIPES, str(tmp_path))
    with sharing.mps_daemon() as environment:
        assert environment[sharing.PIPES] == str(tmp_path)
    assert not daemon.exists()


def test_networks_are_models_of_a_repository(tmp_path: Path) -> None:
    sharing.write_repository(tmp_path, ["resnet50"], TINY)
    spec = RUNTIMES["pytorch"]().inspect(tmp_path / "resnet50" / "1")
    assert spec.batch_sizes == (1, 8, 16)


def test_the_command_ends_with_the_exit_code_of_horologe_measure(
    daemon: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["resnet50", "--output", str(tmp_path / "out.json"), "--assume", "k9=1"]
    assert sharing.main(arguments, TINY) == 2
    assert "--assume: got 'k9=1'" in capfd.readouterr().err
    assert daemon.exists()
