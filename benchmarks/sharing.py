"""Measure the coefficients of a CUDA device with `horologe measure --interference`, on networks with random weights.

    python benchmarks/sharing.py --output h100.json          # two networks: twelve minutes on an H100
    python benchmarks/sharing.py --output h100.json alexnet  # continues with a third network and its pairs

Needs PyTorch, SciPy, msgspec, pyzmq, structlog and typer. It starts an MPS control daemon of its own if none runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch

from bench_gpu.nets import SHARED_NETS, exported

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bench_gpu.nets import Net

ROOT = Path(__file__).resolve().parents[1]
SERVICES = ("controller", "frontend", "gpu-worker", "profiler", "selector", "tuner")
SOURCES = [
    *(ROOT / folder for folder in ("libs/common", "libs/client", "libs/planning", "libs/load", "apps/cli", "apps/sim")),
    *(ROOT / "services" / service for service in SERVICES),
]
DAEMON = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
MANIFEST = "batch_sizes = [1, 8, 16]\n"


@contextlib.contextmanager
def mps_daemon() -> Iterator[dict[str, str]]:
    """Run an MPS control daemon in folders of its own. Yield the environment of its clients.

    Yield the present environment if a daemon runs already. Raises FileNotFoundError if there is no such program.
    """
    if (Path(os.environ.get(PIPES) or "/tmp/nvidia-mps") / "control").exists():
        yield dict(os.environ)
        return
    if shutil.which(DAEMON) is None:
        raise FileNotFoundError(f"{DAEMON}: not found: it comes with the driver")
    with TemporaryDirectory(prefix="mps-") as folder:
        environment = {**os.environ, PIPES: f"{folder}/pipes", LOGS: f"{folder}/logs"}
        for name in (PIPES, LOGS):
            Path(environment[name]).mkdir()
        subprocess.run([DAEMON, "-d"], env=environment, check=True)
        try:
            yield environment
        finally:
            subprocess.run([DAEMON], env=environment, input="quit\n", text=True, check=False)


def write_repository(folder: Path, names: Sequence[str], networks: Mapping[str, Net]) -> None:
    """Export the networks to a model repository."""
    for name in names:
        place = folder / name / "1"
        place.mkdir(parents=True)
        (place / "model.toml").write_text(MANIFEST)
        torch.export.save(exported(networks[name], half=False), place / "model.pt2")


def main(arguments: list[str] | None = None, networks: Mapping[str, Net] = SHARED_NETS) -> int:
    parser = argparse.ArgumentParser(description="Measure the coefficients of a CUDA device.")
    parser.add_argument("networks", nargs="*", help=f"some of {', '.join(networks)}")
    parser.add_argument("--output", type=Path, default=Path("coefficients.json"), help="coefficients file")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of a run")
    parser.add_argument("--assume", action="append", default=[], metavar="NAME=VALUE", help="as of `horologe measure`")
    parser.add_argument("--revision", default="", help="revision to record, if git is not available")
    options = parser.parse_args(arguments)
    names = options.networks or ["resnet50", "vgg19"]
    with TemporaryDirectory(prefix="models-") as folder, mps_daemon() as environment:
        write_repository(Path(folder), names, networks)
        command = [
            sys.executable, "-m", "horologe_cli.main", "measure", "--interference", *names, "--repository", folder,
            "--device", "cuda", "--output", str(options.output), "--seconds", str(options.seconds),
            "--revision", options.revision, *(part for text in options.assume for part in ("--assume", text)),
        ]  # fmt: skip
        path = os.pathsep.join([*map(str, SOURCES), *filter(None, [environment.get("PYTHONPATH")])])
        return subprocess.run(command, env={**environment, "PYTHONPATH": path}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
