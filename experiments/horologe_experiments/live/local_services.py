"""Services and models on this machine for live experiments and for tests."""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from horologe_cli.local.local_system import LocalSystem
from horologe_cli.local.topology import SystemOptions, default_repository
from horologe_common.service.settings import SettingsError
from horologe_common.status import HorologeError
from horologe_planning.plan import encode_plans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe import Client
    from horologe_planning.plan import Plan
    from horologe_sim.scenario.scenario import ModelEntry

READY_S = 60.0
POLL_S = 0.1


def local_services(
    folder: str | Path, sets: Sequence[str] = (), *, profiler: bool = False, tuner: bool = False
) -> LocalSystem:
    """Return a system of edge and one worker for the models in `folder`. `sets`: settings as for `--set`.

    The selector stores its state in memory by default: another system in the same folder may have the state file open.
    """
    addresses = "127.0.0.1:0", ("tcp://127.0.0.1:0",), "off"
    sets = ("selector.store=memory", *sets)
    options = SystemOptions(str(folder), 1, False, *addresses, sets=sets, profiler=profiler, tuner=tuner)
    return LocalSystem(options, lambda process, line: None)


def apply_plan(client: Client, plan: Plan, timeout_s: float) -> None:
    """Apply a plan once the tuner is connected, and wait until its devices are. Raises TimeoutError."""
    document, end_s = encode_plans([plan]), time.monotonic() + timeout_s
    wanted, connected = Counter({placed.hardware: 0 for placed in plan.placements}), {}
    for placed in plan.placements:
        wanted[placed.hardware] += placed.replicas
    applied = False
    while time.monotonic() < end_s:
        try:
            status = client.tune("status") if applied else client.tune("apply", document)
            applied, connected = True, status["devices_connected"]
            if all(connected.get(hardware, 0) == count for hardware, count in wanted.items()):
                return
        except HorologeError:
            pass  # the tuner or the controller is still connecting
        time.sleep(POLL_S)
    raise TimeoutError(f"devices: got {connected} after {timeout_s:g} s, wanted {dict(wanted)}")


def benchmark_folder(name: str) -> Path:
    """Return a folder of `benchmarks`. Raises SettingsError outside a checkout."""
    path = Path(default_repository()).resolve().parent / "benchmarks" / name
    if not path.is_dir():
        raise SettingsError(f"model: got {name!r}, wanted a folder of {path.parent}: run this in a checkout")
    return path


def benchmark_model(name: str) -> Path:
    """Return the folder of a model of `benchmarks/models`. Raises SettingsError outside a checkout."""
    return benchmark_folder(f"models/{name}")


def describe_machine() -> str:
    """Return the number of cores and the name of the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(os.sched_getaffinity(0))} cores of {names[0] if names else platform.machine()}"


def changed_settings(section: str, settings: msgspec.Struct) -> tuple[str, ...]:
    """Return the fields that differ from their defaults, as for `--set`."""
    default = type(settings)()
    changed = {
        name: value
        for name, value in msgspec.structs.asdict(settings).items()
        if not isinstance(value, dict) and value != getattr(default, name)
    }
    tables = {name: value for name, value in msgspec.structs.asdict(settings).items() if isinstance(value, dict)}
    changed |= {f"{name}.{key}": value for name, table in tables.items() for key, value in table.items()}
    return tuple(f"{section}.{name}={str(value).lower()}" for name, value in changed.items())


def model_names(entry: ModelEntry) -> list[str]:
    """Return the names of the models of an entry: NAME, or NAME-0, NAME-1, ..."""
    return [entry.name] if entry.count == 1 else [f"{entry.name}-{number}" for number in range(entry.count)]


def write_emulated(folder: Path, entries: Sequence[ModelEntry]) -> None:
    """Write the models as folders for the emulated runtime."""
    for entry in entries:
        times = ", ".join(f"{size} = {time_ms}" for size, time_ms in entry.exec_ms.items())
        text = (
            'runtime = "emulated"\n'
            'inputs = [{ name = "x", datatype = "FP32", shape = [-1, 1] }]\n'
            'outputs = [{ name = "y", datatype = "FP32", shape = [-1, 1] }]\n'
            f"[emulated]\nexec_ms = {{ {times} }}\nload_ms = {entry.load_ms}\nweights_mb = {entry.weights_mb}\n"
        )
        for name in model_names(entry):
            (folder / name / "1").mkdir(parents=True)
            (folder / name / "1" / "model.toml").write_text(text)
