"""Workers as containers of a Docker Compose project. A new worker is a copy of a container of its service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import docker
import msgspec
from docker.errors import DockerException, NotFound

from horologe_common.service.http_answers import bound_session
from horologe_common.service.settings import SettingsError
from horologe_common.wanted_shares import check_shares, worker_environment
from horologe_tuner.scaler import ScalingError, WorkerNames

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from horologe_common.wanted_shares import WantedShare
    from horologe_tuner.settings import TunerSettings

PROJECT, SERVICE, NUMBER = (f"com.docker.compose.{part}" for part in ("project", "service", "container-number"))
ENGINE_TIMEOUT_S = 30
SHARE = "io.horologe.share"
"""Label of a container that owns a share: the name of its worker."""
CPU_QUOTA = "cpu"
"""Mechanism of shares whose limit the engine sets: a worker may not limit itself in its container."""
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
            bound_session(self._docker.api, ENGINE_TIMEOUT_S)
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
                self._drain(container)
            for _ in range(len(containers), count):
                self._start_copy(service)
        except DockerException as error:
            raise ScalingError(f"docker: service {service}: {error}") from error

    def set_shares(self, wanted: Sequence[WantedShare]) -> tuple[str, ...]:
        """See `Scaler`. A share is a copy of a container of its hardware type's service, with settings of its own."""
        try:
            check_shares(wanted)
            self._remove_drained()
            running = self._running_shares()
            for share in wanted:
                if (container := running.get(share.worker)) is None:
                    self._start_share(share)
                elif not _share_environment(share).items() <= _environment(container.attrs["Config"]["Env"]).items():
                    raise ScalingError(f"docker: share {share.worker!r}: its container runs with other settings")
            names = {share.worker for share in wanted}
            for name in running.keys() - names:
                self._drain(running[name])
            return tuple(self._running_shares())
        except ValueError as error:
            raise ScalingError(str(error)) from error
        except DockerException as error:
            raise ScalingError(f"docker: shares: {error}") from error

    def _drain(self, container: Any) -> None:
        self._draining[container.id] = True
        container.kill(signal="SIGTERM")

    def _containers(self, *labels: str) -> list[Any]:
        """Return all containers of the project with these labels, by number."""
        filters = {"label": [f"{PROJECT}={self._project}", *labels]}
        found = self._docker.containers.list(all=True, filters=filters, ignore_removed=True)
        return sorted(found, key=_number)

    def _of_service(self, service: str) -> list[Any]:
        """Return the containers of a service that own no share."""
        containers = self._containers(f"{SERVICE}={service}")
        return [container for container in containers if SHARE not in container.labels]

    def _is_running(self, container: Any) -> bool:
        return container.status in RUNNING and container.id not in self._draining

    def _running(self, service: str) -> list[Any]:
        return [container for container in self._of_service(service) if self._is_running(container)]

    def _running_shares(self) -> dict[str, Any]:
        containers = [container for container in self._containers(SHARE) if self._is_running(container)]
        return {container.labels[SHARE]: container for container in containers}

    def _start_copy(self, service: str) -> None:
        """Start a container under the next free number."""
        taken = {_number(container) for container in self._of_service(service)}
        number = str(next(number for number in range(1, len(taken) + 2) if number not in taken))
        self._copy(service, number, {NUMBER: number}, {}, {})

    def _start_share(self, share: WantedShare) -> None:
        """Start the container of a share. On the CPU, the engine limits its CPU time."""
        limits = {}
        if share.mechanism == CPU_QUOTA:
            limits["NanoCpus"] = round(share.percent / 100 * self._docker.info()["NCPU"] * 1e9)
        service = self._names.find_name(share.hardware)
        self._copy(service, share.worker, {NUMBER: "0", SHARE: share.worker}, _share_environment(share), limits)

    def _copy(
        self,
        service: str,
        name: str,
        labels: Mapping[str, str],
        environment: Mapping[str, str],
        limits: Mapping[str, int],
    ) -> None:
        """Start a container with the configuration of the service's first container, and these changes."""
        containers = self._of_service(service)
        if not containers:
            raise ScalingError(f"docker: project {self._project} has no container of the service {service} to copy")
        attributes = containers[0].attrs
        original, networks = attributes["Config"], attributes["NetworkSettings"]["Networks"]
        config = {name: original[name] for name in UNCHANGED if original.get(name) is not None}
        config["Labels"] = {**original["Labels"], **labels}
        config["Env"] = [f"{key}={text}" for key, text in {**_environment(original["Env"]), **environment}.items()]
        config["HostConfig"] = {**attributes["HostConfig"], **limits}
        config["NetworkingConfig"] = {"EndpointsConfig": {name: {"Aliases": [service]} for name in networks}}
        created = self._docker.api.create_container_from_config(config, f"{self._project}-{service}-{name}")
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


def _share_environment(share: WantedShare) -> dict[str, str]:
    return worker_environment(
        msgspec.structs.replace(share, mechanism="container") if share.mechanism == CPU_QUOTA else share
    )


def _environment(entries: Iterable[str] | None) -> dict[str, str]:
    return {name: text for name, _, text in (entry.partition("=") for entry in entries or ())}


def _number(container: Any) -> int:
    return int(container.labels.get(NUMBER, "0"))
