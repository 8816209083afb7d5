"""The stack of deploy/swarm on a Swarm of one node: scaled, updated and rolled back under load, nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from compose.stack import ROOT, Stack, Unavailable, run, wait_until
from compose.traffic import Traffic
from horologe import Client
from horologe_common.transport.keys import make_keys

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(600)]
NAME = "horologe-swarm-test"
TWICE = {
    "model.py": 'class Model:\n    def predict_batch(self, inputs):\n        return {"y": 2 * inputs["x"]}\n',
    "model.toml": 'inputs = [{ name = "x", datatype = "FP32", shape = [-1, 4] }]\n'
    'outputs = [{ name = "y", datatype = "FP32", shape = [-1, 4] }]\n',
}
CHANGE_S = 120


class Swarm:
    """A deployed stack."""

    def __init__(self, stack: Stack, keys: Path) -> None:
        self.stack, self.keys = stack, keys
        self.clients = f"tcp://127.0.0.1:{stack.clients}"

    def docker(self, *arguments: str, timeout_s: float = CHANGE_S) -> str:
        done = run("docker", *arguments, timeout_s=timeout_s, env=self.stack.env)
        assert done.returncode == 0, f"{arguments}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    def deploy(self) -> None:
        """Write the stack and deploy it from standard input."""
        environment = {**os.environ, **self.stack.env, "STACK": NAME}
        written = subprocess.run(
            [sys.executable, str(ROOT / "deploy" / "swarm" / "stack.py"), str(self.keys)],
            env=environment, capture_output=True, text=True, timeout=30, check=True,
        )  # fmt: skip
        deployed = subprocess.run(
            ["docker", "stack", "deploy", "-c", "-", NAME],
            env=environment, cwd=ROOT, input=written.stdout, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert deployed.returncode == 0, deployed.stderr
        wait_until("every task to run", CHANGE_S, self.is_complete)

    def is_complete(self) -> bool:
        """Return whether all services have the wanted number of healthy tasks."""
        lines = self.docker("stack", "services", "--format", "{{.Replicas}}", NAME).split()
        return bool(lines) and all(line.split("/")[0] == line.split("/")[1] for line in lines)

    def service(self, name: str) -> dict[str, Any]:
        inspected: dict[str, Any] = json.loads(self.docker("service", "inspect", f"{NAME}_{name}"))[0]
        return inspected

    def traffic(self) -> Traffic:
        return Traffic(self.clients, self.stack.http, self.keys)


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    models = tmp_path_factory.mktemp("models")
    version = models / "twice" / "1"
    version.mkdir(parents=True)
    for name, text in TWICE.items():
        (version / name).write_text(text)
    shutil.copytree(ROOT / "models" / "pipelines", models / "pipelines")
    models.chmod(0o755)
    keys = tmp_path_factory.mktemp("keys")
    make_keys(keys)
    try:
        stack = Stack(models)
    except Unavailable as reason:
        pytest.skip(str(reason))
    if run("docker", "info", "--format", "{{.Swarm.LocalNodeState}}").stdout.strip() != "inactive":
        pytest.skip("this engine is part of a swarm already")
    stack.compose("build", timeout_s=400)
    swarm = Swarm(stack, keys)
    swarm.docker("swarm", "init", "--advertise-addr", "127.0.0.1")
    try:
        node = swarm.docker("node", "ls", "-q").strip()
        swarm.docker("node", "update", "--label-add", "horologe.state=true", node)
        swarm.deploy()
        with Client(swarm.clients, keys=keys) as client:
            wait_until(
                "the model to be ready",
                60,
                lambda: [m.state for m in client.models() if m.spec.name == "twice"] == ["READY"],
            )
        yield swarm
    finally:
        run("docker", "stack", "rm", NAME, timeout_s=60)
        wait_until("every container to end", 60, lambda: not _containers())
        run("docker", "swarm", "leave", "--force", timeout_s=60)
        volumes = run(
            "docker", "volume", "ls", "-q", "--filter", f"label=com.docker.stack.namespace={NAME}"
        ).stdout.split()
        run("docker", "volume", "rm", "-f", *volumes)


def _containers() -> list[str]:
    return run("docker", "ps", "-a", "-q", "--filter", f"label=com.docker.stack.namespace={NAME}").stdout.split()


def _nothing_lost(traffic: Traffic) -> None:
    assert traffic.outcomes["OK"] > 20
    assert set(traffic.outcomes) == {"OK"}, (traffic.outcomes, traffic.reasons)


def test_workers_are_scaled_under_load(swarm: Swarm) -> None:
    with swarm.traffic() as traffic:
        for count in (3, 1):
            swarm.docker("service", "scale", f"{NAME}_gpu-worker={count}")
        answered = traffic.count()
        wait_until("requests after the change", 30, lambda: traffic.count() > answered + 20)
    _nothing_lost(traffic)


@pytest.mark.parametrize("service", ["gpu-worker", "selector", "frontend", "controller"])
def test_a_service_is_replaced_under_load(swarm: Swarm, service: str) -> None:
    with swarm.traffic() as traffic:
        swarm.docker("service", "update", "--force", "-q", f"{NAME}_{service}")
        assert swarm.service(service)["UpdateStatus"]["State"] == "completed"
        answered = traffic.count()
        wait_until("requests after the change", 30, lambda: traffic.count() > answered + 20)
    _nothing_lost(traffic)


def test_a_worker_that_cannot_start_is_rolled_back_under_load(swarm: Swarm) -> None:
    before = swarm.service("gpu-worker")["Spec"]["TaskTemplate"]["ContainerSpec"].get("Env")
    with swarm.traffic() as traffic:
        run(
            "docker",
            "service",
            "update",
            "-q",
            "--env-add",
            "HOROLOGE_WORKER_SHARES=none",
            f"{NAME}_gpu-worker",
            timeout_s=CHANGE_S,
        )
        wait_until(
            "the rollback", 60, lambda: swarm.service("gpu-worker")["UpdateStatus"]["State"] == "rollback_completed"
        )
    assert swarm.service("gpu-worker")["Spec"]["TaskTemplate"]["ContainerSpec"].get("Env") == before
    _nothing_lost(traffic)
