"""`horologe doctor` reports runtimes and stores without importing them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from fakes.nvml import FakeGpu, FakeNvml, hide_nvml
from horologe_cli.commands import machine
from horologe_cli.doctor import checks, package_checks
from horologe_cli.doctor.finding import Finding
from horologe_cli.doctor.gpu_checks import check_gpus
from horologe_cli.doctor.package_checks import PARTS, check_packages, check_runtimes, check_stores

if TYPE_CHECKING:
    from pathlib import Path


def a_package(folder: Path, name: str, number: str, **files: str) -> None:
    """Write a package that looks installed. Importing it raises."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("raise RuntimeError('imported')")
    for file, text in files.items():
        (folder / name / f"{file}.py").write_text(text)
    write_metadata(folder, name, number)


def write_metadata(folder: Path, name: str, number: str) -> None:
    metadata = folder / f"{name.replace('-', '_')}-{number}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only folder of packages besides the standard library."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *[path for path in sys.path if "packages" not in path]])
    for name in ("torch", "onnxruntime", "redis"):
        for module in [module for module in sys.modules if module.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, module)
    return tmp_path


def finding_of(findings: list[Finding], subject: str) -> Finding:
    (finding,) = [finding for finding in findings if finding.subject == subject]
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
def test_pytorch_is_reported_with_version_and_device(
    only: Path, monkeypatch: pytest.MonkeyPatch, version: str, devices: int, found: str
) -> None:
    a_package(only, "torch", "2.13.0", version=version)
    monkeypatch.setattr(package_checks, "cuda_devices", lambda: devices)
    assert finding_of(list(check_runtimes()), "runtime pytorch").found == found


def test_missing_optional_packages_have_an_install_hint(only: Path) -> None:
    found = [*check_runtimes(), *check_stores()]
    for subject, extra in (("runtime pytorch", "torch"), ("store redis", "redis")):
        finding = finding_of(found, subject)
        assert (finding.level, finding.found) == ("ok", f"not installed: {extra}")
        assert f"horologe[{extra}]" in finding.hint
    assert finding_of(found, "runtime onnx").level == "ok"  # no worker can run here
    write_metadata(only, "psutil", "6")
    assert finding_of(list(check_runtimes()), "runtime onnx").level == "warn"


@pytest.mark.parametrize(
    ("installed", "levels"),
    [
        (("packages", "edge", "worker"), {"packages": "ok", "edge": "ok", "worker": "ok"}),
        (("packages", "edge"), {"packages": "ok", "edge": "ok", "worker": "ok"}),
        (("packages", "worker"), {"packages": "ok", "edge": "ok", "worker": "ok"}),
        (("packages",), {"packages": "ok", "edge": "fail", "worker": "fail"}),
        (("edge", "worker"), {"packages": "fail", "edge": "ok", "worker": "ok"}),
    ],
)
def test_an_installation_has_the_edge_or_the_worker(only: Path, installed: tuple[str, ...], levels: object) -> None:
    for part in installed:
        for name in PARTS[part]:
            write_metadata(only, name, "1.0")
    findings = [finding for finding in check_packages() if finding.subject in PARTS]
    assert {finding.subject: finding.level for finding in findings} == levels
    assert all(finding.hint for finding in findings if finding.level == "fail")


def test_a_part_with_some_of_its_packages_is_incomplete(only: Path) -> None:
    for name in (*PARTS["packages"], *PARTS["worker"], "httptools"):
        write_metadata(only, name, "1.0")
    assert ("edge", "fail", "missing: blake3") in [finding[:3] for finding in check_packages()]


def test_onnxruntime_comes_from_one_of_two_packages(only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_checks, "cuda_devices", lambda: 1)
    a_package(only, "onnxruntime", "1.20")
    assert finding_of(list(check_runtimes()), "runtime onnx").found == "onnxruntime 1.20, CPU"
    write_metadata(only, "onnxruntime-gpu", "1.21")
    assert finding_of(list(check_runtimes()), "runtime onnx").found == "onnxruntime-gpu 1.21, CUDA, 1 device"


def test_hints_print_square_brackets(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    finding = Finding("runtime pytorch", "ok", "not installed", 'pip install "horologe[torch]"')
    monkeypatch.setattr(checks, "run_checks", lambda workers, **settings: [finding])
    with pytest.raises(SystemExit):
        machine.doctor()
    assert '"horologe[torch]"' in capsys.readouterr().out


def test_redis_is_reported_with_its_version(only: Path) -> None:
    a_package(only, "redis", "6.1.0")
    assert finding_of(list(check_stores()), "store redis").found == "redis 6.1.0"


def test_gpus_are_reported_with_persistence_mode_and_mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [FakeGpu(), FakeGpu(persistence=0), FakeGpu(lost=True)]
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    FakeNvml(gpus).install(monkeypatch)
    findings = list(check_gpus())
    assert findings.pop(0) == Finding("NVIDIA driver", "ok", "580.159")
    assert [finding.level for finding in findings] == ["ok", "warn", "warn", "ok"]
    assert findings[0].found == "NVIDIA H100 80GB HBM3, persistence mode on"
    assert findings[1].hint.startswith("nvidia-smi -pm 1")
    assert "GPU is lost" in findings[2].found
    assert findings[3].hint.endswith("nvidia-cuda-mps-control -d")
    (tmp_path / "control").touch()
    assert list(check_gpus())[4].found == f"control daemon in {tmp_path}"


def test_a_machine_without_nvml_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_nvml(monkeypatch)
    (finding,) = check_gpus()
    assert (finding.level, finding.found) == ("ok", "none: NVML Shared Library Not Found")


def test_gpus_are_checked_where_the_packages_of_a_worker_are_missing() -> None:
    code = (
        "import sys; sys.modules['pynvml'] = None\n"
        "from horologe_cli.doctor.gpu_checks import check_gpus\n"
        "(finding,) = check_gpus(); print(finding.level, finding.found)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "ok not checked: the package nvidia-ml-py is not installed\n"
