"""Which packages are installed, and so which runtimes and state stores there are. Nothing heavy is imported for it."""

from __future__ import annotations

import ctypes
import runpy
import sqlite3
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from horologe_cli.doctor.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = ("horologe", "pyzmq", "msgspec", "numpy", "uvloop", "structlog", "prometheus_client", "httptools")


def packages() -> Iterator[Finding]:
    """What every installation needs."""
    yield Finding("Python", "ok", f"{sys.version.split()[0]} ({sys.implementation.name})")
    found = {name: _version(name) for name in PACKAGES}
    missing = [name for name, number in found.items() if not number]
    present = ", ".join(f"{name} {number}" for name, number in found.items() if number)
    yield Finding("packages", "ok", present)
    if missing:
        yield Finding(
            "packages", "fail", f"missing: {', '.join(missing)}", 'pip install "horologe[edge,worker,onnx,cli]"'
        )


def runtimes() -> Iterator[Finding]:
    """Of models. Only `onnx` is missed where it is not there: the demo needs no more."""
    if not find_spec("onnxruntime"):
        yield Finding("runtime onnx", "warn", "onnxruntime is missing", 'pip install "horologe[onnx]"')
    elif number := _version("onnxruntime-gpu"):
        yield Finding("runtime onnx", "ok", f"onnxruntime-gpu {number}, {_device('CUDA')}")
    else:
        yield Finding("runtime onnx", "ok", f"onnxruntime {_version('onnxruntime')}, CPU")
    if place := find_spec("torch"):
        yield Finding("runtime pytorch", "ok", _torch(Path(place.origin or "")))
    else:
        yield Finding(
            "runtime pytorch", "ok", "not installed: torch", 'for models of it: pip install "horologe[torch]"'
        )
    for runtime in ("python", "emulated"):
        if find_spec("numpy"):
            yield Finding(f"runtime {runtime}", "ok", "available")
        else:
            yield Finding(f"runtime {runtime}", "warn", "numpy is missing", "pip install numpy")


def stores() -> Iterator[Finding]:
    """Of what applications learn."""
    yield Finding("store sqlite", "ok", sqlite3.sqlite_version)
    if number := _version("redis"):
        yield Finding("store redis", "ok", f"redis {number}")
    else:
        hint = 'for several selectors: pip install "horologe[redis]"'
        yield Finding("store redis", "ok", "not installed: redis", hint)


def _torch(package: Path) -> str:
    """PyTorch says in a file of its own what it was built for: to import it takes seconds."""
    try:
        built = runpy.run_path(str(package.parent / "version.py"))
    except (OSError, ImportError):
        built = {}
    number = built.get("__version__") or _version("torch")
    if cuda := built.get("cuda"):
        return f"torch {number}, {_device(f'CUDA {cuda}')}"
    return f"torch {number}, CPU"


def _device(built_for: str) -> str:
    count = cuda_devices()
    return f"{built_for}, {count} device{'s' if count > 1 else ''}" if count else f"{built_for}, no device: CPU"


def cuda_devices() -> int:
    """How many the driver shows to this process; 0 without a driver."""
    count = ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
