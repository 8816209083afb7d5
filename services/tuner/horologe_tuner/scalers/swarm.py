"""Workers as tasks of Docker Swarm services. Swarm starts tasks, and stops them with SIGTERM and the grace period."""

from __future__ import annotations

from typing import TYPE_CHECKING

import docker
from docker.errors import DockerException

from horologe_common.service.http_answers import bound_session
from horologe_common.service.settings import SettingsError
from horologe_tuner.scaler import ScalingError, WorkerNames

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_common.wanted_shares import WantedShare
    from horologe_tuner.settings import TunerSettings

ENGINE_TIMEOUT_S = 30


class SwarmScaler:
    """Sets the replicas of services. With a stack (`tuner.scaler_target`), their names are `STACK_NAME`."""

    def __init__(self, settings: TunerSettings) -> None:
        self._prefix = f"{settings.scaler_target}_" if settings.scaler_target else ""
        self._names = WorkerNames(settings.scaler_names)
        try:
            self._docker = docker.from_env(timeout=ENGINE_TIMEOUT_S)
            bound_session(self._docker.api, ENGINE_TIMEOUT_S)
        except DockerException as error:
            raise SettingsError(f"setting tuner.scaler: got 'swarm', and no engine answers: {error}") from error

    def count_workers(self, hardware: tuple[str, ...]) -> Mapping[str, int]:
        """See `Scaler`. Counts the replicas that the services are set to."""
        return {name: self._replicas(name) for name in hardware}

    def set_workers(self, hardware: str, count: int) -> None:
        """See `Scaler`."""
        service = self._prefix + self._names.find_name(hardware)
        try:
            self._docker.services.get(service).scale(count)
        except DockerException as error:
            raise ScalingError(f"swarm: service {service}: {error}") from error

    def set_shares(self, wanted: Sequence[WantedShare]) -> tuple[str, ...]:
        """Raise ScalingError: the tasks of a service have equal settings, so they cannot own different shares."""
        raise ScalingError(
            "swarm: shares: tasks of a service have equal settings, wanted tuner.scaler docker or process"
        )

    def _replicas(self, hardware: str) -> int:
        service = self._prefix + self._names.find_name(hardware)
        try:
            mode = self._docker.services.get(service).attrs["Spec"]["Mode"]
        except DockerException as error:
            raise ScalingError(f"swarm: service {service}: {error}") from error
        if "Replicated" not in mode:
            raise ScalingError(f"swarm: service {service}: mode: got {', '.join(mode)}, wanted Replicated")
        return int(mode["Replicated"].get("Replicas", 0))
