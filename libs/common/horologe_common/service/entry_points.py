"""Entry points of the commands that the distribution installs.

`pip install horologe` installs every command, but only the dependencies of the SDK. A command whose dependencies are
missing ends with the name of the extra that has them.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module

EXTRAS = {
    "typer": "cli", "rich": "cli", "uvloop": "service", "structlog": "service", "prometheus_client": "service",
    "httptools": "edge", "blake3": "edge", "psutil": "worker", "pynvml": "worker",
    "onnxruntime": "onnx", "sklearn": "models", "docker": "docker", "kubernetes": "kubernetes",
}  # fmt: skip
"""Module of a dependency -> the extra that installs it."""


def run_command(module: str) -> None:
    """Call `main()` of `module`. End the process with status 2 if a dependency of an extra is not installed."""
    try:
        import_module(module).main()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRAS:
            raise
        command = module.partition(".")[0].replace("_", "-").removesuffix("-cli")
        sys.stderr.write(
            f"{command}: the package {missing} is not installed: `pip install horologe` installs only the SDK. "
            f'Wanted: pip install "horologe[{EXTRAS[missing]}]", or "horologe[server]" for the whole system\n'
        )
        raise SystemExit(2) from None


horologe = partial(run_command, "horologe_cli.main")
edge = partial(run_command, "horologe_cli.local.edge")
frontend = partial(run_command, "horologe_frontend.__main__")
selector = partial(run_command, "horologe_selector.__main__")
controller = partial(run_command, "horologe_controller.__main__")
gpu_worker = partial(run_command, "horologe_gpu_worker.__main__")
profiler = partial(run_command, "horologe_profiler.__main__")
tuner = partial(run_command, "horologe_tuner.__main__")
