"""The sdist and the wheel are reproducible, and serve where only Python is installed: no checkout, no compiler."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
import venv
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import pytest

from harness.scripts import load_script

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
EPOCH = 1_700_000_000
MAX_WHEEL_BYTES = 3 << 20
NO_NETWORK = ("NewConnectionError", "ConnectTimeoutError", "NameResolutionError")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
HEALTH = """
import sys, grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
stub = health_pb2_grpc.HealthStub(grpc.insecure_channel(sys.argv[1]))
print(stub.Check(health_pb2.HealthCheckRequest(service="inference.GRPCInferenceService"), timeout=30).status)
"""
PREDICT = """
import sys, numpy, horologe
with horologe.Client(sys.argv[1]) as client:
    print(client.predict("noop", numpy.ones((1, 16), numpy.float32), slo_ms=5000))
"""


def hatch(source: Path, folder: Path, epoch: int = EPOCH) -> dict[str, bytes]:
    """Build sdist and wheel of the tree `source`. Return the content of the files by name."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(folder)]
    environment = {**CLEAN, "SOURCE_DATE_EPOCH": str(epoch)}
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the sdist and the wheel."""
    folder = tmp_path_factory.mktemp("dist")
    hatch(ROOT, folder)
    return folder


def install(wheel: Path, extra: str, folder: Path) -> Path:
    """Install the wheel into a new environment, and return its folder of programs. Skips without a package index."""
    venv.create(folder, with_pip=False)
    requirement = f"horologe{extra} @ {wheel.as_uri()}"
    options = ["--no-compile", "-c", str(ROOT / "constraints.txt"), "--only-binary", ":all:"]
    command = [sys.executable, "-m", "pip", "--python", f"{folder}/bin/python", "install", "-q", *options, requirement]
    done = subprocess.run(command, capture_output=True, text=True, env=CLEAN, timeout=110)
    if any(word in done.stderr for word in NO_NETWORK):
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def run(program: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *arguments], cwd=cwd, capture_output=True, text=True, env=CLEAN, timeout=60)


def test_the_sdist_builds_itself_and_the_same_wheel(dist: Path, tmp_path: Path) -> None:
    built = {path.name: path.read_bytes() for path in dist.iterdir()}
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert {member.mtime for member in archive} == {EPOCH}
        archive.extractall(tmp_path, filter="data")
    for path in tmp_path.rglob("*"):
        os.utime(path, (EPOCH + 1000, EPOCH + 1000))
    again = hatch(tmp_path / f"horologe-{VERSION}", tmp_path / "again")
    assert {name: hashlib.sha256(content).hexdigest() for name, content in again.items()} == {
        name: hashlib.sha256(content).hexdigest() for name, content in built.items()
    }
    assert len(built) == 2


def test_the_wheel_has_the_protocol_of_grpc(dist: Path) -> None:
    """Users generate clients from it (docs/typed-clients.md)."""
    (wheel,) = dist.glob("*-none-any.whl")
    with ZipFile(wheel) as archive:
        folder = "horologe_frontend/grpc/protocol"
        assert {f"{folder}/inference.proto", f"{folder}/model_config.proto"} <= set(archive.namelist())


def test_the_sdist_holds_no_laboratory_and_the_wheel_is_small(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    (wheel,) = dist.glob("*-none-any.whl")
    with tarfile.open(sdist) as archive:
        folders = {name.split("/")[1] for name in archive.getnames()}
    assert {"apps", "libs", "services", "models"} <= folders
    assert not {"tests", "benchmarks", "experiments"} & folders
    assert wheel.stat().st_size < MAX_WHEEL_BYTES


def test_the_chart_and_the_images_have_the_version_of_the_wheel() -> None:
    chart = (ROOT / "deploy" / "helm" / "horologe" / "Chart.yaml").read_text()
    assert f"\nversion: {VERSION}\nappVersion: {VERSION}\n" in chart
    assert f"IMAGE_TAG={VERSION} docker compose build" in (ROOT / "deploy" / "helm" / "README.md").read_text()
    assert f"\n## {VERSION} - " in (ROOT / "CHANGELOG.md").read_text()
    experiments = tomllib.loads((ROOT / "experiments" / "pyproject.toml").read_text())
    assert experiments["project"]["version"] == VERSION


def test_members_of_the_chart_get_the_time_of_the_commit(tmp_path: Path) -> None:
    script = load_script("deploy/distribution.py", "deploy_distribution")
    packed = []
    for number in range(2):
        file = tmp_path / f"{number}.tgz"
        with tarfile.open(file, "w:gz") as archive:
            for name in ("Chart.yaml", "values.yaml")[:: 1 - 2 * number]:
                (tmp_path / name).write_text(name)
                os.utime(tmp_path / name, (number, number))
                archive.add(tmp_path / name, f"horologe/{name}")
        packed.append(script.with_time(file.read_bytes(), EPOCH))
    assert packed[0] == packed[1]


def test_the_sdk_needs_no_package_of_the_server(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*-none-any.whl")
    programs = install(wheel, "", tmp_path / "sdk")
    code = "import horologe, importlib.util as util; print(horologe.__version__, util.find_spec('uvloop'))"
    done = run(programs / "python", "-c", code, cwd=tmp_path)
    assert done.stdout == f"{VERSION} None\n", done.stderr
    done = run(programs / "horologe", "--version", cwd=tmp_path)
    assert done.returncode == 2
    assert "horologe[server]" in done.stderr


@contextmanager
def running(program: Path, cwd: Path) -> Iterator[dict[str, Any]]:
    """Run `horologe up --demo`. Yield its summary."""
    options = ["--json", "--http", "127.0.0.1:0", "--client", "tcp://127.0.0.1:0", "--metrics", "off"]
    with (cwd / "log").open("w") as log:
        server = subprocess.Popen(
            [program, "up", "--demo", "--workers", "1", *options],
            cwd=cwd, stdout=subprocess.PIPE, stderr=log, text=True, env=CLEAN,
        )  # fmt: skip
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line, (cwd / "log").read_text()
        yield json.loads(line)
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_server_answers_in_an_empty_folder(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*-none-any.whl")
    programs = install(wheel, "[server]", tmp_path / "server")
    (empty := tmp_path / "empty").mkdir()
    assert run(programs / "horologe", "--version", cwd=empty).stdout.strip() == VERSION
    failed = run(programs / "horologe", "up", cwd=empty)
    assert (failed.returncode, failed.stderr.count("\n")) == (2, 1)
    assert "up --demo" in failed.stderr
    with running(programs / "horologe", empty) as summary:
        assert {"digits-cnn", "noop", "novice"} <= {model["name"] for model in summary["models"]}
        answer = run(programs / "python", "-c", PREDICT, summary["clients"][0], cwd=empty)
        assert answer.stdout == "[[16.]]\n", answer.stderr
        health = run(programs / "python", "-c", HEALTH, summary["grpc"], cwd=empty)
        assert health.stdout == "1\n", health.stderr
    demo = run(programs / "horologe", "demo", "--json", "--workers", "1", "--learn", "1", "--step", "0.2", cwd=empty)
    assert demo.returncode in (0, 1), demo.stderr  # 1: a criterion about times is not met
    assert {accuracy["via"] for accuracy in json.loads(demo.stdout)["accuracies"]} == {"SDK", "HTTP"}
    assert {path.name for path in empty.iterdir()} == {"log"}
    shutil.rmtree(tmp_path / "server")
