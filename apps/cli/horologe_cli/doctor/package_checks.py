"""Checks of versions: system, installed packages, runtimes and stores. They import none of the packages."""

from __future__ import annotations

import platform
import sqlite3
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from horologe_cli.doctor.finding import Finding, graded
from horologe_cli.local.machine import cuda_devices, read_torch_version

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKER_PACKAGE = "psutil"
PARTS = {
    "packages": ("horologe", "pyzmq", "msgspec", "numpy", "uvloop", "structlog", "prometheus_client"),
    "edge": ("httptools", "blake3"),
    "worker": (WORKER_PACKAGE,),
}
"""Packages that every service needs, and those of the parts that an installation may lack."""


def check_packages() -> Iterator[Finding]:
    """Check the packages that services need. An image has the edge or the worker, and a machine usually both."""
    yield Finding("system", "ok", f"{platform.system()} {platform.release()}, {platform.machine()}")
    yield Finding("Python", "ok", f"{sys.version.split()[0]} ({sys.implementation.name})")
    versions = {part: {name: _version(name) for name in names} for part, names in PARTS.items()}
    has_part = any(all(versions[part].values()) for part in ("edge", "worker"))
    for part, numbers in versions.items():
        missing = [name for name, number in numbers.items() if not number]
        if found := ", ".join(f"{name} {number}" for name, number in numbers.items() if number):
            yield Finding(part, "ok", found)
        if missing and has_part and part != "packages" and len(missing) == len(numbers):
            yield Finding(part, "ok", f"not part of this installation: {', '.join(missing)}")
        elif missing:
            hint = 'pip install "horologe[edge,worker,onnx,cli]"'
            yield Finding(part, "fail", f"missing: {', '.join(missing)}", hint)


def check_runtimes() -> Iterator[Finding]:
    """Check the packages of model runtimes. A missing `onnx` is a warning where workers can run: the demo needs it."""
    if not find_spec("onnxruntime"):
        hint = 'pip install "horologe[onnx]"'
        yield graded("runtime onnx", not _version(WORKER_PACKAGE), "not installed: onnxruntime", hint)
    elif number := _version("onnxruntime-gpu"):
        yield Finding("runtime onnx", "ok", f"onnxruntime-gpu {number}, {_describe_devices('CUDA')}")
    else:
        yield Finding("runtime onnx", "ok", f"onnxruntime {_version('onnxruntime')}, CPU")
    if torch := find_spec("torch"):
        yield Finding("runtime pytorch", "ok", _describe_torch(Path(torch.origin or "")))
    else:
        hint = 'for PyTorch models: pip install "horologe[torch]"'
        yield Finding("runtime pytorch", "ok", "not installed: torch", hint)
    for runtime in ("python", "emulated"):
        available = find_spec("numpy") is not None
        state = "available" if available else "numpy is missing"
        yield graded(f"runtime {runtime}", available, state, "pip install numpy")


def check_stores() -> Iterator[Finding]:
    """Check the stores for applications and their selection states."""
    yield Finding("store sqlite", "ok", sqlite3.sqlite_version)
    if number := _version("redis"):
        yield Finding("store redis", "ok", f"redis {number}")
    else:
        hint = 'for several selectors: pip install "horologe[redis]"'
        yield Finding("store redis", "ok", "not installed: redis", hint)


def _describe_torch(package: Path) -> str:
    variables = read_torch_version(package)
    number = variables.get("__version__") or _version("torch")
    if cuda := variables.get("cuda"):
        return f"torch {number}, {_describe_devices(f'CUDA {cuda}')}"
    return f"torch {number}, CPU"


def _describe_devices(platform: str) -> str:
    count = cuda_devices()
    return f"{platform}, {count} device{'s' if count > 1 else ''}" if count else f"{platform}, no device: CPU"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
