"""The stack that deploy/swarm writes: each service gets its keys, a name of its own and an update that fits it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from harness.scripts import load_script
from horologe_cli.bearer_keys import make_all_keys
from horologe_cli.local.topology import settings_sections

if TYPE_CHECKING:
    from types import ModuleType

LOST_WITH_A_NODE = {"cache", "recordings"}
"""Volumes that a service can do without on another node."""


@pytest.fixture(scope="module")
def module() -> ModuleType:
    module: ModuleType = load_script("deploy/swarm/stack.py", "swarm_stack")
    return module


@pytest.fixture
def stack(module: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    make_all_keys(tmp_path, ("alice",), ("carol",))
    assert module.main([str(tmp_path)]) == 0
    document: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    return document


def test_a_service_gets_the_keys_that_it_needs_and_no_others(stack: dict[str, Any]) -> None:
    secrets = {
        name: {secret["source"] for secret in service.get("secrets", ())} for name, service in stack["services"].items()
    }
    assert secrets["gpu-worker"] == {"service.service.key", "peers.worker.key", "peers.worker.key_secret"}
    assert {name for name, files in secrets.items() if "service.service.key_secret" in files} == {
        "controller", "frontend", "selector", "profiler", "tuner",
    }  # fmt: skip
    assert not any("alice.key_secret" in file for files in secrets.values() for file in files)
    assert {"clients.alice.key", "management.carol.key", "http.keys.toml"} <= secrets["frontend"]
    assert set().union(*secrets.values()) == set(stack["secrets"])
    assert all(Path(secret["file"]).exists() for secret in stack["secrets"].values())


def test_settings_of_the_stack_exist(stack: dict[str, Any]) -> None:
    sections = settings_sections().items()
    known = {f"HOROLOGE_{section}_{field}".upper() for section, kind in sections for field in kind.__struct_fields__}
    for service in stack["services"].values():
        variables = set(service.get("environment", ()))
        assert {name for name in variables if name.startswith("HOROLOGE_")} <= known


def test_services_that_may_overlap_have_a_name_for_each_task(stack: dict[str, Any], module: ModuleType) -> None:
    for name, service in stack["services"].items():
        order = service["deploy"]["update_config"]["order"]
        assert (order == "start-first") == (name in module.OVERLAPPING), name
        named = str(service.get("environment")) + str(service.get("command"))
        assert ("{{.Task.ID}}" in named or "$$HOSTNAME" in named) == (name in module.OVERLAPPING), name


def test_a_service_with_a_volume_of_its_own_stays_on_its_node(stack: dict[str, Any], module: ModuleType) -> None:
    for name, service in stack["services"].items():
        local = {volume.partition(":")[0] for volume in service["volumes"]} & set(stack["volumes"])
        assert ("placement" in service["deploy"]) == bool(local - LOST_WITH_A_NODE), name


def test_no_service_without_a_password_is_published(stack: dict[str, Any]) -> None:
    assert {name for name, service in stack["services"].items() if "ports" in service} == {"frontend"}


def test_a_folder_without_keys_is_refused(
    module: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert module.main([str(tmp_path)]) == 2
    assert "has no keys" in capsys.readouterr().err
