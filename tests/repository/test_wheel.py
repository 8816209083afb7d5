"""The wheel `horologe` holds what a user needs to serve and to plan. The laboratory is a distribution of its own."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.main import get_command

import horologe
from horologe_cli.local.topology import default_repository
from horologe_cli.main import COMMANDS_GROUP, app
from horologe_common.service.entry_points import run_command

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
LABORATORY = {"horologe_experiments", "tests", "benchmarks", "bench", "bench_gpu"}


def read_project(folder: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())


def wheel_packages() -> list[Path]:
    return [ROOT / path for path in read_project(".")["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]


def imported_packages(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


def test_the_wheel_holds_every_package_of_the_product_and_nothing_else() -> None:
    packages = wheel_packages()
    product = [
        path.parent for folder in ("apps", "libs", "services") for path in (ROOT / folder).glob("*/*/__init__.py")
    ]
    assert sorted(packages) == sorted(product)
    assert not LABORATORY & {path.name for package in packages for path in package.rglob("*")}


def test_the_wheel_holds_the_models_of_the_demo() -> None:
    included = read_project(".")["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    models = {path.parent.name for path in (ROOT / "models").glob("*/1")} | {"pipelines"}
    assert included == {f"models/{name}": f"horologe_cli/demo/models/{name}" for name in models}
    assert Path(default_repository()) == ROOT / "models"
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!models/")]
    assert all(any(fnmatch(path, pattern) for pattern in kept) for path in included), "images are built from the wheel"


def test_no_module_of_the_wheel_imports_the_laboratory() -> None:
    modules = [module for package in wheel_packages() for module in package.rglob("*.py")]
    offenders = [module for module in modules if LABORATORY & set(imported_packages(module))]
    assert len(modules) > 100
    assert offenders == []


def test_the_laboratory_adds_its_command_through_an_entry_point() -> None:
    declared = read_project("experiments")["project"]["entry-points"][COMMANDS_GROUP]
    assert declared == {"experiment": "horologe_experiments.command:experiment"}


def test_installed_commands_are_commands_of_horologe() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]  # a group has them
    assert {entry_point.name for entry_point in entry_points(group=COMMANDS_GROUP)} <= set(commands)


def test_every_installed_command_runs_a_module_with_a_main() -> None:
    for name, target in read_project(".")["project"]["scripts"].items():
        command = EntryPoint(name, target, "console_scripts").load()
        assert command.func is run_command
        assert callable(importlib.import_module(*command.args).main)


@pytest.mark.parametrize(
    ("command", "missing", "extra"), [("horologe", "typer", "cli"), ("gpu_worker", "structlog", "service")]
)
def test_a_command_without_its_dependencies_names_the_extra(command: str, missing: str, extra: str) -> None:
    """`pip install horologe` installs the commands, but only the dependencies of the SDK."""
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        f"from horologe_common.service.entry_points import {command}; {command}()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1, result.stderr
    assert missing in result.stderr
    assert f"horologe[{extra}]" in result.stderr


def test_the_distribution_names_its_version_authors_and_links() -> None:
    project = read_project(".")["project"]
    assert project["authors"]
    assert project["urls"]
    assert len(project["classifiers"]) > 5
    assert horologe.__version__ == version("horologe")


def test_only_the_planner_needs_packages_for_numerical_work() -> None:
    extras = read_project(".")["project"]["optional-dependencies"]
    serving = (requirements for extra, requirements in extras.items() if extra not in ("planner", "dev"))
    needed = " ".join(requirement for requirements in serving for requirement in requirements)
    assert not any(package in needed for package in ("matplotlib", "numba", "scipy"))
