"""What live experiments are played on: the services as processes of this machine, and models for them."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from horologe_cli.local.local_system import LocalSystem
from horologe_cli.local.topology import SystemOptions
from horologe_common.service.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import msgspec

    from horologe_sim.scenario.scenario import ModelEntry

READY_S = 60.0


def local_services(folder: str | Path, sets: Sequence[str] = (), *, profiler: bool = False) -> LocalSystem:
    """Edge and one worker, and a profiler if wanted, for the models in `folder`; `sets`: settings, as for `--set`.

    The selector keeps nothing, unless told to: a system that runs in the same folder has its state open.
    """
    front = "127.0.0.1:0", ("tcp://127.0.0.1:0",), "off"
    options = SystemOptions(str(folder), 1, False, *front, sets=("selector.store=memory", *sets), profiler=profiler)
    return LocalSystem(options, lambda process, line: None)


def default_repository() -> str:
    """The models of the folder we are in, else those of the checkout this file belongs to."""
    beside = Path(__file__).resolve().parents[4] / "models"
    return "models" if Path("models").is_dir() or not beside.is_dir() else str(beside)


def benchmark_model(name: str) -> Path:
    """A model of `benchmarks/models`, beside `repository()`. Raises `SettingsError` where there is none."""
    path = Path(default_repository()).resolve().parent / "benchmarks" / "models" / name
    if not path.is_dir():
        raise SettingsError(f"model: got {name!r}, wanted a folder of {path.parent}: run this in a checkout")
    return path


def describe_machine() -> str:
    """Cores and processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(os.sched_getaffinity(0))} cores of {names[0] if names else platform.machine()}"


def changed_settings(section: str, wanted: msgspec.Struct) -> tuple[str, ...]:
    """Those fields that are not at their default, as for `--set`."""
    default = type(wanted)()
    return tuple(
        f"{section}.{name}={str(getattr(wanted, name)).lower()}"
        for name in wanted.__struct_fields__
        if getattr(wanted, name) != getattr(default, name)
    )


def model_names(entry: ModelEntry) -> list[str]:
    """The names of the models that an entry stands for."""
    return [entry.name] if entry.count == 1 else [f"{entry.name}-{number}" for number in range(entry.count)]


def write_emulated(folder: Path, entries: Sequence[ModelEntry]) -> None:
    """The models as folders of an emulated runtime."""
    for entry in entries:
        times = ", ".join(f"{size} = {took}" for size, took in entry.exec_ms.items())
        text = (
            'runtime = "emulated"\n'
            'inputs = [{ name = "x", datatype = "FP32", shape = [-1, 1] }]\n'
            'outputs = [{ name = "y", datatype = "FP32", shape = [-1, 1] }]\n'
            f"[emulated]\nexec_ms = {{ {times} }}\nload_ms = {entry.load_ms}\nweights_mb = {entry.weights_mb}\n"
        )
        for name in model_names(entry):
            (folder / name / "1").mkdir(parents=True)
            (folder / name / "1" / "model.toml").write_text(text)
