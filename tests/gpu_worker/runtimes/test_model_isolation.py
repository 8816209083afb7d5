"""Isolation of models: no telemetry, an allowlisted environment, another user."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpu_worker.repository_harness import open_model
from harness.model_folders import a_python_model, an_onnx_model
from horologe_cli.local.topology import SystemOptions, build_topology
from horologe_common.service.processes import child_environment, describe_exit, user_options
from horologe_common.service.settings import SettingsError
from horologe_gpu_worker.runtimes.python.python_runtime import PythonRuntime
from horologe_gpu_worker.settings import WorkerSettings, resolve_device

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "redis://:open-sesame@store"
SERVE = """
import sys
from pathlib import Path
from horologe_gpu_worker.repository.modelstore import ModelStore

store = ModelStore(Path("models"), Path("cache"), report=lambda line: None)
(report,) = store.scan()
assert report.profile, report.reason
store.open(report.spec).close()
"""
READS_ITS_ENVIRONMENT = """
import os
from pathlib import Path

class Model:
    def predict_batch(self, inputs):
        seen = [f"{os.getuid()} {os.getgid()} {os.getgroups()}", *(f"{name}={os.environ[name]}" for name in os.environ)]
        try:
            seen.append(Path(f"/proc/{os.getppid()}/environ").read_text())
        except OSError:
            seen.append("unreadable")
        Path(os.environ["REPORT"]).write_text("\\n".join(seen))
        return {"y": inputs["x"]}
"""


def read_report(folder: Path, report: Path, device: WorkerSettings) -> str:
    with open_model(PythonRuntime(device), folder) as model:
        model.run(1, {"x": np.zeros((1, 4), np.float32)})
    return report.read_text()


def test_a_session_of_onnx_runtime_writes_nothing_to_the_home_folder(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    an_onnx_model(tmp_path / "models")
    variables = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    process = subprocess.run(
        [sys.executable, "-c", SERVE], cwd=tmp_path, env=variables | {"HOME": str(home)}, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    assert not list(home.rglob("*"))
    assert {path.name for path in tmp_path.iterdir()} == {"home", "models", "cache"}


def test_a_python_model_gets_no_variable_that_is_not_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPORT", str(tmp_path / "report"))
    for name in ("HOROLOGE_SELECTOR_REDIS", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, SECRET)
    folder = a_python_model(tmp_path, READS_ITS_ENVIRONMENT)
    seen = read_report(folder, tmp_path / "report", WorkerSettings(model_environment=("REPORT",)))
    assert SECRET not in seen


def test_every_exit_of_a_process_has_a_description() -> None:
    """Signals between SIGRTMIN and SIGRTMAX have no name."""
    assert [describe_exit(code) for code in (3, -9, -40)] == ["exit code 3", "SIGKILL", "signal 40"]


def test_the_environment_of_a_model() -> None:
    variables = {"PATH": "/bin", "LC_ALL": "C", "CUDA_VISIBLE_DEVICES": "1", "HF_TOKEN": "t", "https_proxy": SECRET}
    plain = child_environment(variables, threads=3)
    assert plain.items() >= {("PATH", "/bin"), ("LC_ALL", "C"), ("CUDA_VISIBLE_DEVICES", "1"), ("OMP_NUM_THREADS", "3")}
    assert plain["ORT_DISABLE_TELEMETRY"] == "1"
    assert not plain.keys() & {"HF_TOKEN", "https_proxy"}
    assert child_environment(variables, threads=1, also=("HF_TOKEN", "UNSET"))["HF_TOKEN"] == "t"


def test_a_process_of_up_gets_only_the_settings_that_it_reads(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    options = SystemOptions(str(tmp_path / "models"), split=True, sets=(f"selector.redis={SECRET}",), profiler=True)
    env = {"HOROLOGE_SELECTOR_REDIS": SECRET, "HOROLOGE_WORKER_NAME": "7", "HOROLOGE_METRICS_BIND": "127.0.0.1:0"}
    free = options._replace(http="127.0.0.1:0", clients=("tcp://127.0.0.1:0",))
    for child in build_topology(free, tmp_path, env).children:
        reads = child.name == "selector"
        assert (SECRET in " ".join(child.command())) is reads
        assert ("HOROLOGE_SELECTOR_REDIS" not in child.hidden) is reads
        assert ("HOROLOGE_WORKER_NAME" not in child.hidden) is child.name.startswith("worker")
        assert "HOROLOGE_METRICS_BIND" not in child.hidden


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_DUMPABLE")
def test_the_memory_of_a_service_is_protected_from_its_user() -> None:
    code = "from horologe_common.service.process_limits import *; protect_memory(); print(ctypes.CDLL(None).prctl(3))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "0\n"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may read and write, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run a model as another user")
def test_a_worker_of_root_runs_models_as_another_user(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = pwd.getpwnam("nobody")
    reads = ["cat", f"/proc/{os.getpid()}/environ"]
    assert subprocess.run(reads, check=False, capture_output=True, **user_options("nobody")).returncode == 1
    if subprocess.run(["test", "-x", sys.executable], check=False, **user_options("nobody")).returncode:
        pytest.skip("the user nobody cannot execute this Python")
    monkeypatch.setenv("REPORT", str(open_folder / "report"))
    folder = a_python_model(open_folder, READS_ITS_ENVIRONMENT)
    settings = WorkerSettings(model_environment=("REPORT",), model_user="nobody")
    seen = read_report(folder, open_folder / "report", settings)
    assert seen.splitlines()[0] == f"{nobody.pw_uid} {nobody.pw_gid} []"
    assert seen.endswith("unreadable")


def test_the_user_of_models_is_checked_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"setting worker.model_user: got 'nosuch', wanted the name of a user"):
        resolve_device(WorkerSettings(model_user="nosuch"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SettingsError, match=r"setting worker.model_user: got 'nobody', wanted it empty, or .* root"):
        resolve_device(WorkerSettings(model_user="nobody"))
