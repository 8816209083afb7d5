"""Cold start of many models of which one hangs and one is slow: when does each of the others answer?

    python benchmarks/cold_start.py
    python benchmarks/cold_start.py --models 100 --slow 60 --workers 1 --json cold_start.json

The system starts twice with an empty cache: with the quick models alone, and with the two bad ones among them, which
come first in the order of names. The models are ONNX graphs, Python classes and emulated models. Each of them has a
client that repeats a request until it is answered. The exit code is 1 if a model answers more than `BOUND_S` later
beside the bad ones than without them, or not at all.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from bench.report import describe_machine, end_with
from horologe import AsyncClient
from horologe_cli.local.local_system import LocalSystem
from horologe_cli.local.topology import SystemOptions, default_repository
from horologe_common.status import HorologeError
from horologe_sim.report.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

BOUND_S = 10.0
LIMIT_S = 300.0
"""A model that has not answered after this time counts as not served."""
SLO_MS = 1_000.0
PAUSE_S = 0.1
HANG, SLOW = "a-hang", "a-slow"
SIGNATURE = """
inputs = [{ name = "x", datatype = "FP32", shape = [-1, 4] }]
outputs = [{ name = "y", datatype = "FP32", shape = [-1, 4] }]
"""
SOURCE = """
import time
time.sleep({seconds})
class Model:
    def predict_batch(self, inputs):
        return {{"y": inputs["x"]}}
"""
LOOP = "while True: pass\n"
"""Uses a CPU meanwhile, unlike a sleep."""
EMULATED = "[emulated]\nexec_ms = { 1 = 1.0, 2 = 1.5 }\nload_ms = 3\n"


class Start(msgspec.Struct):
    """A start of the system. Times in seconds since its processes were started, by model."""

    answered_s: dict[str, float]
    missing: list[str]
    slow_s: float | None = None
    """Time of the first answer of the slow model. None: it was not asked, or did not answer."""
    hang_state: str = ""

    @property
    def last_s(self) -> float:
        return max(self.answered_s.values(), default=0.0)


def write_models(folder: Path, count: int, python_share: float) -> list[str]:
    """Write `count` quick models and return their names. Their contents differ, so that each is measured."""
    python = round(count * python_share)
    names = []
    for number in range(count):
        kind = "python" if number % count < python else ("onnx", "emulated")[number % 2]
        name = f"{kind}-{number}"
        version = folder / name / "1"
        if kind == "onnx":
            shutil.copytree(Path(default_repository()) / "noop" / "1", version)
            (version / "number.txt").write_text(name)
        else:
            write_python(folder, name, 0) if kind == "python" else write_text(
                version / "model.toml", SIGNATURE + EMULATED
            )
        names.append(name)
    return names


def write_python(folder: Path, name: str, seconds: float, source: str = "") -> None:
    write_text(folder / name / "1" / "model.toml", "batch_sizes = [1, 2]\n" + SIGNATURE)
    write_text(folder / name / "1" / "model.py", f"# {name}\n" + (source or SOURCE.format(seconds=seconds)))


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


async def first_answer(client: AsyncClient, name: str, begin_s: float) -> float | None:
    """Repeat a request until it is answered, and return the time since `begin_s`; None after `LIMIT_S`."""
    x = np.zeros((1, 16 if name.startswith("onnx") else 4), np.float32)
    while time.monotonic() - begin_s < LIMIT_S:
        try:
            await client.predict(name, x, slo_ms=SLO_MS)
        except HorologeError:
            await asyncio.sleep(PAUSE_S)
        else:
            return time.monotonic() - begin_s
    return None


async def watch(endpoint: str, names: Sequence[str], slow: bool, begin_s: float) -> Start:
    async with AsyncClient(endpoint) as client:
        asked = [*names, *([SLOW] if slow else [])]
        times = dict(zip(asked, await asyncio.gather(*(first_answer(client, n, begin_s) for n in asked)), strict=True))
        slow_s = times.pop(SLOW, None)
        states = {state.spec.name: f"{state.state} {state.reason}" for state in await client.models()}
    answered = {name: taken_s for name, taken_s in times.items() if taken_s is not None}
    return Start(answered, [name for name in names if name not in answered], slow_s, states.get(HANG, ""))


def start(options: argparse.Namespace, bad: bool) -> Start:
    """Start the system with an empty cache and wait for an answer of every model but the one that hangs."""
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder, "models")
        names = write_models(models, options.models - 2, options.python)
        if bad:
            write_python(models, HANG, 0, LOOP)
            write_python(models, SLOW, options.slow)
        addresses = "127.0.0.1:0", ("tcp://127.0.0.1:0",), "off"
        sets = ("selector.store=memory", f"worker.cache={folder}/cache", "worker.load_timeout_ns=300s")
        settings = SystemOptions(
            str(models), options.workers, False, *addresses, sets=sets, profiler=False, tuner=False
        )
        system = LocalSystem(settings, lambda process, line: None)
        begin_s = time.monotonic()
        with system:
            return asyncio.run(watch(system.topology.clients[0], names, bad, begin_s))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=100, help="number of models, with the two bad ones")
    parser.add_argument("--python", type=float, default=0.1, help="part of the quick models that are Python classes")
    parser.add_argument("--slow", type=float, default=60.0, help="seconds that the slow model takes to load")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    machine = describe_machine()
    alone, beside = start(options, bad=False), start(options, bad=True)
    later_s = {
        name: beside.answered_s[name] - alone.answered_s[name] for name in alone.answered_s if name in beside.answered_s
    }
    worst = max(later_s, key=lambda name: later_s[name], default="")
    table = Table(("start", "last answer s", "median s", "not served"), left=1)
    for label, run in (("quick models alone", alone), ("beside the bad ones", beside)):
        table.add_row(label, f"{run.last_s:.1f}", f"{np.median([*run.answered_s.values()]):.1f}", str(len(run.missing)))
    print(table.text())
    print(f"latest: {worst}, {later_s.get(worst, 0.0):.1f} s later than alone (at most {BOUND_S:g} s)")
    print(f"slow model ({options.slow:g} s): first answer after {beside.slow_s or float('nan'):.1f} s")
    print(f"hanging model: {beside.hang_state}")
    too_late = [name for name, late_s in later_s.items() if late_s > BOUND_S]
    result = {
        "models": options.models, "workers": options.workers, "slow_seconds": options.slow, "alone_s": alone.last_s,
        "beside_s": beside.last_s, "latest_model": worst, "later_s": later_s.get(worst, 0.0), "bound_s": BOUND_S,
        "slow_answered_s": beside.slow_s, "hang_state": beside.hang_state, "machine": machine,
        "violations": {"not served": [*alone.missing, *beside.missing], "too late": too_late},
    }  # fmt: skip
    end_with(result, options.json)


if __name__ == "__main__":
    main()
