"""docker-compose.yml without an engine: variables, restrictions, dependencies, and the files that it mounts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FILES = ("docker-compose.yml", "docker-compose.gpu.yml")
USED = re.compile(r"\$\{([A-Z_]+)(?::-([^}]*))?\}")
EXPLAINED = re.compile(r"((?:^# .*\n)+)^([A-Z_]+)=(.*)$", re.MULTILINE)
OF_COMPOSE = {"COMPOSE_PROJECT_NAME"}
"""Variables that Compose itself reads. With COMPOSE_FILE, it would not read docker-compose.override.yml."""
ONE_OFF = {"keys", "demo"}
EDGE = {"frontend", "selector", "controller", "profiler", "tuner"}


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


SERVICES: dict[str, Any] = read("docker-compose.yml")["services"]
LASTING = sorted(SERVICES.keys() - ONE_OFF)


def test_every_variable_is_explained_with_its_default() -> None:
    explained = {name: default for _, name, default in EXPLAINED.findall((ROOT / ".env.example").read_text())}
    used = dict(found for file in FILES for found in USED.findall((ROOT / file).read_text()))
    assert explained.keys() == used.keys() | OF_COMPOSE
    defaults = {name: default for name, default in used.items() if name not in OF_COMPOSE}
    assert {name: explained[name] for name in defaults} == defaults


def test_a_use_of_a_variable_has_the_same_default_everywhere() -> None:
    uses = [found for file in FILES for found in USED.findall((ROOT / file).read_text())]
    assert len(set(uses)) == len({name for name, _ in uses})


def test_images_for_hosts_without_a_registry_replace_all_others() -> None:
    replaced = dict(line.split("=") for line in (ROOT / "deploy/airgap/images.env").read_text().splitlines()[1:])
    used = {name for file in FILES for name, _ in USED.findall((ROOT / file).read_text()) if name.endswith("_IMAGE")}
    assert replaced.keys() == used - {"WORKER_IMAGE"}


def test_every_part_of_the_system_is_a_service() -> None:
    assert set(LASTING) == EDGE | {"gpu-worker", "redis", "prometheus", "grafana"}


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_services_are_restricted(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert "cpuset" in service
    assert "cpus" not in service, "a quota stops all threads"
    assert name in ONE_OFF or service["restart"] == "unless-stopped"
    assert all(str(volume).endswith(":ro") for volume in service.get("volumes", ()) if str(volume)[0] in "./$")


@pytest.mark.parametrize("name", LASTING)
def test_services_wait_for_healthy_services_and_have_a_health_check(name: str) -> None:
    service = SERVICES[name]
    assert "healthcheck" in service or service["image"].startswith("horologe-"), "the Dockerfile has one"
    for other, dependency in service.get("depends_on", {}).items():
        wanted = "service_completed_successfully" if other in ONE_OFF else "service_healthy"
        assert dependency["condition"] == wanted


def test_the_worker_may_use_real_time_priority() -> None:
    worker = SERVICES["gpu-worker"]
    assert worker["cap_add"] == ["SYS_NICE"]
    assert worker["ulimits"]["rtprio"] == "${WORKER_RTPRIO:-0}", "an engine that may not raise limits must start it"
    assert "ports" not in worker, "replicas cannot share a port of the host"
    assert "container_name" not in worker


def test_the_overlay_reserves_a_gpu() -> None:
    worker = read("docker-compose.gpu.yml")["services"]["gpu-worker"]
    (device,) = worker["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert worker["environment"]["HOROLOGE_WORKER_DEVICE"] == "cuda"
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    stage = dockerfile.partition(f" AS {worker['build']['target']}-build\n")[2].partition("\nFROM ")[0]
    assert "onnx-cuda" in stage, "onnxruntime for the CPU would make every ONNX model UNAVAILABLE"
    assert worker["image"].startswith(f"horologe-{worker['build']['target']}:")


def test_prometheus_scrapes_every_service_of_horologe() -> None:
    jobs = read("deploy/prometheus/prometheus.yml")["scrape_configs"]
    static = {target for job in jobs for config in job.get("static_configs", ()) for target in config["targets"]}
    assert {f"{name}:8002" for name in EDGE} <= static
    assert [config["names"] for job in jobs for config in job.get("dns_sd_configs", ())] == [["gpu-worker"]]


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    folder = ROOT / "deploy/grafana/provisioning"
    sources = [source for path in folder.glob("datasources/*.y*ml") for source in read(str(path))["datasources"]]
    assert [source["url"] for source in sources] == ["http://prometheus:9090"]
    providers = [provider for path in folder.glob("dashboards/*.y*ml") for provider in read(str(path))["providers"]]
    targets = [volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]]
    assert [provider["options"]["path"] in targets for provider in providers] == [True]
