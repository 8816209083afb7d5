"""Clockwork's Fig. 9 (section 6.5): start, prediction and completion errors of the live services.

The controller's process records the messages of its core (recorder.py). The recording is replayed afterwards, and the
replayed core gives the exact errors of each action. The replay must produce the recorded messages again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_cli.local.topology import default_repository
from horologe_common.clock import s
from horologe_common.models import PAGE_BYTES
from horologe_common.service.settings import SettingsError
from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_experiments.live.action_errors import ActionErrors
from horologe_experiments.live.local_services import (
    READY_S,
    describe_machine,
    local_services,
    model_names,
    write_emulated,
)
from horologe_experiments.live.model_traffic import ModelRequest, ModelTraffic
from horologe_sim.replay import replay_recording
from horologe_sim.scenario.scenario import ModelEntry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

    from horologe_cli.local.local_system import LocalSystem
    from horologe_experiments.harness.experiment import Progress
    from horologe_experiments.live.action_errors import Key

START_P99_US = 500.0
QUANTILES = {"p50_us": 0.5, "p99_us": 0.99, "p99.9_us": 0.999}
PAPER_P99_US = {
    ("infer", "prediction", "over"): 250,
    ("infer", "prediction", "under"): 250,
    ("load", "prediction", "over"): 338,
    ("load", "prediction", "under"): 240,
    ("infer", "completion", "over"): 1000,
    ("infer", "completion", "under"): 1000,
}
"""Values of section 6.5, which gives the completion error as about 1 ms."""
MESSAGES = 100_000_000
"""Messages of a segment of the recording. One segment holds a whole run, so no snapshot interrupts it."""
STOP_S = 60.0
"""Timeout of a shutdown, which writes the recording."""
POINTS = 60
COLOURS = {"emulated": "C0", "onnx": "C1"}


class ModelSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The models of one worker, and the load on them."""

    name: str
    slo_ns: int
    pages: int
    emulated: tuple[ModelEntry, ...] = ()
    folders: tuple[str, ...] = ()
    """Models of the repository, if none are emulated."""
    width: int = 1
    """Numbers in a row."""
    rate: float = 100.0
    """Requests per second."""
    skew: float = 0.0
    """The n-th model gets a share of the requests in proportion to n ** -skew."""

    @property
    def names(self) -> list[str]:
        """Return the names of all models."""
        return [*self.folders, *(name for entry in self.emulated for name in model_names(entry))]


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of fig9."""

    description: str
    seconds: float
    warmup_s: float
    sources: tuple[ModelSource, ...]


class Fig9:
    """Quantiles of the errors by action, error and side."""

    name = "fig9"
    title = "Is it predictable? Errors of the live services"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`. Starts the services as processes of this machine."""
        scene = load_scene(self.name, Scene, quick, changes)
        facts = {"machine": f"{describe_machine()}, shared by client, edge and worker"}
        idle = os.getloadavg()[0]
        rows: list[dict[str, Any]] = []
        tails: dict[str, list[tuple[float, float]]] = {}
        for number, source in enumerate(scene.sources):
            progress(number / len(scene.sources), source.name)
            requests, errors = _measure(scene, source, [seed, number])
            facts[source.name] = _describe_run(scene, source, requests, errors)
            for key in sorted(errors.values):
                values_us = np.sort(np.array(errors.values[key])) / 1e3
                rows.append(_row(source.name, key, values_us))
                tails[" ".join((source.name, *key))] = _tail(values_us)
        facts["load average"] = f"{idle:.1f} before, {os.getloadavg()[0]:.1f} at the end; the run itself adds 1"
        facts["paper"] = "p99 on V100s; under: it took longer, or ended later, than predicted"
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(rows), {"tails": tails})

    def draw(self, findings: Findings) -> Figure:
        """Draw the share of errors beyond each size, in one panel for each action and error."""
        from horologe_experiments.harness.plots import make_figure

        actions, errors, sides = ("infer", "load"), ("start", "prediction", "completion"), ("over", "under")
        figure, panels = make_figure(len(actions), len(errors))
        places = [(action, error) for action in actions for error in errors]
        for axes, (action, error) in zip(panels, places, strict=True):
            for line, points in findings.series["tails"].items():
                source, *key = line.split(" ")
                if key[:2] == [action, error]:
                    look = {"color": COLOURS.get(source, "grey"), "linestyle": "-" if key[2] == "under" else "--"}
                    axes.plot(*zip(*points, strict=True), **look, label=f"{source}, {key[2]}")
            for side, marker in zip(sides, "<>", strict=True):
                if paper_us := PAPER_P99_US.get((action, error, side)):
                    axes.plot([paper_us], [0.01], f"k{marker}", label=f"paper, {side} (p99)")
            axes.set(xscale="log", yscale="log", title=f"{action.upper()}: {error} error", xlabel="us", ylabel="beyond")
            if axes.lines:  # a short run may have no LOAD after its warm-up
                axes.legend(fontsize=7)
        return figure


