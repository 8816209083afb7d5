"""The composed system under a project name and ports of its own, or the reason why it cannot be had here."""

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
    """There is no engine, no compose, or no base image on this machine."""


def run(*command: str, timeout_s: float = 60, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Never raises for an exit code: the caller decides what one means."""
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
    """Compose v2 or v1, whichever there is."""
    if not shutil.which("docker") or run("docker", "version").returncode:
        raise Unavailable("no Docker engine answers")
    if run("docker", "compose", "version").returncode == 0:
        return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    raise Unavailable("neither docker compose nor docker-compose is installed")


def base_images() -> dict[str, str]:
    """Stand-ins that exist already, images that can be pulled, or stand-ins made now (about a minute, as root)."""
    stand_ins = dict(line.split("=", 1) for line in (AIRGAP / "images.env").read_text().splitlines() if "=" in line)
    if not all(_present(image) for image in stand_ins.values()):
        if all(
            _present(image) or run("docker", "pull", "-q", image, timeout_s=120).returncode == 0
            for image in DEFAULTS.values()
        ):
            return {}
        if os.getuid() or not shutil.which("debootstrap"):
            raise Unavailable("base images cannot be pulled, and making stand-ins takes root and debootstrap")
    built = run(str(AIRGAP / "build"), timeout_s=300)
    if built.returncode:
        raise RuntimeError(f"deploy/airgap/build: {built.stderr[-4000:]}")
    return stand_ins


def _present(image: str) -> bool:
    return run("docker", "image", "inspect", image).returncode == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(what: str, seconds: float, true: Callable[[], Any]) -> Any:
    """What `true` returns as soon as that is truthy; no connection and no good answer count as not yet."""
    end, last = time.monotonic() + seconds, "nothing"
    while time.monotonic() < end:
        try:
            if found := true():
                return found
        except (OSError, HorologeError) as error:
            last = repr(error)
        time.sleep(0.25)
    raise AssertionError(f"{what}: not within {seconds} s; last: {last}")


class Stack:
    """`up()` builds and starts, `down()` removes everything but the images."""

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
        until("every service healthy", 90, lambda: all(self.health(name) == "healthy" for name in SERVICES))

    def down(self) -> None:
        self.compose("down", "-v", "--remove-orphans", "-t", "10")

    def logs(self) -> str:
        return run(*self.command, "-p", self.project, "logs", "--no-color", "--tail=40", env=self.env).stdout

    def container(self, service: str) -> str:
        labels = {"project": self.project, "service": service}
        filters = [f"--filter=label=com.docker.compose.{name}={value}" for name, value in labels.items()]
        found = run("docker", "ps", "-a", "-q", *filters).stdout.split()
        assert len(found) == 1, f"{service}: {found}"
        return found[0]

    def inspect(self, service: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(run("docker", "inspect", self.container(service)).stdout)[0]
        return found

    def health(self, service: str) -> str:
        return str(self.inspect(service)["State"]["Health"]["Status"])

    def copy(self, service: str, source: str, target: Path) -> None:
        done = run("docker", "cp", f"{self.container(service)}:{source}", str(target))
        assert done.returncode == 0, done.stderr

    def execute(self, service: str, *command: str) -> None:
        """The exit code is not looked at: the command may kill the container it runs in."""
        run("docker", "exec", self.container(service), *command)


SERVICES = ("controller", "selector", "frontend", "profiler", "worker", "redis", "prometheus")


def get_json(url: str) -> Any:
    with urlopen(url, timeout=10) as answer:
        return json.load(answer)
