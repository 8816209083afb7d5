"""Scalers `docker` and `swarm` on a real engine, with containers that drain for a moment after SIGTERM."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker
import pytest

from compose.engine import open_engine
from harness.waiting import until
from horologe_common.wanted_shares import WantedShare
from horologe_tuner.scaler import ScalingError
from horologe_tuner.settings import TunerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.compose
IMAGE, PROJECT = "horologe-scaler-test:1", "horologe-scaler-test"
COMMAND = ["/bin/sh", "-c", "trap 'sleep 1; exit 0' TERM; while :; do sleep 0.1; done"]


def root_file_system() -> bytes:
    """Return a tar archive with the shell and `sleep` of this machine, and the libraries that they need."""
    files = {"/bin/sh": Path("/bin/sh").resolve(), "/bin/sleep": Path("/bin/sleep").resolve()}
    for program in list(files.values()):
        for word in subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout.split():
            if word.startswith("/"):
                files[word] = Path(word).resolve()
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, source in files.items():
            tar.add(source, name)
    return archive.getvalue()


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    with open_engine(timeout_s=20) as engine:
        engine.api.import_image_from_data(
            root_file_system(), repository=IMAGE.partition(":")[0], tag=IMAGE.partition(":")[2]
        )
        yield engine
        engine.images.remove(IMAGE, force=True)


@pytest.fixture
def service(engine: Any) -> Iterator[str]:
    """Start the first container of a compose service, as `docker compose up` labels and names it."""
    from testcontainers.core.container import DockerContainer

    labels = {
        "com.docker.compose.project": PROJECT,
        "com.docker.compose.service": "gpu-worker-v100",
        "com.docker.compose.container-number": "1",
    }
    network = engine.networks.create(f"{PROJECT}_default")
    container = (
        DockerContainer(IMAGE).with_command(COMMAND).with_name(f"{PROJECT}-gpu-worker-v100-1").with_env("A", "1")
    )
    container.with_kwargs(labels=labels, network=network.name, restart_policy={"Name": "unless-stopped"})
    with container:
        yield "gpu-worker-v100"
        for other in engine.containers.list(all=True, filters={"label": f"com.docker.compose.project={PROJECT}"}):
            if other.id != container.get_wrapped_container().id:
                other.remove(force=True)
    network.remove()


def settings(scaler: Any, target: str, *names: str) -> TunerSettings:
    return TunerSettings(scaler=scaler, scaler_target=target, scaler_names=names or ("*=gpu-worker-*",))


def test_containers_of_a_compose_service_start_and_drain(engine: Any, service: str) -> None:
    from horologe_tuner.scalers.compose import ComposeScaler

    scaler = ComposeScaler(settings("docker", PROJECT))
    assert scaler.count_workers(("v100",)) == {"v100": 1}
    scaler.set_workers("v100", 3)
    assert scaler.count_workers(("v100",)) == {"v100": 3}
    copies = [engine.containers.get(f"{PROJECT}-{service}-{number}") for number in (1, 2, 3)]
    assert len({container.attrs["Config"]["Hostname"] for container in copies}) == 3
    for container in copies[1:]:
        assert "A=1" in container.attrs["Config"]["Env"]
        assert container.attrs["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
        networks = container.attrs["NetworkSettings"]["Networks"]
        assert service in networks[f"{PROJECT}_default"]["Aliases"]
    scaler.set_workers("v100", 1)
    assert scaler.count_workers(("v100",)) == {"v100": 1}  # those that drain do not count
    until(lambda: engine.containers.get(copies[1].id).status == "exited")
    until(lambda: engine.containers.get(copies[2].id).status == "exited")
    assert engine.containers.get(copies[1].id).attrs["State"]["ExitCode"] == 0  # it ended by itself
    scaler.count_workers(("v100",))
    assert len(engine.containers.list(all=True, filters={"label": f"com.docker.compose.project={PROJECT}"})) == 1
    scaler.set_workers("v100", 0)
    assert scaler.count_workers(("v100",)) == {"v100": 1}  # one is left to copy
    with pytest.raises(ScalingError, match="no container of the service gpu-worker-k80"):
        scaler.set_workers("k80", 1)


def test_shares_are_containers_with_settings_of_their_own(engine: Any, service: str) -> None:
    from horologe_tuner.scalers.compose import ComposeScaler

    scaler = ComposeScaler(settings("docker", PROJECT))
    left = WantedShare("left", "gpu-0", "v100", 40, "mps")
    right = WantedShare("right", "host", "v100", 50, "cpu")
    assert set(scaler.set_shares((left, right))) == {"left", "right"}
    assert scaler.count_workers(("v100",)) == {"v100": 1}  # shares are no workers of a type
    container = engine.containers.get(f"{PROJECT}-{service}-left")
    environment = container.attrs["Config"]["Env"]
    assert {"A=1", "HOROLOGE_WORKER_NAME=left", "HOROLOGE_WORKER_SHARE_PERCENT=40"} <= set(environment)
    assert "HOROLOGE_WORKER_SHARE_MECHANISM=mps" in environment
    limited = engine.containers.get(f"{PROJECT}-{service}-right").attrs
    assert limited["HostConfig"]["NanoCpus"] == round(0.5e9 * engine.info()["NCPU"])
    assert "HOROLOGE_WORKER_SHARE_MECHANISM=container" in limited["Config"]["Env"]
    with pytest.raises(ScalingError, match="share 'left': its container runs with other settings"):
        scaler.set_shares((WantedShare("left", "gpu-0", "v100", 30, "mps"),))
    with pytest.raises(ScalingError, match=r"device 'gpu-0': shares: got 40 \+ 70 percent"):
        scaler.set_shares((left, WantedShare("third", "gpu-0", "v100", 70)))
    assert scaler.set_shares((right,)) == ("right",)
    until(lambda: engine.containers.get(container.id).status == "exited")
    assert scaler.set_shares(()) == ()


@pytest.fixture
def swarm(engine: Any) -> Iterator[Any]:
    if engine.info()["Swarm"]["LocalNodeState"] != "inactive":
        pytest.skip("this engine is part of a swarm already")
    engine.swarm.init(advertise_addr="127.0.0.1", listen_addr="127.0.0.1:2377")
    try:
        yield engine.services.create(IMAGE, COMMAND, name="stack_gpu-worker", stop_grace_period=10_000_000_000)
        for service in engine.services.list():
            service.remove()
    finally:
        engine.swarm.leave(force=True)


def test_the_replicas_of_a_swarm_service_follow(engine: Any, swarm: Any) -> None:
    from horologe_tuner.scalers.swarm import SwarmScaler

    def running() -> int:
        return sum(task["Status"]["State"] == "running" for task in swarm.tasks({"desired-state": "running"}))

    scaler = SwarmScaler(settings("swarm", "stack", "*=gpu-worker"))
    until(lambda: running() == 1)
    scaler.set_workers("v100", 3)
    assert scaler.count_workers(("v100",)) == {"v100": 3}
    until(lambda: running() == 3)
    scaler.set_workers("v100", 1)
    until(lambda: running() == 1)
    engine.services.create(IMAGE, COMMAND, name="stack_everywhere", mode=docker.types.ServiceMode("global"))
    everywhere = SwarmScaler(settings("swarm", "stack", "*=everywhere"))
    with pytest.raises(ScalingError, match="mode: got Global, wanted Replicated"):
        everywhere.count_workers(("v100",))
    with pytest.raises(ScalingError, match="service stack_absent"):
        SwarmScaler(settings("swarm", "stack", "*=absent")).set_workers("v100", 1)
