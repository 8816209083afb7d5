"""Every name that a benchmark takes from the project exists, and what it puts in its place is played."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from harness.scripts import load_script

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SCRIPTS = sorted([*BENCHMARKS.glob("*.py"), *BENCHMARKS.glob("bench/**/*.py"), *BENCHMARKS.glob("bench_attacks/*.py")])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(BENCHMARKS)))
def test_imported_names_exist(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("horologe"):
            module = importlib.import_module(node.module)
            for name in node.names:
                if not hasattr(module, name.name):
                    importlib.import_module(f"{node.module}.{name.name}")


def test_the_constants_to_be_varied_exist() -> None:
    constants = load_script("benchmarks/horologe_constants.py", "horologe_constants").CONSTANTS
    missing = [name for name, modules in constants.items() for module in modules if not hasattr(module, name)]
    assert not missing


def test_the_rules_can_be_taken_away() -> None:
    script = load_script("benchmarks/scheduling_rules.py", "scheduling_rules")
    changes = [change for rule in script.RULES.values() for change in rule]
    assert changes
    assert not [change.name for change in changes if not hasattr(change.owner, change.name)]
    for workload in ("11", "25"):  # overloaded: best effort; little memory; static and dynamic models in both
        played = script.play_workload(workload, 100, list(script.RULES))
        assert played.values.keys() == {script.ALL, *script.RULES}
