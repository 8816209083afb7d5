"""Folders of pipelines: what is read, and the reason of each pipeline that cannot be served."""

from __future__ import annotations

import os
import py_compile
from pathlib import Path
from textwrap import dedent

import msgspec
import pytest

from harness.pipeline_folders import CHAIN, write_pipelines
from horologe_common.clock import ms
from horologe_common.service.user_files import MAX_FILE_BYTES
from horologe_common.status import InvalidInput
from horologe_selector.drivers.driver_runs import load_driver
from horologe_selector.drivers.pipeline_folder import folder_state, read_pipelines

TENSOR = '[{name = "x", datatype = "FP32", shape = [1, 64]}]'
VALID = f'[p]\nslo = "150ms"\ninputs = {TENSOR}\noutputs = {TENSOR}\n'


def test_a_pipeline_is_read_as_a_model(tmp_path: Path) -> None:
    write_pipelines(tmp_path, {"p": CHAIN, "q": CHAIN})
    first, second = read_pipelines(tmp_path)
    spec = first.spec
    assert (spec.key, spec.runtime, spec.slo_ns, spec.batched, spec.max_batch) == ("p/1", "pipeline", ms(100), True, 16)
    assert (first.reason, second.spec.name) == ("", "q")
    assert callable(load_driver(tmp_path / "p.py"))


def test_the_content_changes_with_driver_and_table(tmp_path: Path) -> None:
    hashes, states = [], []
    for source, slo in ((CHAIN, "1s"), (CHAIN + "\n", "1s"), (CHAIN, "2s")):
        write_pipelines(tmp_path, {"p": source}, slo)
        hashes.append(read_pipelines(tmp_path)[0].spec.content_hash)
        states.append(folder_state(tmp_path))
    assert len(set(hashes)) == len(set(states)) == 3


def test_a_driver_of_the_same_size_and_time_is_read_again(tmp_path: Path) -> None:
    """Neither the times of copies nor compiled files of an earlier source hide a change."""
    results, states, definitions = [], [], []
    for number in (1, 2):
        write_pipelines(tmp_path, {"p": f"NUMBER = {number}\n{dedent(CHAIN)}"})
        for path in tmp_path.glob("p*.*"):
            os.utime(path, ns=(0, 0))
        if number == 1:
            py_compile.compile(str(tmp_path / "p.py"))
        results.append(load_driver(tmp_path / "p.py").__globals__["NUMBER"])
        states.append(folder_state(tmp_path))
        definitions.append(read_pipelines(tmp_path)[0])
    assert results == [1, 2]
    assert states[0] != states[1]
    assert definitions[0].spec.content_hash != definitions[1].spec.content_hash


