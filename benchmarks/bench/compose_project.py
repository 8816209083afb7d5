"""The containers of a compose project, through the engine's API: addresses, keys, health and faults."""

from __future__ import annotations

import io
import tarfile
import time
from typing import TYPE_CHECKING, Any

import docker

if TYPE_CHECKING:
    from pathlib import Path

PROJECT, SERVICE = (f"com.docker.compose.{name}" for name in ("project", "service"))
ENGINE_TIMEOUT_S = 120
KEY_PATHS = {"/keys/service/service.key": "service", "/keys/clients": "", "/keys/management": "", "/keys/http": ""}
"""Paths in an edge container -> the folder of a client's keys that they belong to."""


class ComposeProject:
    """A compose project by its name. Raises docker.errors.DockerException if no engine answers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.engine = docker.from_env(timeout=ENGINE_TIMEOUT_S)

    def close(self) -> None:
        """Close the connections to the engine."""
        self.engine.close()

    def containers(self, service: str = "") -> list[Any]:
        """Return the containers of a service, or of all services, with those that do not run."""
        labels = [f"{PROJECT}={self.name}", *([f"{SERVICE}={service}"] if service else [])]
        found: list[Any] = self.engine.containers.list(all=True, filters={"label": labels}, ignore_removed=True)
        return found

    def container(self, service: str) -> Any:
        """Return the only container of a service. Raises LookupError if there is none or more than one."""
        found = self.containers(service)
        if len(found) != 1:
            raise LookupError(f"{self.name}: {service}: got {len(found)} containers, wanted one")
        return found[0]

    def leftovers(self) -> list[str]:
        """Return the names of all containers, networks and volumes of the project."""
        filters = {"label": f"{PROJECT}={self.name}"}
        networks, volumes = self.engine.networks.list(filters=filters), self.engine.volumes.list(filters=filters)
        return [thing.name for thing in (*self.containers(), *networks, *volumes)]

    def address(self, service: str, port: int) -> str:
        """Return host and port of this machine at which a port of a service is published."""
        (binding,) = self.container(service).attrs["NetworkSettings"]["Ports"][f"{port}/tcp"]
        return f"{binding['HostIp']}:{binding['HostPort']}"

    def is_healthy(self, service: str) -> bool:
        """Return True if the service has containers and all of them are healthy."""
        found = self.containers(service)
        return bool(found) and all(_health(container) == "healthy" for container in found)

    def copy_keys(self, folder: Path) -> None:
        """Copy the service's public key, and the keys of clients and operators, to a folder for the SDK."""
        frontend = self.container("frontend")
        for path, parent in KEY_PATHS.items():
            chunks, _ = frontend.get_archive(path)
            (folder / parent).mkdir(exist_ok=True)
            with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
                archive.extractall(folder / parent, filter="data")


def _health(container: Any) -> str:
    return str(container.attrs["State"].get("Health", {}).get("Status", ""))


def kill_processes(container: Any) -> None:
    """Kill the processes of a container. The engine restarts it, other than after `docker kill`."""
    container.exec_run(["sh", "-c", "kill -9 -1"])


def pause(container: Any, seconds: float) -> None:
    """Stop all threads of a container for a time."""
    container.pause()
    try:
        time.sleep(seconds)
    finally:
        container.unpause()
