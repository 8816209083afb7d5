"""The pods of the Helm chart as containers: with their environment, keys, users, probes and the names of Services."""

from __future__ import annotations

import base64
import json
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from docker.types import EndpointConfig, IPAMConfig, IPAMPool

from compose.engine import open_engine
from compose.stack import Stack, wait_until
from horologe_cli.bearer_keys import make_all_keys
from horologe_cli.commands.keys import secret_manifests
from repository.helm_chart import EXAMPLES, Manifest, component, environment, of_kind, pod_templates, render

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(600)]
NETWORK = "horologe-helm-test"
SUBNET = "10.213.77"
MINIMAL = next(path for path in EXAMPLES if path.stem == "minimal")
NOT_RUN = {"redis"}  # a pod of an image that is not ours runs as in the compose file


class Pods:
    """Containers with the environment, mounts, user and rights of the pods that a chart renders."""

    def __init__(self, engine: Any, folder: Path, models: Path, redis_image: str) -> None:
        options = ("--set", f"image.tag=test,redis.image={redis_image}")
        self._manifests = render(MINIMAL, *options)
        make_all_keys(folder / "keys")
        self._secrets = {
            item["metadata"]["name"]: item for item in secret_manifests(folder / "keys", "horologe-keys")["items"]
        }
        self._folder, self._models = folder, models
        self._engine = engine
        pool = IPAMPool(subnet=f"{SUBNET}.0/24")
        self._network = self._engine.networks.create(NETWORK, ipam=IPAMConfig(pool_configs=[pool]))
        self.addresses: dict[str, str] = {}
        self.probes: dict[str, Manifest] = {}

    def start(self) -> None:
        workloads = {**of_kind(self._manifests, "StatefulSet"), **of_kind(self._manifests, "Deployment")}
        for name, template in pod_templates(self._manifests):
            for number in range(workloads[name]["spec"]["replicas"]):
                self._start_pod(f"{name}-{number}", name, template)

    def ready(self) -> set[str]:
        """Return the pods whose readiness probe succeeds."""
        ready = set()
        for pod, probe in self.probes.items():
            ports = {"http": 8000, "metrics": 8002}
            with (
                suppress(OSError),
                urlopen(f"http://{self.addresses[pod]}:{ports[probe['port']]}{probe['path']}", timeout=4),
            ):
                ready.add(pod)
        return ready

    def logs(self) -> str:
        return "\n".join(
            f"{pod.name}: {pod.status}: {pod.logs(tail=5).decode()}" for pod in self._network_containers()
        )  # fmt: skip

    def stop(self) -> None:
        for container in self._network_containers():
            container.remove(force=True, v=True)
        self._network.remove()

    def _network_containers(self) -> list[Any]:
        return list(self._engine.containers.list(all=True, filters={"label": f"pod={NETWORK}"}))

    def _start_pod(self, pod: str, service: str, template: Manifest) -> None:
        address = f"{SUBNET}.{len(self.addresses) + 10}"
        self.addresses[pod] = address
        spec = template["spec"]
        container = spec["containers"][0]
        aliases = [service, f"{pod}.{service}"]
        endpoint = EndpointConfig(self._engine.api._version, ipv4_address=address, aliases=aliases)
        user = spec["securityContext"]["runAsUser"]
        volumes, temporary = self._mounts(pod, container, spec.get("volumes", ()), user)
        api = self._engine.api
        host = api.create_host_config(
            binds=volumes, tmpfs=temporary, read_only=True, cap_drop=["ALL"], security_opt=["no-new-privileges:true"]
        )  # fmt: skip
        created = api.create_container(
            container["image"], container["command"], user=f"{user}:{user}", host_config=host, name=f"{NETWORK}-{pod}",
            environment=environment(template, POD_NAME=pod, POD_IP=address), labels={"pod": NETWORK},
            networking_config=api.create_networking_config({NETWORK: endpoint}), hostname=pod,
        )  # fmt: skip
        api.start(created["Id"])
        if component(template) not in NOT_RUN:
            self.probes[pod] = container["readinessProbe"]["httpGet"]

    def _mounts(self, pod: str, container: Manifest, volumes: Any, user: int) -> tuple[list[str], dict[str, str]]:
        """Return bind mounts, with the files of Secrets, and temporary file systems for all other volumes."""
        by_name = {volume["name"]: volume for volume in volumes}
        binds, temporary = [], {}
        for mount in container["volumeMounts"]:
            volume = by_name.get(mount["name"], {})
            if mount["mountPath"] == "/models":
                binds.append(f"{self._models}:/models:ro")
            elif "secret" in volume:
                folder = self._write_secret(pod, volume["secret"])
                binds.append(f"{folder}:{mount['mountPath']}:ro")
            else:
                temporary[mount["mountPath"]] = f"uid={user}"
        return binds, temporary

    def _write_secret(self, pod: str, source: Manifest) -> Path:
        folder = self._folder / pod / str(source["secretName"])
        folder.mkdir(parents=True)
        data = self._secrets[source["secretName"]]["data"]
        for item in source.get("items") or [{"key": name, "path": name} for name in data]:
            (folder / item["path"]).write_bytes(base64.b64decode(data[item["key"]]))
        return folder


@pytest.fixture(scope="module")
def pods(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    folder = tmp_path_factory.mktemp("helm")
    with closing(Stack(folder, repository)) as stack, open_engine() as engine:
        stack.build()
        pods = Pods(engine, folder, repository, stack.variables["REDIS_IMAGE"])
        try:
            pods.start()
            yield pods
        finally:
            pods.stop()


def test_every_pod_becomes_ready_and_the_system_answers(pods: Pods, tmp_path_factory: pytest.TempPathFactory) -> None:
    try:
        wait_until("every pod to be ready", 90, lambda: pods.ready() == set(pods.probes))
    except AssertionError as error:
        raise AssertionError(f"{set(pods.probes) - pods.ready()}: {pods.logs()}") from error
    key = (pods._folder / "keys" / "http" / "client.secret").read_text().strip()
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [3] * 4}
    body = json.dumps({"inputs": [tensor], "parameters": {"slo_ms": 5000}}).encode()

    def ask(pod: str, headers: dict[str, str]) -> Any:
        with urlopen(
            Request(f"http://{pods.addresses[pod]}:8000/v2/models/twice/infer", body, headers), timeout=10
        ) as answer:
            return json.load(answer)["outputs"][0]["data"]

    for pod in ("horologe-frontend-0", "horologe-frontend-1"):
        bearer = {"Authorization": f"Bearer {key}"}
        assert wait_until("an answer", 60, lambda: ask(pod, bearer)) == [6] * 4  # noqa: B023
        with pytest.raises(HTTPError) as refused:
            ask(pod, {})
        assert refused.value.code == 401
        refused.value.close()
