"""The composed system with its own project name and ports. Tests are skipped where it cannot run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest
from docker.errors import DockerException
from testcontainers.compose import DockerCompose

from compose.engine import open_engine, require_engine
from horologe_cli.local.ports import free_port
from horologe_common.status import HorologeError

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from bench.compose_project import ComposeProject  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

AIRGAP = ROOT / "deploy" / "airgap"
WORKERS = "gpu-worker"
SERVICES = (
    "controller", "selector", "frontend", "profiler", "tuner", WORKERS, "redis", "prometheus", "grafana",
)  # fmt: skip
IMAGES = ("PROMETHEUS_IMAGE", "REDIS_IMAGE", "GRAFANA_IMAGE", "BASE_IMAGE")
BUILD_S = 600
"""Longest time to build base images. It takes a minute or two on two cores with nothing else to do."""
VARIABLE = re.compile(r"^([A-Z_]+)=(.*)$", re.MULTILINE)


def example_variables() -> dict[str, str]:
    """Return the variables of .env.example with their defaults."""
    return dict(VARIABLE.findall((ROOT / ".env.example").read_text()))


def compose_command() -> list[str]:
    """Return the command of Compose v2 or v1. Skips the test without an engine, or if neither command works."""
    require_engine()
    for command in (["docker", "compose"], ["docker-compose"]):
        version = [*command, "version"]
        if shutil.which(command[0]) and not subprocess.run(version, capture_output=True, check=False).returncode:
            return command
    pytest.skip("neither docker compose nor docker-compose is installed")


@cache
def base_images() -> dict[str, str]:
    """Return the base images: existing local images, images from a registry, or images built now (as root).

    Skips the test if there are none.
    """
    local_images = dict(VARIABLE.findall((AIRGAP / "images.env").read_text()))
    with open_engine(timeout_s=300) as engine:
        if not all(_present(engine, image) for image in local_images.values()):
            if all(_pull(engine, example_variables()[name]) for name in IMAGES):
                return {}
            if os.getuid() or not shutil.which("debootstrap"):
                pytest.skip("base images cannot be pulled, and building them needs root and debootstrap")
    built = subprocess.run([AIRGAP / "build"], capture_output=True, text=True, timeout=BUILD_S, check=False)
    if built.returncode:
        raise RuntimeError(f"deploy/airgap/build: {built.stderr[-4000:]}")
    return local_images


def _present(engine: Any, image: str) -> bool:
    return bool(engine.images.list(name=image))


def _pull(engine: Any, image: str) -> bool:
    try:
        return _present(engine, image) or bool(engine.images.pull(image))
    except DockerException:
        return False


def wait_until(event: str, seconds: float, condition: Callable[[], Any]) -> Any:
    """Call `condition` until its value is true, and return the value. Connection and server errors are retried."""
    end, last = time.monotonic() + seconds, "nothing"
    while time.monotonic() < end:
        try:
            if value := condition():
                return value
        except (OSError, HorologeError, LookupError) as error:
            last = repr(error)
        time.sleep(0.25)
    raise AssertionError(f"{event}: not within {seconds} s; last: {last}")


class Compose(DockerCompose):
    """testcontainers' Compose, also with the command of Compose v1, whose `up` cannot wait."""

    @cached_property
    def compose_command_property(self) -> list[str]:
        _, _, *options = super().compose_command_property
        return [*compose_command(), *options]


class Stack(ComposeProject):
    """`up()` builds images and starts containers. `down()` removes everything except the images.

    `folder`: for the file of variables.
    """

    def __init__(self, folder: Path, models: Path) -> None:
        compose_command()
        super().__init__(f"horologe-test-{os.getpid()}")
        self.http, self.grpc, self.clients, self.prometheus, self.grafana = (free_port("127.0.0.1") for _ in range(5))
        changes = {
            "COMPOSE_PROJECT_NAME": self.name,
            "MODELS_DIR": str(models),
            "HTTP_PORT": str(self.http),
            "GRPC_PORT": str(self.grpc),
            "CLIENTS_PORT": str(self.clients),
            "PROMETHEUS_PORT": str(self.prometheus),
            "GRAFANA_PORT": str(self.grafana),
            "IMAGE_TAG": "test",
            "RECORDINGS": "/recordings",
        }
        self.variables = example_variables() | base_images() | changes
        env_file = folder / "test.env"
        env_file.write_text("".join(f"{name}={value}\n" for name, value in self.variables.items()))
        self.command = Compose(ROOT, env_file=str(env_file), build=False, wait=False)

    def compose(self, *arguments: str, code: int | None = 0) -> str:
        """Run a command of Compose, and return its output. `code`: the wanted exit code; None: any."""
        command = [*self.command.compose_command_property, *arguments]
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        assert code in (None, done.returncode), (
            f"{arguments}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}\n{self.logs()}"
        )
        return done.stdout

    def build(self) -> None:
        """Build the two images once. Compose v1 would build the one of the edge again for each of its services."""
        self.compose("build", "controller", WORKERS)

    def up(self) -> None:
        self.build()
        try:
            self.command.start()
        except subprocess.CalledProcessError as error:
            raise AssertionError(error.stderr.decode()[-4000:]) from error
        self.wait_healthy()

    def wait_healthy(self) -> None:
        wait_until("every service healthy", 90, lambda: all(map(self.is_healthy, SERVICES)))

    def scale_workers(self, count: int) -> None:
        self.compose("up", "-d", "--no-recreate", "--scale", f"{WORKERS}={count}")

    def down(self) -> None:
        self.compose("down", "-v", "--remove-orphans", "-t", "10")

    def logs(self) -> str:
        command = [*self.command.compose_command_property, "logs", "--no-color", "--tail=40"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout

    def execute(self, service: str, *command: str) -> str:
        """Run a command in the container, return its output. The exit code is ignored: it may kill the container."""
        return str(self.container(service).exec_run(list(command)).output.decode())

    def restarts(self, service: str) -> int:
        return int(self.container(service).attrs["RestartCount"])


def get_json(url: str) -> Any:
    with urlopen(url, timeout=10) as answer:
        return json.load(answer)
