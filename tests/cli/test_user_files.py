"""Files that users write: their bytes and depth are limited before a parser that is not linear sees them."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from horologe_cli.commands.serving.application_text import read_application
from horologe_cli.planning.planning_problem import read_plans
from horologe_cli.planning.workload_file import read_problem_file
from horologe_common.metrics.endpoint import MetricsSettings
from horologe_common.service.settings import load_settings
from horologe_common.service.user_files import MAX_DEPTH, MAX_FILE_BYTES, parse_toml, read_file, read_json, read_toml
from horologe_common.status import HorologeError
from horologe_gpu_worker.repository.manifest import read_manifest
from horologe_selector.drivers.pipeline_folder import read_pipelines
from horologe_sim.scenario.table_reading import read_table

if TYPE_CHECKING:
    from collections.abc import Callable

DEEP = ".".join(["a"] * 20_000)

BOMBS = {
    "key": f"{DEEP} = 1",
    "table": f"[{DEEP}]",
    "array of tables": f"[[{DEEP}]]",
    "inline table": f"x = {{{DEEP} = 1}}",
    "quoted parts": ".".join(['"a"'] * 20_000) + " = 1",
    "empty parts": ".".join(['""'] * 20_000) + " = 1",
    "literal parts": ".".join(["'a'"] * 20_000) + " = 1",
    "spaces": " . ".join(["a"] * 20_000) + " = 1",
    "behind a string": f'x = ["""a"""", {{{DEEP} = 1}}]',
    "behind a literal string": f"x = [''''a''''', {{{DEEP} = 1}}]",
    "behind an escape": f'x = ["\\\\", {{{DEEP} = 1}}]',
    "behind a comment": f"x = 1 # '''\n{DEEP} = 1",
    "behind a hash in a string": f"x = '#'\n{DEEP} = 1",
    "arrays": "x = " + "[" * 5_000 + "]" * 5_000,
    "tables": "x = " + "{a = " * 5_000 + "1" + "}" * 5_000,
}

SOUND = {
    "dots in strings": f"x = \"{DEEP}\"\ny = '{DEEP}'\n# {DEEP}",
    "dots in long strings": f'x = """{DEEP}\n"" \\""" {DEEP}"""\ny = \'\'\'{DEEP}\'{DEEP}\'\'\'',
    "brackets in strings": f'x = "{"[" * 100}"  # {"{" * 100}',
    "many numbers": "x = [" + "1.5, " * 5_000 + "]",
    "many keys": "".join(f"a.b.c.d{number} = 1.5\n" for number in range(2_000)),
    "as deep as permitted": ".".join(["a"] * MAX_DEPTH) + " = " + "[" * MAX_DEPTH + "]" * MAX_DEPTH,
    "tables side by side": "x = [" + "{a = [1]}, " * 1_000 + "]",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_deep_text_is_refused_before_it_is_parsed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tomllib, "loads", lambda text: pytest.fail("parsed"))
    with pytest.raises(ValueError, match=f"wanted at most {MAX_DEPTH}"):
        parse_toml(BOMBS[name].encode())


@pytest.mark.parametrize("name", SOUND)
def test_a_text_that_only_looks_deep_is_read(name: str) -> None:
    assert parse_toml(SOUND[name].encode()) == tomllib.loads(SOUND[name])


@pytest.mark.parametrize(
    "text",
    [
        '\\"""\n' * 50_000 + "\\",
        "'''" * 80_001,
        '"\n' * 120_000,
        '"""\\' * 60_000,
        "x = '\n" * 50_000,
        "'''\"\"\"" * 40_000,
    ],
)
def test_the_check_of_broken_texts_ends(text: str) -> None:
    with pytest.raises(tomllib.TOMLDecodeError):
        parse_toml(text.encode())


def test_a_byte_order_mark_is_ignored_and_other_encodings_are_named() -> None:
    assert parse_toml(b"\xef\xbb\xbfx = 1") == {"x": 1}
    with pytest.raises(ValueError, match="utf-8"):
        parse_toml(b"x = '\xff'")


def test_larger_files_and_other_kinds_of_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"#" * MAX_FILE_BYTES)
    assert len(read_file(path)) == MAX_FILE_BYTES
    path.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ValueError, match=f"got more than {MAX_FILE_BYTES} bytes"):
        read_file(path)
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ValueError, match="wanted a regular file"):
            read_file(other)
    with pytest.raises(OSError, match="directory"):
        read_file(tmp_path)


def test_a_command_reads_a_pipe_and_no_endless_device(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"x = 1")
    os.close(writer)
    try:
        assert read_toml(Path(f"/dev/fd/{reader}"), wait=True) == {"x": 1}
    finally:
        os.close(reader)
    assert read_toml(Path("/dev/null"), wait=True) == {}
    with pytest.raises(ValueError, match="got more than"):
        read_file(Path("/dev/zero"), wait=True)


def test_deep_json_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(path, object)


def read_model(path: Path) -> Any:
    return read_manifest(path.rename(path.with_name("model.toml")).parent)


def read_pipeline(path: Path) -> Any:
    return read_pipelines(path.rename(path.with_name("pipeline.toml")).parent)


READERS: dict[str, Callable[[Path], Any]] = {
    "model.toml": read_model,
    "pipeline.toml": read_pipeline,
    "settings": lambda path: load_settings(MetricsSettings, "metrics", path, {}),
    "scenario": lambda path: read_table("scenario", path),
    "provisioning": read_problem_file,
    "application": lambda path: read_application(str(path), {}),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("bomb", ["key", "table", "arrays"])
def test_every_reader_of_toml_refuses_a_deep_file(reader: str, bomb: str, tmp_path: Path) -> None:
    path = tmp_path / "file.toml"
    path.write_text(BOMBS[bomb])
    with pytest.raises(HorologeError, match=f"wanted at most {MAX_DEPTH}"):
        READERS[reader](path)


@pytest.mark.parametrize("reader", ["model.toml", "pipeline.toml", "settings"])
def test_every_reader_of_a_service_refuses_a_large_file(reader: str, tmp_path: Path) -> None:
    path = tmp_path / "file.toml"
    path.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(HorologeError, match=f"wanted at most {MAX_FILE_BYTES}"):
        READERS[reader](path)


def test_a_deep_plan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"version": 1, "plans": [], "report": {"deep": ' + "[" * 100_000 + "]" * 100_000 + "}}")
    with pytest.raises(HorologeError, match="recursion depth"):
        read_plans(path)
