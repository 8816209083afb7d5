"""Writes docker-compose.yml as a stack for `docker stack deploy` to standard output. See README.md in this folder.

A stack differs from the compose file: keys are secrets, networks are overlays, each task has a name of its own, and an
update starts the new task before it stops the old one wherever two tasks may run side by side.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
KEPT = {
    "cap_add", "cap_drop", "command", "environment", "healthcheck", "image", "init", "logging", "networks", "read_only",
    "stop_grace_period", "tmpfs", "ulimits", "user", "volumes",
}  # fmt: skip
"""Keys of a compose service that mean the same in a stack."""
LEFT_OUT = {"keys", "demo"}
OVERLAPPING = {"frontend", "selector", "gpu-worker"}
"""Services of which several tasks may run, each under the name of its task."""
STATEFUL = {"controller", "profiler", "tuner", "redis", "prometheus", "grafana"}
"""Services with a local volume: they stay on the node with the label `horologe.state`."""
PORTS = [
    {"target": 8000, "published": "${HTTP_PORT:-8000}", "protocol": "tcp"},
    {"target": 8001, "published": "${GRPC_PORT:-8001}", "protocol": "tcp"},
    {"target": 8003, "published": "${CLIENTS_PORT:-8003}", "protocol": "tcp"},
]
SERVICE_KEYS = ("service/service.key", "service/service.key_secret")
PEERS = ("frontend", "selector", "profiler", "tuner", "worker")
USER = "1000"


def key_files(keys: Path, service: str) -> list[str]:
    """Return the files of the folder of keys that a service needs, as paths in the folder."""
    if service == "gpu-worker":
        return ["service/service.key", "peers/worker.key", "peers/worker.key_secret"]
    files = [*SERVICE_KEYS, *(f"peers/{name}.key" for name in PEERS)]
    if service in PEERS:
        files.append(f"peers/{service}.key_secret")
    if service == "frontend":
        groups = ("clients/*.key", "management/*.key", "http/*.toml")
        files += sorted(str(path.relative_to(keys)) for group in groups for path in keys.glob(group))
    return files


def secret_name(file: str) -> str:
    """Return the name of the secret with a file of the folder of keys."""
    return file.replace("/", ".")


def convert_service(name: str, service: dict[str, Any], keys: Path) -> dict[str, Any]:
    """Return a service of the stack."""
    converted = {key: value for key, value in service.items() if key in KEPT}
    converted["volumes"] = [volume for volume in service.get("volumes", []) if ":/keys" not in volume]
    environment = dict(service.get("environment", {}))
    if "HOROLOGE_LINKS_KEYS" in environment:
        converted["secrets"] = [
            {"source": secret_name(file), "target": f"/keys/{file}", "uid": USER, "gid": USER, "mode": 0o400}
            for file in key_files(keys, name)
        ]
    # `tasks.NAME` has the addresses of the tasks themselves. Behind the virtual address of a service, IPVS would end
    # links that are idle for 15 minutes.
    for variable, scheme in (("HOROLOGE_LINKS_CONNECT", "tcp://"), ("HOROLOGE_SELECTOR_REDIS", "redis://")):
        if variable in environment:
            environment[variable] = environment[variable].replace(scheme, f"{scheme}tasks.")
    if "HOROLOGE_LINKS_ADVERTISE" in environment:
        environment["HOROLOGE_LINKS_ADVERTISE"] = "tcp://{{.Task.Name}}:8010"
    if name in ("frontend", "selector"):
        environment[f"HOROLOGE_{name.upper()}_NAME"] = "{{.Task.ID}}"
    if name == "frontend":
        # The routing mesh hides the addresses of clients: all of them are one client.
        environment["HOROLOGE_HTTP_CLIENT_SHARE"] = "1.0"
        converted["ports"] = PORTS
    if name == "controller":
        # Its name leads to it once it is healthy: until then, requests wait.
        converted["healthcheck"] = {"interval": "1s"}
    if name == "tuner":
        environment["HOROLOGE_TUNER_SCALER_TARGET"] = "${STACK:-horologe}"
    if name == "prometheus":
        converted["configs"] = [{"source": "prometheus", "target": "/etc/stack/prometheus.yml"}]
        converted["command"] = [
            word.replace("/etc/prometheus/prometheus.yml", "/etc/stack/prometheus.yml") for word in service["command"]
        ]
    if environment:
        converted["environment"] = environment
    converted["deploy"] = deployment(name, service)
    return converted


def deployment(name: str, service: dict[str, Any]) -> dict[str, Any]:
    """Return how Swarm places, restarts and updates the tasks of a service."""
    order = "start-first" if name in OVERLAPPING else "stop-first"
    change = {"parallelism": 1, "order": order, "monitor": "5s", "failure_action": "pause"}
    deploy: dict[str, Any] = {
        "replicas": 1,
        "restart_policy": {"condition": "any", "delay": "1s"},
        "update_config": {**change, "failure_action": "rollback"},
        "rollback_config": change,
    }
    if name in STATEFUL:
        deploy["placement"] = {"constraints": ["node.labels.horologe.state == true"]}
    limits = {"memory": service.get("mem_limit"), "pids": service.get("pids_limit")}
    if limits := {key: value for key, value in limits.items() if value}:
        deploy["resources"] = {"limits": limits}
    return deploy


def convert(compose: dict[str, Any], keys: Path) -> dict[str, Any]:
    """Return the stack of a compose file."""
    services = {
        name: convert_service(name, service, keys)
        for name, service in compose["services"].items()
        if name not in LEFT_OUT
    }
    used = {secret["source"] for service in services.values() for secret in service.get("secrets", ())}
    files = {secret_name(file): file for name in services for file in key_files(keys, name)}
    mounted = {volume.partition(":")[0] for service in services.values() for volume in service["volumes"]}
    networks = {name: {"driver": "overlay", **(network or {})} for name, network in compose["networks"].items()}
    networks["default"]["attachable"] = True  # for containers of clients: docker run --network STACK_default
    return {
        "version": "3.9",
        "services": services,
        "networks": networks,
        "volumes": {name: {} for name in compose["volumes"] if name in mounted},
        "secrets": {name: {"file": str(keys / files[name])} for name in sorted(used)},
        "configs": {"prometheus": {"file": str(ROOT / "deploy" / "swarm" / "prometheus.yml")}},
    }


def main(arguments: list[str] | None = None) -> int:
    """Write the stack. Return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("keys", type=Path, help="folder of `horologe keys`")
    parser.add_argument(
        "--no-ports", action="store_true", help="publish no ports: clients are in the network STACK_default"
    )
    options = parser.parse_args(arguments)
    keys = options.keys.resolve()
    if not (keys / "service" / "service.key_secret").exists():
        sys.stderr.write(f"{keys}: has no keys, wanted a folder of `horologe keys`\n")
        return 2
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    stack = convert(compose, keys)
    if options.no_ports:
        del stack["services"]["frontend"]["ports"]
    yaml.safe_dump(stack, sys.stdout, sort_keys=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
