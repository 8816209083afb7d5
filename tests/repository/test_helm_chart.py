"""The Helm chart: valid for three versions of Kubernetes, and consistent with settings, keys and calls of services."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import yaml

from horologe_cli.bearer_keys import make_all_keys
from horologe_cli.commands.keys import secret_manifests
from horologe_cli.local.topology import settings_sections
from horologe_common.metrics.metric_definitions import METRICS
from horologe_common.service.settings import load_settings
from horologe_tuner.scaler import WorkerNames
from repository.helm_chart import (
    CHART,
    EXAMPLES,
    NAMESPACE,
    ROOT,
    component,
    environment,
    key_files,
    of_kind,
    permits,
    pod_templates,
    render,
    run_helm,
)

if TYPE_CHECKING:
    from pathlib import Path

kubernetes_validate: Any = pytest.importorskip("kubernetes_validate", reason="the extra `dev` is not installed")
VERSIONS = ("1.27", "1.31", "1.35")
EDGE = {"frontend", "selector", "controller", "profiler", "tuner"}
BY_NAME = {path.stem: path for path in EXAMPLES}
each_example = pytest.mark.parametrize("values", EXAMPLES, ids=lambda path: path.stem)


def refusal(*options: str, values: str = "minimal") -> str:
    done = run_helm("template", "horologe", str(CHART), "-f", str(BY_NAME[values]), *options)
    assert done.returncode != 0
    return done.stderr


@each_example
def test_helm_lints_the_chart_without_a_warning(values: Path) -> None:
    done = run_helm("lint", "--strict", "-f", str(values), str(CHART))
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("version", VERSIONS)
@each_example
def test_every_object_is_valid(values: Path, version: str) -> None:
    checked = 0
    for manifest in render(values, "--kube-version", version):
        if manifest["apiVersion"].partition("/")[0] not in ("keda.sh", "monitoring.coreos.com"):
            kubernetes_validate.validate(manifest, version, strict=True)
            checked += 1
    assert checked > 20


@each_example
def test_no_two_objects_have_a_name(values: Path) -> None:
    names = [(item["kind"], item["metadata"]["name"]) for item in render(values)]
    assert len(names) == len(set(names))


@each_example
def test_settings_in_the_environment_exist_and_are_valid(values: Path) -> None:
    sections = settings_sections()
    for name, template in pod_templates(render(values)):
        variables = environment(template)
        known = {
            f"HOROLOGE_{section}_{field}".upper()
            for section, kind in sections.items()
            for field in kind.__struct_fields__
        }
        assert {variable for variable in variables if variable.startswith("HOROLOGE_")} <= known, name
        for section, kind in sections.items():
            load_settings(kind, section, None, variables, None)


@each_example
def test_pods_are_restricted_and_get_no_variables_of_services(values: Path) -> None:
    for name, template in pod_templates(render(values)):
        spec = template["spec"]
        assert spec["enableServiceLinks"] is False, name  # HOROLOGE_CONTROLLER_PORT would be an unknown setting
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        container = spec["containers"][0]
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert {"startupProbe", "livenessProbe", "readinessProbe", "resources"} <= set(container)
        ports = {port["name"] for port in container["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe].get("httpGet", {"port": min(ports)})["port"] in ports
        models = [mount for mount in container["volumeMounts"] if mount["mountPath"] == "/models"]
        assert all(mount["readOnly"] for mount in models)
        has_volume = bool(yaml.safe_load(values.read_text())["models"].get("volume"))
        assert bool(models) == (has_volume and component(template) in ("selector", "gpu-worker"))


@each_example
def test_every_endpoint_leads_to_a_pod_that_accepts_links(values: Path) -> None:
    manifests = render(values)
    hosts = set(of_kind(manifests, "Service"))
    for name, item in of_kind(manifests, "StatefulSet").items():
        hosts |= {f"{name}-{number}.{item['spec']['serviceName']}" for number in range(item["spec"]["replicas"])}
    for name, template in pod_templates(manifests):
        endpoints = environment(template).get("HOROLOGE_LINKS_CONNECT", "")
        for endpoint in filter(None, endpoints.split(",")):
            parts = urlsplit(endpoint)
            assert parts.hostname in hosts, f"{name}: {endpoint}"
            assert parts.port == 8010
    for service in of_kind(manifests, "Service").values():
        selector = service["spec"]["selector"].items()
        targets = [
            template for _, template in pod_templates(manifests) if selector <= template["metadata"]["labels"].items()
        ]
        assert targets
        for template in targets:
            ports = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
            assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


@each_example
def test_a_service_gets_the_keys_that_it_needs_and_no_others(values: Path, tmp_path: Path) -> None:
    make_all_keys(tmp_path, ("alice",), ("carol",))
    secrets = {item["metadata"]["name"]: item for item in secret_manifests(tmp_path, "horologe-keys")["items"]}
    assert not any(
        "alice.key_secret" in item["data"] or "carol.key_secret" in item["data"] for item in secrets.values()
    )
    roles = {"frontend", "selector", "profiler", "tuner", "worker"}
    for _, template in pod_templates(render(values)):
        service, files = component(template), key_files(template, secrets)
        if service == "redis":
            assert not files
        elif service == "gpu-worker":
            assert files == {"service/service.key", "peers/worker.key", "peers/worker.key_secret"}
        else:
            needed = {"service/service.key", "service/service.key_secret", *(f"peers/{role}.key" for role in roles)}
            needed |= {f"peers/{service}.key_secret"} if service in roles else set()
            if service == "frontend":
                needed |= {"clients/alice.key", "management/carol.key", "http/keys.toml"}
            assert files == needed


@each_example
def test_network_policies_permit_the_links_and_nothing_else(values: Path) -> None:
    manifests = render(values)
    templates = {component(template): template for _, template in pod_templates(manifests)}
    stranger = {"metadata": {"labels": {"app": "stranger"}}}
    for name in EDGE & set(templates):
        assert permits(manifests, templates["gpu-worker"], templates[name], 8010)
        assert not permits(manifests, stranger, templates[name], 8010)
        assert permits(manifests, templates["frontend"], templates[name], 8010)
    if "redis" in templates:
        assert permits(manifests, templates["selector"], templates["redis"], 6379)
        for name in ("gpu-worker", "frontend", "controller"):
            assert not permits(manifests, templates[name], templates["redis"], 6379)
    if values.stem != "gpu":
        assert permits(manifests, stranger, templates["frontend"], 8000)
    else:
        assert not permits(manifests, stranger, templates["frontend"], 8000)


def test_the_tuner_may_do_what_its_scaler_calls_and_nothing_else() -> None:
    manifests = render(BY_NAME["gpu"])
    deployments = of_kind(manifests, "Deployment")
    tuner = of_kind(manifests, "StatefulSet")["horologe-tuner"]["spec"]["template"]
    variables = environment(tuner)
    assert variables["HOROLOGE_TUNER_SCALER_TARGET"] == NAMESPACE
    names = WorkerNames(tuple(variables["HOROLOGE_TUNER_SCALER_NAMES"].split(",")))
    assert {names.find_name(hardware) for hardware in ("v100", "a100")} == set(deployments)
    scale, shares = of_kind(manifests, "Role")["horologe-tuner"]["rules"]
    assert (scale["resources"], set(scale["verbs"])) == (["deployments/scale"], {"get", "patch"})
    assert set(scale["resourceNames"]) == set(deployments)
    assert (shares["resources"], set(shares["verbs"])) == (["deployments"], {"get", "list", "create", "delete"})
    assert tuner["spec"]["serviceAccountName"] == "horologe-tuner"
    mounted = [name for name, template in pod_templates(manifests) if template["spec"]["automountServiceAccountToken"]]
    assert mounted == ["horologe-tuner"]
    assert not any("replicas" in deployment["spec"] for deployment in deployments.values())
    assert not of_kind(render(BY_NAME["minimal"]), "Role")


def test_a_worker_on_a_gpu_reserves_it_and_leaves_before_the_next_one_starts() -> None:
    for name, deployment in of_kind(render(BY_NAME["gpu"]), "Deployment").items():
        spec = deployment["spec"]["template"]["spec"]
        assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert spec["containers"][0]["image"] == "registry.example.com/ml/horologe-worker-cuda:1"
        variables = environment(deployment["spec"]["template"])
        assert variables["HOROLOGE_WORKER_DEVICE"] == "cuda"
        assert name.endswith(variables["HOROLOGE_WORKER_HARDWARE"])
        assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_autoscalers_name_their_deployment_and_a_metric_of_workers() -> None:
    manifests = render(BY_NAME["autoscaling"])
    deployments = set(of_kind(manifests, "Deployment"))
    keda = of_kind(manifests, "ScaledObject")["horologe-gpu-worker-cpu"]["spec"]
    query = keda["triggers"][0]["metadata"]["query"]
    metric, labels = re.findall(r"(horologe_\w+)\{([^}]*)\}", query)[0]
    assert metric in METRICS
    assert set(re.findall(r"(\w+)=", labels)) == {*METRICS[metric].labels, "namespace", "pod"}
    hpa = of_kind(manifests, "HorizontalPodAutoscaler")["horologe-gpu-worker-batch"]["spec"]
    assert hpa["metrics"][0]["pods"]["target"] == {"type": "AverageValue", "averageValue": "600m"}
    assert {keda["scaleTargetRef"]["name"], hpa["scaleTargetRef"]["name"]} == deployments
    adapter = (CHART.parent / "README.md").read_text()
    assert hpa["metrics"][0]["pods"]["metric"]["name"] in adapter
    assert metric in adapter


def test_prometheus_finds_every_service_and_its_label() -> None:
    manifests = render(BY_NAME["gpu"])
    monitor = of_kind(manifests, "ServiceMonitor")["horologe"]["spec"]
    labels = monitor["selector"]["matchLabels"].items()
    scraped = {
        service["metadata"]["labels"]["app.kubernetes.io/component"]
        for service in of_kind(manifests, "Service").values()
        if labels <= service["metadata"]["labels"].items()
        and any(port["name"] == monitor["endpoints"][0]["port"] for port in service["spec"]["ports"])
    }
    assert scraped == {*EDGE, "gpu-worker"}
    assert {entry["targetLabel"] for entry in monitor["endpoints"][0]["relabelings"]} == {"job", "service"}


def test_the_alerts_are_those_of_the_compose_file() -> None:
    rules = of_kind(render(BY_NAME["gpu"]), "PrometheusRule")["horologe"]["spec"]
    alerts = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules" / "horologe.yml").read_text())
    assert rules == alerts
    jobs = set(re.findall(r'job=~?"([^"]*)"', json.dumps(rules).replace("\\", "")))
    assert all(re.fullmatch(job, "horologe") for job in jobs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "workers.cpu.replcas=2"], "replcas"),
        (["--set", "workers.cpu.gpus=4"], "gpus"),
        (["--set", "settings.controller.max_queued=5"], "max_queued"),
        (["--set", "frontend.replicas=0"], "replicas"),
        (["--set", "redis.enabled=false"], "redis.url: got nothing"),
        (["--set", "frontend.ingress.enabled=true,frontend.ingress.host=a"], "frontend.ingress.tlsSecret: got nothing"),
        (
            ["--set", "tuner.scaler=kubernetes,workers.cpu.autoscaling.kind=hpa"],
            "workers.cpu.autoscaling.kind: got hpa, wanted none",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(options: list[str], message: str) -> None:
    assert message in refusal(*options)


def test_the_model_volume_is_required() -> None:
    done = run_helm("template", "horologe", str(CHART))
    assert done.returncode != 0
    assert "volume" in done.stderr


@pytest.mark.parametrize("mutual", [False, True])
def test_a_secret_switches_tls_on(mutual: bool) -> None:
    """A probe of Kubernetes has no certificate: with mutual TLS it uses the metrics endpoint."""
    options = ("--set", f"frontend.tls.secret=mine,frontend.tls.clientCa={str(mutual).lower()}")
    templates = {component(template): template for _, template in pod_templates(render(BY_NAME["minimal"], *options))}
    (container,) = templates["frontend"]["spec"]["containers"]
    files = {item["name"]: item["value"] for item in container["env"] if item["name"].startswith("HOROLOGE_TLS")}
    assert files.pop("HOROLOGE_TLS_CERTIFICATE_FILE") == "/tls/tls.crt"
    assert files.pop("HOROLOGE_TLS_PRIVATE_KEY_FILE") == "/tls/tls.key"
    assert files == ({"HOROLOGE_TLS_CLIENT_CA_FILE": "/tls/ca.crt"} if mutual else {})
    probe = container["readinessProbe"]["httpGet"]
    assert (probe["port"], probe["scheme"]) == (("metrics", "HTTP") if mutual else ("http", "HTTPS"))
    volumes = templates["frontend"]["spec"]["volumes"]
    assert "mine" in {volume.get("secret", {}).get("secretName") for volume in volumes}
    assert "tls" not in str(templates["selector"])