def test_a_driver_that_was_written_is_started_again_even_with_the_same_content(tmp_path: Path) -> None:
    write_pipelines(tmp_path, {"p": CHAIN})
    before = read_pipelines(tmp_path)
    assert read_pipelines(tmp_path) == before
    (tmp_path / "p.py").write_text((tmp_path / "p.py").read_text())
    assert read_pipelines(tmp_path) != before


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        ("", "got no table, wanted one with inputs, outputs and slo"),
        ("p = 3", "Expected `object`, got `int`"),
        (VALID + "speed = 3\n", "Object contains unknown field `speed`"),
        (VALID.replace('"150ms"', '"fast"'), "slo: got 'fast', wanted a number with one of ns, us, ms, s, min"),
        (VALID.replace('"150ms"', '"0s"'), "slo: got '0s', wanted more than 0"),
        (VALID.replace("FP32", "FP33"), "inputs: x: datatype: got 'FP33', wanted one of BOOL"),
        (VALID.replace("64", "-2"), "inputs: x: shape: got [1, -2], wanted sizes, or -1"),
        (VALID.replace("64", "99999999999999999999"), "inputs: x: shape: got [1, 99999999999999999999], wanted"),
        (VALID.replace("64", ", ".join(["2"] * 40)), "shape: got [1, 2, 2"),
        (
            VALID + "max_rows = 99999999999999999999\n",
            "max_rows: got 99999999999999999999, wanted at least 1 and at most 1048576",
        ),
        (VALID + "max_rows = 0\n", "max_rows: got 0, wanted at least 1"),
        (VALID + "max_rows = '4'\n", "Expected `int`, got `str` - at `$.max_rows`: got '4'"),
        (VALID + "max_rows = nan\n", "Expected `int`, got `float` - at `$.max_rows`: got nan"),
        (VALID + "cache_ttl = '-1s'\n", "cache_ttl: got '-1s', wanted at least 0"),
        (VALID.replace("150ms", "20000min"), "slo: got '20000min', wanted more than 0, at most 604800s"),
        (VALID.replace('"x"', f'"{"x" * 2000}"'), "wanted 1 to 1024 characters"),
        (VALID.replace(TENSOR, "[]", 1), "inputs: got none, wanted at least one tensor"),
    ],
)
def test_an_invalid_table_names_field_and_wanted_value(tmp_path: Path, manifest: str, reason: str) -> None:
    write_pipelines(tmp_path, {"p": CHAIN, "good": CHAIN})
    good = (tmp_path / "pipeline.toml").read_text().partition("[good]")[2]
    (tmp_path / "pipeline.toml").write_text(f"{manifest}\n[good]{good}")
    by_name = {definition.spec.name: definition for definition in read_pipelines(tmp_path)}
    assert reason in by_name["p"].reason
    assert by_name["good"].reason == ""


def test_files_that_are_no_drivers_do_not_affect_the_others(tmp_path: Path) -> None:
    write_pipelines(tmp_path, {"good": CHAIN, "pipe": CHAIN, "large": CHAIN})
    (tmp_path / "pipe.py").unlink()
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "large.py").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.py"))).touch()
    definitions = read_pipelines(tmp_path)
    msgspec.msgpack.encode([(definition.spec, definition.reason) for definition in definitions])
    by_name = {definition.spec.name: definition.reason for definition in definitions}
    assert by_name["good"] == ""
    assert "wanted a regular file" in by_name["pipe"]
    assert f"wanted at most {MAX_FILE_BYTES}" in by_name["large"]
    assert "wanted 1 to 128 printable characters" in by_name["?"]


def test_a_table_without_a_driver_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text(VALID)
    (definition,) = read_pipelines(tmp_path)
    assert "p.py: got no file" in definition.reason


def test_a_name_with_a_slash_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text(VALID.replace("[p]", '["p/2"]'))
    assert "without '/'" in read_pipelines(tmp_path)[0].reason


@pytest.mark.parametrize("text", ["[p", "p = " + "[" * 5000])
def test_a_manifest_that_is_no_toml_raises(tmp_path: Path, text: str) -> None:
    (tmp_path / "pipeline.toml").write_text(text)
    with pytest.raises(InvalidInput, match="pipeline"):
        read_pipelines(tmp_path)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("async def run(call, inputs:", "p.py: line 1: '(' was never closed"),
        ("import nothing_of_this_name", "p.py: line 1: ModuleNotFoundError"),
        ("\nraise SystemExit(3)", "p.py: line 2: SystemExit: 3"),
        ("import json\njson.loads('no')", "p.py: line 2: JSONDecodeError"),
        ("def run(call, inputs): pass", "p.py: got no `async def run(call, inputs)`"),
        ("async def run(call): pass", "p.py: got no `async def run(call, inputs)`"),
    ],
)
def test_a_faulty_driver_file_names_line_and_error(tmp_path: Path, source: str, reason: str) -> None:
    (tmp_path / "p.py").write_text(source)
    with pytest.raises(InvalidInput) as raised:
        load_driver(tmp_path / "p.py")
    assert raised.value.reason.startswith(reason)
