"""The stack of deploy/swarm on a Swarm of one node: scaled, updated and rolled back under load, nothing is lost.

Clients are a container in the stack's network, because the kernel of a test machine may lack IPVS, which published
ports need.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compose.stack import ROOT, Stack, wait_until
from horologe_cli.bearer_keys import make_all_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

WANTED = "HOROLOGE_SWARM_TESTS"
"""The tests take three minutes, and `make test` has a limit of twenty for all."""
pytestmark = [
    pytest.mark.compose,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(WANTED not in os.environ, reason=f"{WANTED} is not set"),
]
NAME = "horologe-swarm-test"
CHANGE_S = 120.0


def docker(*arguments: str, text: str = "", env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        ["docker", *arguments], input=text, env=env, cwd=ROOT, capture_output=True, text=True, timeout=CHANGE_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{arguments}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


class Traffic:
    """Runs traffic.py in the network of the stack until the block ends."""

    def __init__(self, keys: Path) -> None:
        script = Path(__file__).with_name("traffic.py")
        self._command = [
            "docker", "run", "--rm", "-i", "--user", "0", "--network", f"{NAME}_default", "-v", f"{keys}:/client:ro",
            "-v", f"{script}:/traffic.py:ro", "--no-healthcheck", "horologe-edge:test",
            "python3", "/traffic.py", "tasks.frontend", "/client",
        ]  # fmt: skip
        self.outcomes: dict[str, int] = {}
        self.reasons: list[str] = []

    def __enter__(self) -> Traffic:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.wait_for(40)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._reader.join()

    def wait_for(self, count: int) -> None:
        """Wait for that many further answers."""
        wanted = sum(self.outcomes.values()) + count
        wait_until(f"{count} further answers", 40, lambda: sum(self.outcomes.values()) >= wanted)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                document = json.loads(line)
                self.outcomes, self.reasons = document["outcomes"], document["reasons"]


class Swarm:
    """A deployed stack."""

    def __init__(self, variables: dict[str, str], keys: Path) -> None:
        self._environment = {**os.environ, **variables, "STACK": NAME}
        self._keys = keys

    def deploy(self) -> None:
        """Write the stack and deploy it from standard input."""
        script = [sys.executable, str(ROOT / "deploy" / "swarm" / "stack.py"), str(self._keys), "--no-ports"]
        written = subprocess.run(script, capture_output=True, text=True, timeout=30, check=True).stdout
        docker("stack", "deploy", "-c", "-", NAME, text=written, env=self._environment)
        wait_until("every task to run", CHANGE_S, self.is_complete)

    def is_complete(self) -> bool:
        """Return whether all services have the wanted number of healthy tasks."""
        replicas = [line.split("/") for line in docker("stack", "services", "--format", "{{.Replicas}}", NAME).split()]
        return bool(replicas) and all(running == wanted for running, wanted in replicas)

    def service(self, name: str) -> dict[str, Any]:
        inspected: dict[str, Any] = json.loads(docker("service", "inspect", f"{NAME}_{name}"))[0]
        return inspected

    def tasks(self, name: str) -> set[str]:
        return set(docker("service", "ps", "-q", "--filter", "desired-state=running", f"{NAME}_{name}").split())

    def wait_for_update(self, service: str, state: str) -> None:
        wait_until(state, CHANGE_S, lambda: self.service(service)["UpdateStatus"]["State"] == state)

    def traffic(self) -> Traffic:
        return Traffic(self._keys)


@pytest.fixture(scope="module")
def swarm(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    keys = tmp_path_factory.mktemp("swarm-keys")
    make_all_keys(keys)
    with closing(Stack(tmp_path_factory.mktemp("swarm"), repository)) as stack:
        if not shutil.which("docker"):
            pytest.skip("the command docker is not installed")
        stack.build()
        variables = stack.variables
    if docker("info", "--format", "{{.Swarm.LocalNodeState}}").strip() != "inactive":
        pytest.skip("this engine is part of a swarm already")
    docker("swarm", "init", "--advertise-addr", "127.0.0.1", "--listen-addr", "127.0.0.1:2377")
    try:
        docker("node", "update", "--label-add", "horologe.state=true", docker("node", "ls", "-q").strip())
        swarm = Swarm(variables, keys)
        swarm.deploy()
        yield swarm
    finally:
        docker("stack", "rm", NAME)
        label = f"label=com.docker.stack.namespace={NAME}"
        wait_until("every container to end", 60, lambda: not docker("ps", "-a", "-q", "--filter", label))
        docker("swarm", "leave", "--force")
        if volumes := docker("volume", "ls", "-q", "--filter", label).split():
            docker("volume", "rm", "-f", *volumes)


def nothing_is_lost(traffic: Traffic) -> None:
    assert set(traffic.outcomes) == {"OK"}, (traffic.outcomes, traffic.reasons)


def test_workers_are_scaled_under_load(swarm: Swarm) -> None:
    with swarm.traffic() as traffic:
        for count in (3, 1):
            docker("service", "scale", "-d", f"{NAME}_gpu-worker={count}")
            wait_until("the tasks", CHANGE_S, swarm.is_complete)
            traffic.wait_for(60)
    nothing_is_lost(traffic)


@pytest.mark.parametrize("service", ["gpu-worker", "selector", "frontend", "controller"])
def test_a_service_is_replaced_under_load(swarm: Swarm, service: str) -> None:
    before = swarm.tasks(service)
    with swarm.traffic() as traffic:
        docker("service", "update", "--force", "-q", "-d", f"{NAME}_{service}")
        time.sleep(1)
        swarm.wait_for_update(service, "completed")
        traffic.wait_for(40)
    assert not before & swarm.tasks(service)
    nothing_is_lost(traffic)


def test_a_worker_that_cannot_start_is_rolled_back_under_load(swarm: Swarm) -> None:
    before = swarm.service("gpu-worker")["Spec"]["TaskTemplate"]["ContainerSpec"]["Env"]
    with swarm.traffic() as traffic:
        docker("service", "update", "-q", "-d", "--env-add", "HOROLOGE_WORKER_SHARES=none", f"{NAME}_gpu-worker")
        swarm.wait_for_update("gpu-worker", "rollback_completed")
        traffic.wait_for(40)
    assert swarm.service("gpu-worker")["Spec"]["TaskTemplate"]["ContainerSpec"]["Env"] == before
    nothing_is_lost(traffic)
