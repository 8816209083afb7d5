"""The composed system with its own project name and ports, or the reason why it cannot run here."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from horologe_common.status import HorologeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).parents[2]
AIRGAP = ROOT / "deploy" / "airgap"
DEFAULTS = {
    "BASE_IMAGE": "python:3.11-slim",
    "PROMETHEUS_IMAGE": "prom/prometheus:v2.55.1",
    "REDIS_IMAGE": "redis:7-bookworm",
}


class Unavailable(Exception):
    """Docker Engine, Compose or base images are missing on this machine."""


def run(*command: str, timeout_s: float = 60, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command. The caller checks the exit code."""
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def compose_command() -> list[str]:
    """Return the command of Compose v2 or v1."""
    if not shutil.which("docker") or run("docker", "version").returncode:
        raise Unavailable("no Docker engine runs")
    if run("docker", "compose", "version").returncode == 0:
        return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    raise Unavailable("neither docker compose nor docker-compose is installed")


def base_images() -> dict[str, str]:
    """Return the base images: existing local images, images from a registry, or images built now (as root)."""
    local_images = dict(line.split("=", 1) for line in (AIRGAP / "images.env").read_text().splitlines() if "=" in line)
    if not all(_present(image) for image in local_images.values()):
        if all(
            _present(image) or run("docker", "pull", "-q", image, timeout_s=120).returncode == 0
            for image in DEFAULTS.values()
        ):
            return {}
        if os.getuid() or not shutil.which("debootstrap"):
            raise Unavailable("base images cannot be pulled, and building them needs root and debootstrap")
    built = run(str(AIRGAP / "build"), timeout_s=300)
    if built.returncode:
        raise RuntimeError(f"deploy/airgap/build: {built.stderr[-4000:]}")
    return local_images


def _present(image: str) -> bool:
    return run("docker", "image", "inspect", image).returncode == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(event: str, seconds: float, condition: Callable[[], Any]) -> Any:
    """Call `condition` until its value is true, and return the value. Connection and server errors are retried."""
    end, last = time.monotonic() + seconds, "nothing"
    while time.monotonic() < end:
        try:
            if value := condition():
                return value
        except (OSError, HorologeError) as error:
            last = repr(error)
        time.sleep(0.25)
    raise AssertionError(f"{event}: not within {seconds} s; last: {last}")


class Stack:
    """`up()` builds images and starts containers. `down()` removes everything except the images."""

    def __init__(self, models: Path) -> None:
        self.command = compose_command()
        self.project = f"horologe-test-{os.getpid()}"
        self.http, self.clients, self.prometheus = (free_port() for _ in range(3))
        self.env = base_images() | {
            "MODELS_DIR": str(models),
            "PUBLISH_ON": "127.0.0.1",
            "HTTP_PORT": str(self.http),
            "CLIENTS_PORT": str(self.clients),
            "PROMETHEUS_PORT": str(self.prometheus),
            "IMAGE_TAG": "test",
        }

    def compose(self, *arguments: str, timeout_s: float = 120) -> str:
        done = run(*self.command, "-p", self.project, *arguments, timeout_s=timeout_s, env=self.env)
        assert done.returncode == 0, f"{arguments}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}\n{self.logs()}"
        return done.stdout

    def up(self) -> None:
        self.compose("build", timeout_s=400)
        self.compose("up", "-d", timeout_s=120)
        wait_until("every service healthy", 90, lambda: all(self.health(name) == "healthy" for name in SERVICES))

    def down(self) -> None:
        self.compose("down", "-v", "--remove-orphans", "-t", "10")

    def logs(self) -> str:
        return run(*self.command, "-p", self.project, "logs", "--no-color", "--tail=40", env=self.env).stdout

    def container(self, service: str) -> str:
        labels = {"project": self.project, "service": service}
        filters = [f"--filter=label=com.docker.compose.{name}={value}" for name, value in labels.items()]
        ids = run("docker", "ps", "-a", "-q", *filters).stdout.split()
        assert len(ids) == 1, f"{service}: {ids}"
        return ids[0]

    def inspect(self, service: str) -> dict[str, Any]:
        container: dict[str, Any] = json.loads(run("docker", "inspect", self.container(service)).stdout)[0]
        return container

    def health(self, service: str) -> str:
        return str(self.inspect(service)["State"]["Health"]["Status"])

    def copy(self, service: str, source: str, target: Path) -> None:
        done = run("docker", "cp", f"{self.container(service)}:{source}", str(target))
        assert done.returncode == 0, done.stderr

    def execute(self, service: str, *command: str) -> str:
        """Run a command in the container, return its output. The exit code is ignored: it may kill the container."""
        return run("docker", "exec", self.container(service), *command).stdout


SERVICES = ("controller", "selector", "frontend", "profiler", "tuner", "worker", "redis", "prometheus")


def get_json(url: str) -> Any:
    with urlopen(url, timeout=10) as answer:
        return json.load(answer)
