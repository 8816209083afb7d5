"""Workers as containers of a Docker Compose project. A new worker is a copy of a container of its service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import docker
from docker.errors import DockerException, NotFound

from horologe_common.service.settings import SettingsError
from horologe_tuner.scaler import ScalingError
from horologe_tuner.worker_names import WorkerNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_tuner.settings import TunerSettings

PROJECT, SERVICE, NUMBER = (f"com.docker.compose.{part}" for part in ("project", "service", "container-number"))
ENGINE_TIMEOUT_S = 30
RUNNING = ("running", "created", "restarting")
UNCHANGED = ("Env", "Cmd", "Entrypoint", "Image", "User", "WorkingDir", "Volumes", "ExposedPorts", "Healthcheck",
             "StopSignal", "StopTimeout", "Tty", "OpenStdin")  # fmt: skip
"""Fields of a container's configuration that a copy takes over. Its host name is its own."""


class ComposeScaler:
    """Starts and drains containers of the project `tuner.scaler_target`. Each service has at least one container."""

    def __init__(self, settings: TunerSettings) -> None:
        if not settings.scaler_target:
            raise SettingsError("setting tuner.scaler_target: got '', wanted the name of the compose project")
        self._project = settings.scaler_target
        self._names = WorkerNames(settings.scaler_names)
        self._draining: dict[str, bool] = {}
        """Ids of containers that were sent SIGTERM."""
        try:
            self._docker = docker.from_env(timeout=ENGINE_TIMEOUT_S)
        except DockerException as error:
            raise SettingsError(f"setting tuner.scaler: got 'docker', and no engine answers: {error}") from error

    def count_workers(self, hardware: tuple[str, ...]) -> Mapping[str, int]:
        """See `Scaler`. Also removes the containers that have drained."""
        try:
            self._remove_drained()
            return {name: len(self._running(self._names.find_name(name))) for name in hardware}
        except DockerException as error:
            raise ScalingError(f"docker: {error}") from error

    def set_workers(self, hardware: str, count: int) -> None:
        """See `Scaler`. Raises ScalingError also if the service has no container to copy."""
        service = self._names.find_name(hardware)
        try:
            containers = self._running(service)
            for container in containers[max(1, count) :]:
                self._draining[container.id] = True
                container.kill(signal="SIGTERM")
            for _ in range(len(containers), count):
                self._start_copy(service)
        except DockerException as error:
            raise ScalingError(f"docker: service {service}: {error}") from error

    def _containers(self, service: str) -> list[Any]:
        """Return all containers of a service, by number."""
        labels = [f"{PROJECT}={self._project}", f"{SERVICE}={service}"]
        found = self._docker.containers.list(all=True, filters={"label": labels}, ignore_removed=True)
        return sorted(found, key=_number)

    def _running(self, service: str) -> list[Any]:
        return [
            container
            for container in self._containers(service)
            if container.status in RUNNING and container.id not in self._draining
        ]

    def _start_copy(self, service: str) -> None:
        """Start a container with the configuration of another one of its service, under the next free number."""
        containers = self._containers(service)
        if not containers:
            raise ScalingError(f"docker: project {self._project} has no container of the service {service} to copy")
        taken = {_number(container) for container in containers}
        number = next(number for number in range(1, len(taken) + 2) if number not in taken)
        attributes = containers[0].attrs
        original, networks = attributes["Config"], attributes["NetworkSettings"]["Networks"]
        config = {name: original[name] for name in UNCHANGED if original.get(name) is not None}
        config["Labels"] = {**original["Labels"], NUMBER: str(number)}
        config["HostConfig"] = attributes["HostConfig"]
        config["NetworkingConfig"] = {"EndpointsConfig": {name: {"Aliases": [service]} for name in networks}}
        created = self._docker.api.create_container_from_config(config, f"{self._project}-{service}-{number}")
        self._docker.api.start(created["Id"])

    def _remove_drained(self) -> None:
        for container_id in list(self._draining):
            try:
                container = self._docker.containers.get(container_id)
                if container.status in RUNNING:
                    continue
                container.remove()
            except NotFound:
                pass
            del self._draining[container_id]


def _number(container: Any) -> int:
    return int(container.labels.get(NUMBER, "0"))
