"""Python models with packages of their own, from local wheels: pip never asks an index here."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpu_worker.inspection_harness import RunningScans
from gpu_worker.repository_harness import a_store, only_report
from harness.model_folders import ECHO, a_python_model
from horologe_gpu_worker.repository.manifest import InvalidModel
from horologe_gpu_worker.runtimes.python.requirements_file import read_requirements

if TYPE_CHECKING:
    from pathlib import Path

VERSION = """
import numpy as np
import local_package

class Model:
    def predict_batch(self, inputs):
        return {"y": np.full_like(inputs["x"], local_package.NUMBER)}
"""
ROW = {"x": np.zeros((1, 4), np.float32)}


def a_wheel(folder: Path, number: int) -> str:
    """Write version `number` of the package `local_package` and return its hash."""
    folder.mkdir(parents=True, exist_ok=True)
    path, info = folder / f"local_package-{number}-py3-none-any.whl", f"local_package-{number}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("local_package.py", f"NUMBER = {number}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: local_package\nVersion: {number}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def a_model(tmp_path: Path, name: str, *lines: str, code: str = VERSION) -> Path:
    """Write a model whose requirements are these lines, from the wheels in `<tmp_path>/wheels`."""
    folder = a_python_model(tmp_path / "models", code, name=name, requirements='"requirements.txt"')
    text = "\n".join((f"--no-index --find-links {tmp_path / 'wheels'}", *lines))
    (folder / "requirements.txt").write_text(text)
    return folder


def test_two_models_with_conflicting_packages_run_side_by_side(tmp_path: Path) -> None:
    for number in (1, 2):
        digest = a_wheel(tmp_path / "wheels", number)
        a_model(tmp_path, f"v{number}", f"local-package=={number} \\", f"    --hash=sha256:{digest}")
    running = RunningScans(tmp_path)
    try:
        specs = [running.scan(name)[0].spec for name in ("v1", "v2")]
        models = [running.store.open(spec) for spec in specs]
        assert [model.run(1, ROW)["y"][0, 0] for model in models] == [1, 2]
        for model in models:
            model.close()
    finally:
        running.scans.stop()
    assert any("making the environment of " in text for text in running.progress["v1/1"])
    environments = [path.parent for path in (tmp_path / "cache").glob("environments/*/ready.json")]
    assert len(environments) == 2
    marks = [path / "mark" for path in environments]
    for mark in marks:
        mark.touch()
    assert [report.reason for report in a_store(tmp_path).scan()] == ["", ""]
    assert all(mark.exists() for mark in marks), "an environment was made again"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (("", "local-package==7"), r"requirements.txt line 3: local-package==7: ERROR: .*local-package==7"),
        ((f"local-package==1 --hash=sha256:{'0' * 64}",), r"line 2: local-package==1 .*HASH.* Got +[0-9a-f]{64}"),
        (("--require-hashes", "local-package==1"), "line 3: local-package==1: ERROR: .*--require-hashes"),
        (("-r other.txt",), "requirements.txt line 2: got '-r other.txt', wanted a package"),
    ],
)
def test_a_model_whose_packages_cannot_be_installed_names_the_line(
    tmp_path: Path, lines: tuple[str, ...], reason: str
) -> None:
    a_wheel(tmp_path / "wheels", 1)
    a_model(tmp_path, "code", *lines)
    report = only_report(tmp_path)
    assert report.profile is None
    assert re.search(reason, report.reason), report.reason


@pytest.mark.parametrize(
    "line",
    [
        *("./package", "package.whl/..", "git+https://host/package", "-e .", "a @ https://host/a.tar.gz", "--pre\0"),
        *("--pre -e .", "--pre '-e' .", "--no-index -r other.txt", "--only-binary=:none:", "--only-binary :none:"),
        *("a==1 --no-binary :all:", "a==1 --config-settings=x=y", "a==1 'open", "--pre --no-binary=a"),
        *("a @ https://host/a.tar.gz#b.whl", "a @ https://host/a.tar.gz?b.whl", "-i https://${SECRET}@host/"),
    ],
)
def test_only_wheels_are_requirements(tmp_path: Path, line: str) -> None:
    (tmp_path / "r.txt").write_text(line)
    with pytest.raises(InvalidModel, match=r"r.txt line 1: got "):
        read_requirements(tmp_path, "r.txt")


def test_a_comment_does_not_hide_a_line_that_pip_reads(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("a==1 \\\n # comment \\\n-e .")
    with pytest.raises(InvalidModel, match=r"r.txt line 3: got '-e .'"):
        read_requirements(tmp_path, "r.txt")
    (tmp_path / "r.txt").write_text("a==1\n# coding: utf-7 +AAo--e .")
    with pytest.raises(InvalidModel, match=r"coding: got utf-7, wanted utf-8"):
        read_requirements(tmp_path, "r.txt")


def test_options_for_indexes_are_accepted(tmp_path: Path) -> None:
    lines = [
        "# -*- coding: utf-8 -*-",
        "-i https://host/simple --pre",
        "--only-binary :all:",
        "a==1 ; python_version > '3'",
    ]
    (tmp_path / "r.txt").write_text("\n".join(lines))
    assert [line.text for line in read_requirements(tmp_path, "r.txt").lines] == lines[1:]


def test_an_interpreter_by_its_path_needs_none_of_the_workers_packages(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "own"], check=True)
    python = tmp_path / "own" / "bin" / "python"
    code = "import sys, importlib.util\nassert importlib.util.find_spec('zmq') is None\n"
    code += f"assert sys.prefix == {str(tmp_path / 'own')!r}\n" + ECHO
    a_python_model(tmp_path / "models", code, python=f'"{python}"')
    assert only_report(tmp_path).reason == ""


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"python": "/nowhere/python"}, "python: got '/nowhere/python', wanted an interpreter: No such file"),
        ({"python": "/bin/false"}, "python: got '/bin/false', wanted an interpreter of Python 3.11 or later"),
        ({"python": "python3"}, "python: got 'python3', wanted the absolute path"),
        ({"requirements": "../r.txt"}, "requirements: got '../r.txt', wanted a path in the folder"),
        ({"requirements": "r.txt"}, "code/1/r.txt: .*No such file"),
        ({"requirements": "r.txt", "runtime": "onnx"}, "requirements: got 'r.txt', wanted none for 'onnx'"),
    ],
)
def test_a_wrong_environment_is_named(tmp_path: Path, keys: dict[str, str], reason: str) -> None:
    a_python_model(tmp_path / "models", ECHO, **{key: f'"{value}"' for key, value in keys.items()})
    report = only_report(tmp_path)
    assert re.search(reason, report.reason), report.reason


def test_a_repository_may_be_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_wheel(tmp_path / "wheels", 1)
    a_model(tmp_path, "code", "local-package==1")
    monkeypatch.chdir(tmp_path)
    running = RunningScans(tmp_path, repository="models")
    try:
        assert running.scan("code")[0].reason == ""
    finally:
        running.scans.stop()
