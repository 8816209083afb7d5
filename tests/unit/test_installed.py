"""What `horologe doctor` says of runtimes and stores, without importing them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from horologe_cli.commands import machine
from horologe_cli.doctor import checks, installed_packages
from horologe_cli.doctor.finding import Finding
from horologe_cli.doctor.installed_packages import runtimes, stores

if TYPE_CHECKING:
    from pathlib import Path


def a_package(folder: Path, name: str, number: str, **files: str) -> None:
    """Installed, as far as one can see from outside; to import it is an error."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("raise RuntimeError('imported')")
    for file, text in files.items():
        (folder / name / f"{file}.py").write_text(text)
    about(folder, name, number)


def about(folder: Path, name: str, number: str) -> None:
    metadata = folder / f"{name.replace('-', '_')}-{number}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder with packages, beside the standard library."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *[place for place in sys.path if "packages" not in place]])
    for name in ("torch", "onnxruntime", "redis"):
        for module in [known for known in sys.modules if known.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, module)
    return tmp_path


def told(findings: list[Finding], subject: str) -> Finding:
    (finding,) = [one for one in findings if one.subject == subject]
    return finding


@pytest.mark.parametrize(
    ("version", "devices", "found"),
    [
        ("__version__ = '2.13.0+cpu'\ncuda = None", 1, "torch 2.13.0+cpu, CPU"),
        ("__version__ = '2.13.0'\ncuda = '13.0'", 2, "torch 2.13.0, CUDA 13.0, 2 devices"),
        ("__version__ = '2.13.0'\ncuda = '13.0'", 0, "torch 2.13.0, CUDA 13.0, no device: CPU"),
        ("", 0, "torch 2.13.0, CPU"),
    ],
)
def test_pytorch_with_its_version_and_device(
    only: Path, monkeypatch: pytest.MonkeyPatch, version: str, devices: int, found: str
) -> None:
    a_package(only, "torch", "2.13.0", version=version)
    monkeypatch.setattr(installed_packages, "cuda_devices", lambda: devices)
    assert told(list(runtimes()), "runtime pytorch").found == found


def test_what_is_optional_is_named_with_how_to_get_it(only: Path) -> None:
    found = [*runtimes(), *stores()]
    for subject, extra in (("runtime pytorch", "torch"), ("store redis", "redis")):
        finding = told(found, subject)
        assert (finding.level, finding.found) == ("ok", f"not installed: {extra}")
        assert f"horologe[{extra}]" in finding.hint
    assert told(found, "runtime onnx").level == "warn"


def test_onnx_is_either_of_two_packages(only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed_packages, "cuda_devices", lambda: 1)
    a_package(only, "onnxruntime", "1.20")
    assert told(list(runtimes()), "runtime onnx").found == "onnxruntime 1.20, CPU"
    about(only, "onnxruntime-gpu", "1.21")
    assert told(list(runtimes()), "runtime onnx").found == "onnxruntime-gpu 1.21, CUDA, 1 device"


def test_a_hint_shows_the_extra_to_people(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    finding = Finding("runtime pytorch", "ok", "not installed", 'pip install "horologe[torch]"')
    monkeypatch.setattr(checks, "examine", lambda workers: [finding])
    with pytest.raises(SystemExit):
        machine.doctor()
    assert '"horologe[torch]"' in capsys.readouterr().out


def test_redis_with_its_version(only: Path) -> None:
    a_package(only, "redis", "6.1.0")
    assert told(list(stores()), "store redis").found == "redis 6.1.0"
