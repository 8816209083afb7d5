"""The wheel `horologe` holds what a user needs to serve and to plan. The laboratory is a distribution of its own."""

from __future__ import annotations

import ast
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.main import get_command

from horologe_cli.main import COMMANDS_GROUP, app

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


def test_the_product_needs_no_package_of_the_laboratory() -> None:
    extras = read_project(".")["project"]["optional-dependencies"]
    needed = " ".join(requirement for requirements in extras.values() for requirement in requirements)
    assert not any(package in needed for package in ("matplotlib", "numba", "scipy"))
