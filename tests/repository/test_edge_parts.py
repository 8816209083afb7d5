"""The parts of the edge (`benchmarks/edge.py`) name files and functions that exist."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
edge_parts = load_script("benchmarks/bench/edge_parts.py", "edge_parts")
CONNECTION = ROOT / "services/frontend/horologe_frontend/http/connection.py"


def sources(place: str) -> list[Path]:
    """Return the modules in a folder, or the module, of which the path of the package is given."""
    package, _, rest = place.partition("/")
    found = [folder / rest for folder in (*ROOT.glob(f"libs/*/{package}"), *ROOT.glob(f"services/*/{package}"))]
    return [source for path in found for source in (path.rglob("*.py") if path.is_dir() else [path])]


def names(source: Path) -> Iterator[str]:
    """Yield the qualified names of the classes, methods and functions of a module."""
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
            yield from (f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef))
        elif isinstance(node, ast.FunctionDef):
            yield node.name


@pytest.mark.parametrize(("place", "name"), [rule[:2] for rule in edge_parts.RULES])
def test_the_functions_of_a_rule_exist(place: str, name: str) -> None:
    assert any(found.startswith(name) for source in sources(place) for found in names(source))


def test_the_functions_that_uvloop_calls_and_that_write_exist() -> None:
    packages = ("horologe_common/", "horologe_frontend/")
    existing = {name for package in packages for source in sources(package) for name in names(source)}
    assert existing >= {*edge_parts.ENTRIES, *edge_parts.WRITES}


def test_a_stack_belongs_to_its_innermost_known_function() -> None:
    frame = [str(CONNECTION), "HttpConnection._on_response", 1, 1]
    heap = ["/horologe_common/core/indexed_heap.py", "IndexedHeap.push", 2, 1]
    frontend = ["/horologe_frontend/core/requests.py", "OpenRequests.add", 2, 1]
    assert edge_parts.part_of([frame]) == edge_parts.FRAMING
    assert edge_parts.part_of([heap, frontend, frame]) == edge_parts.FRONTEND
    assert edge_parts.part_of([heap]) == edge_parts.OTHER


def test_the_line_that_writes_the_response_is_a_part_of_its_own() -> None:
    lines = CONNECTION.read_text(encoding="utf-8").splitlines()
    written = [number for number, line in enumerate(lines, 1) if "_transport.write(b" in line]
    assert written
    assert {edge_parts.part_of([[str(CONNECTION), "HttpConnection._write", line, 1]]) for line in written} == {
        edge_parts.WRITE
    }


def test_shares_are_of_all_samples() -> None:
    entry = [str(CONNECTION), "HttpConnection.data_received", 7, 7]
    shares = edge_parts.count_parts([([entry], 3), ([["/x.py", "f", 2, 1]], 1)])
    assert shares[edge_parts.READ] == 0.75
    assert sum(shares.values()) == 1