def _measure(scene: Scene, source: ModelSource, seed: list[int]) -> tuple[list[ModelRequest], ActionErrors]:
    """Run the services once. Return the requests and the errors of the actions."""
    import uvloop

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models, recordings = folder / "models", folder / "recordings"
        _write_repository(models, source)
        sets = (
            f"worker.pages_bytes={source.pages * PAGE_BYTES >> 20}MiB",
            f"worker.cache={folder / 'cache'}",
            f"recorder.directory={recordings}",
            f"recorder.messages={MESSAGES}",
            "recorder.roles=controller",
        )
        with local_services(models, sets) as house:
            house.wait_ready(READY_S)
            begin_ns = time.monotonic_ns()
            requests = uvloop.run(_send_load(house, scene, source, seed))
            house.supervisor.drain(STOP_S)
        errors = ActionErrors(begin_ns + s(scene.warmup_s))
        for path in recordings.iterdir():
            report = replay_recording(path, "controller", observer=errors)
            if not report.identical:
                raise SettingsError(f"{source.name}: the replay differs from the recording: {report.table()}")
    return requests, errors


def _write_repository(models: Path, source: ModelSource) -> None:
    """Write the models of the source as a repository."""
    if source.emulated:
        write_emulated(models, source.emulated)
    for folder in source.folders:
        if not (path := Path(default_repository()) / folder).is_dir():
            raise SettingsError(f"{source.name}.folders: got {folder}, wanted a folder of {default_repository()}")
        shutil.copytree(path, models / folder)


async def _send_load(house: LocalSystem, scene: Scene, source: ModelSource, seed: list[int]) -> list[ModelRequest]:
    from horologe import AsyncClient

    async with AsyncClient(house.topology.clients[0], keys=house.topology.keys or None) as client:
        traffic = ModelTraffic(client, source.names, source.slo_ns, source.width)
        return await traffic.send_poisson(source.rate, scene.seconds, np.random.default_rng(seed), source.skew)


def _row(source: str, key: Key, values_us: Any) -> dict[str, Any]:
    """Return a row. Quantiles with too few values behind them are None."""
    action, error, side = key
    count = len(values_us)
    return {
        "source": source,
        "action": action.upper(),
        "error": error,
        "side": side,
        "count": count,
        **{name: _quantile(values_us, q) if count * (1 - q) >= 1 else None for name, q in QUANTILES.items()},
        "max_us": round(float(values_us[-1]), 1),
        "paper_p99_us": PAPER_P99_US.get(key),
    }


def _tail(values_us: Any) -> list[tuple[float, float]]:
    """Return (error, share of errors beyond it), evenly spaced in the logarithm of the share."""
    count = len(values_us)
    shares = np.geomspace(1 / count, 1, min(POINTS, count))[::-1]
    return [(_quantile(values_us, 1 - share), float(share)) for share in shares]


def _quantile(values_us: Any, q: float) -> float:
    return round(float(np.quantile(values_us, max(0.0, q), method="inverted_cdf")), 1)


def _bars(rows: Sequence[dict[str, Any]]) -> list[Bar]:
    return [
        Bar("emulated INFER start error, p99 in us", row["p99_us"] or row["max_us"], START_P99_US, "at most")
        for row in rows
        if (row["source"], row["action"], row["error"]) == ("emulated", "INFER", "start")
    ]


def _describe_run(scene: Scene, source: ModelSource, requests: list[ModelRequest], errors: ActionErrors) -> str:
    counted = [request for request in requests if request.sent_ns >= s(scene.warmup_s)]
    in_time = sum(request.ok and request.took_ns <= source.slo_ns for request in counted)
    actions: dict[str, Counter[str]] = {}
    for (action, status), count in sorted(errors.statuses.items()):
        actions.setdefault(action, Counter())[status] += count
    ends = "; ".join(
        f"{action.upper()}: " + ", ".join(f"{count:,} {status}" for status, count in counts.items())
        for action, counts in actions.items()
    )
    return (
        f"{len(source.names)} models, {source.pages} pages, {source.rate:g} r/s for "
        f"{scene.seconds - scene.warmup_s:g} s, SLO {source.slo_ns / 1e6:g} ms: "
        f"{in_time / max(1, len(counted)):.3%} of {len(counted):,} requests in time. {ends}"
    )
