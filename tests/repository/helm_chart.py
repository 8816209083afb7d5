"""The chart as `helm template` renders it, and questions about the rendered objects."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "horologe"
EXAMPLES = sorted((ROOT / "deploy" / "helm" / "examples").glob("*.yaml"))
NAMESPACE = "serving"
Manifest = dict[str, Any]


def run_helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run helm. Skips the test if there is none."""
    places = os.pathsep.join([os.environ.get("PATH", ""), str(ROOT / ".cache" / "helm")])
    if not (helm := shutil.which("helm", path=places)):
        pytest.skip("no helm: python deploy/helm/fetch_helm.py .cache/helm fetches it")
    return subprocess.run([helm, *arguments], capture_output=True, text=True, timeout=50, check=False)


@cache
def render(values: Path, *options: str) -> tuple[Manifest, ...]:
    """Return the objects of the chart with a file of values."""
    done = run_helm("template", "horologe", str(CHART), "-n", NAMESPACE, "-f", str(values), *options)
    assert done.returncode == 0, done.stderr
    return tuple(document for document in yaml.safe_load_all(done.stdout) if document)


def of_kind(manifests: tuple[Manifest, ...], kind: str) -> dict[str, Manifest]:
    """Return the objects of a kind by name."""
    return {item["metadata"]["name"]: item for item in manifests if item["kind"] == kind}


def pod_templates(manifests: tuple[Manifest, ...]) -> Iterator[tuple[str, Manifest]]:
    """Yield name and pod template of every workload."""
    for kind in ("StatefulSet", "Deployment"):
        for name, item in of_kind(manifests, kind).items():
            yield name, item["spec"]["template"]


def component(template: Manifest) -> str:
    """Return the component that a pod template belongs to."""
    return str(template["metadata"]["labels"]["app.kubernetes.io/component"])


def environment(template: Manifest, **references: str) -> dict[str, str]:
    """Return the variables of the container, with `$(NAME)` replaced by fields of the pod or by `references`."""
    variables: dict[str, str] = dict(references)
    for entry in template["spec"]["containers"][0].get("env", ()):
        value = str(entry.get("value", f"value-of-{entry['name'].lower()}"))
        for name, known in variables.items():
            value = value.replace(f"$({name})", known)
        variables.setdefault(entry["name"], value)
    return variables


def key_files(template: Manifest, secrets: dict[str, Manifest]) -> set[str]:
    """Return the paths of the files of keys in the container, relative to /keys."""
    volumes = {volume["name"]: volume for volume in template["spec"].get("volumes", ())}
    files = set()
    for mount in template["spec"]["containers"][0]["volumeMounts"]:
        if mount["mountPath"].startswith("/keys/"):
            source = volumes[mount["name"]]["secret"]
            names = secrets[source["secretName"]]["data"]
            items = source.get("items") or [{"key": name, "path": name} for name in names]
            assert {item["key"] for item in items} <= set(names), source
            files |= {f"{mount['mountPath'].removeprefix('/keys/')}/{item['path']}" for item in items}
    return files


def permits(manifests: tuple[Manifest, ...], sender: Manifest, receiver: Manifest, port: int) -> bool:
    """Return whether the network policies let pods of two templates, in one namespace, connect."""
    policies = list(of_kind(manifests, "NetworkPolicy").values())
    directions = (("Ingress", receiver, sender, "ingress", "from"), ("Egress", sender, receiver, "egress", "to"))
    for direction, subject, other, key, peers in directions:
        rules = [
            policy["spec"].get(key) or []
            for policy in policies
            if direction in policy["spec"]["policyTypes"] and _selects(policy["spec"]["podSelector"], subject)
        ]
        if rules and not any(_matches(rule, other, port, peers) for group in rules for rule in group):
            return False
    return True


def _matches(rule: Manifest, other: Manifest, port: int, peers: str) -> bool:
    if not any(entry["port"] == port for entry in rule.get("ports", [{"port": port}])):
        return False
    allowed = rule.get(peers)
    return not allowed or any("podSelector" in peer and _selects(peer["podSelector"], other) for peer in allowed)


def _selects(selector: Manifest, template: Manifest) -> bool:
    labels = template["metadata"]["labels"]
    excluded = any(
        labels.get(term["key"]) in term["values"]
        for term in selector.get("matchExpressions", ())
        if term["operator"] == "NotIn"
    )
    return not excluded and selector.get("matchLabels", {}).items() <= labels.items()
