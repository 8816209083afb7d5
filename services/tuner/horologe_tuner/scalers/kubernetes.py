"""Workers as pods of Kubernetes Deployments: reads and patches the subresource `scale`.

The service account needs the verbs get and patch for `deployments/scale` in its namespace, and nothing else. For shares
of devices it also needs get, list, create and delete for `deployments`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kubernetes import client, config
from urllib3.exceptions import HTTPError

from horologe_common.service.http_answers import AnswerError, BoundedPool
from horologe_common.service.settings import SettingsError
from horologe_common.wanted_shares import check_shares, worker_environment
from horologe_tuner.scaler import ScalingError, WorkerNames

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_common.wanted_shares import WantedShare
    from horologe_tuner.settings import TunerSettings

TIMEOUT_S = 10
SHARE = "horologe.io/share"
"""Label of the Deployment of a share, and of its pod: the name of the worker."""


class KubernetesScaler:
    """Sets the replicas of Deployments in the namespace `tuner.scaler_target` (default: `default`)."""

    def __init__(self, settings: TunerSettings, api: client.AppsV1Api | None = None) -> None:
        self._namespace = settings.scaler_target or "default"
        self._names = WorkerNames(settings.scaler_names)
        self._api = api or client.AppsV1Api(_api_client())

    def count_workers(self, hardware: tuple[str, ...]) -> Mapping[str, int]:
        """See `Scaler`. Counts the replicas that the Deployments are set to."""
        return {name: self._replicas(name) for name in hardware}

    def set_workers(self, hardware: str, count: int) -> None:
        """See `Scaler`."""
        deployment = self._names.find_name(hardware)
        try:
            self._api.patch_namespaced_deployment_scale(
                deployment, self._namespace, {"spec": {"replicas": count}}, _request_timeout=TIMEOUT_S
            )
        except (client.ApiException, HTTPError, AnswerError) as error:
            raise self._error(deployment, error) from error

    def set_shares(self, wanted: Sequence[WantedShare]) -> tuple[str, ...]:
        """See `Scaler`. A share is a copy of the Deployment of its hardware type, with one pod and other settings."""
        try:
            check_shares(wanted)
            deployments = self._document(
                self._api.list_namespaced_deployment(self._namespace, label_selector=SHARE, _request_timeout=TIMEOUT_S)
            )
            metadata = [item["metadata"] for item in deployments["items"]]
            running = {item["labels"][SHARE]: item["name"] for item in metadata}
            for share in wanted:
                if share.worker not in running:
                    self._create_share(share)
            names = tuple(share.worker for share in wanted)
            for worker in running.keys() - set(names):
                self._api.delete_namespaced_deployment(running[worker], self._namespace, _request_timeout=TIMEOUT_S)
            return names
        except ValueError as error:
            raise ScalingError(str(error)) from error
        except (client.ApiException, HTTPError, AnswerError) as error:
            raise self._error("of a share", error) from error

    def _document(self, answer: object) -> Any:
        """Return an answer of the API as it is in JSON."""
        return self._api.api_client.sanitize_for_serialization(answer)

    def _create_share(self, share: WantedShare) -> None:
        name = self._names.find_name(share.hardware)
        template = self._api.read_namespaced_deployment(name, self._namespace, _request_timeout=TIMEOUT_S)
        spec = self._document(template)["spec"]
        pod, labels = spec["template"], {SHARE: share.worker}
        pod["metadata"]["labels"] = {**pod["metadata"].get("labels", {}), **labels}
        settings = worker_environment(share)
        container = pod["spec"]["containers"][0]
        kept = [entry for entry in container.get("env", ()) if entry["name"] not in settings]
        container["env"] = kept + [{"name": variable, "value": text} for variable, text in settings.items()]
        body: Any = {
            "metadata": {"name": f"{name}-{share.worker}".lower().replace("_", "-"), "labels": labels},
            "spec": {**spec, "replicas": 1, "selector": {"matchLabels": pod["metadata"]["labels"]}},
        }
        self._api.create_namespaced_deployment(self._namespace, body, _request_timeout=TIMEOUT_S)

    def _replicas(self, hardware: str) -> int:
        deployment = self._names.find_name(hardware)
        try:
            scale = self._api.read_namespaced_deployment_scale(deployment, self._namespace, _request_timeout=TIMEOUT_S)
        except (client.ApiException, HTTPError, AnswerError) as error:
            raise self._error(deployment, error) from error
        return int((scale.spec and scale.spec.replicas) or 0)

    def _error(self, deployment: str, error: Exception) -> ScalingError:
        cause = f"{error.status} {error.reason}" if isinstance(error, client.ApiException) else str(error)
        return ScalingError(f"kubernetes: deployment {self._namespace}/{deployment}: {cause}")


def _api_client() -> client.ApiClient:
    """Return a client with the service account of this pod, else with the kubeconfig of the user."""
    settings = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
    except config.ConfigException:
        try:
            config.load_kube_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        except config.ConfigException as error:
            raise SettingsError(
                f"setting tuner.scaler: got 'kubernetes', and no cluster is configured: {error}"
            ) from error
    api = client.ApiClient(settings)
    rest: Any = api.rest_client
    rest.pool_manager = BoundedPool(rest.pool_manager, TIMEOUT_S)
    return api
