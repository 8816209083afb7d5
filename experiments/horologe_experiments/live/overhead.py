"""Clipper's Fig. 11 (section 6), for ensembles: the latency of an application compared with that of its models.

No-op models on the real services, one request at a time, so that only the overhead is measured. It has three parts, as
in the figure: execution of the model (predict), waiting for it (queue), and the rest.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from horologe_cli.local.topology import default_repository
from horologe_common.applications import Application
from horologe_common.service.settings import SettingsError
from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_experiments.live.local_services import READY_S, describe_machine, local_services
from horologe_load.samples import no_garbage_collection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

    from horologe import AsyncClient, Reply
    from horologe_cli.local.local_system import LocalSystem
    from horologe_experiments.harness.experiment import Progress

ENSEMBLE, ONE_BY_ONE, AT_ONCE = WAYS = "ensemble", "one by one", "at once"
PARTS = "predict", "queue", "rest"
FASTER = 0.75
"""Largest time of an ensemble, as a part of one by one, at the largest size. Seven of eight round trips are saved."""
ADDED = 1.25
"""Largest time of an ensemble, as a part of at once: the edge combines the predictions instead of the client."""


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of overhead."""

    description: str
    sizes: tuple[int, ...]
    model: str
    width: int
    rounds: int
    warmup_rounds: int
    gap_ns: int
    slo_ns: int


class OverheadSample(NamedTuple):
    """Times of one round, in nanoseconds. For requests one by one, `predict_ns` and `queue_ns` are sums."""

    took_ns: int
    predict_ns: int
    queue_ns: int


class Overhead:
    """Latency of ensembles and of single requests by number of models."""

    name = "overhead"
    title = "Clipper Fig. 11: the overhead of an ensemble"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`. Starts the services as processes of this machine."""
        import uvloop

        scene = load_scene(self.name, Scene, quick, changes)
        idle = os.getloadavg()[0]
        with tempfile.TemporaryDirectory() as folder:
            models = _write_copies(Path(folder), scene)
            with local_services(folder) as house:
                house.wait_ready(READY_S)
                samples = uvloop.run(_measure(house, scene, models, progress))
        rows = [_row(size, way, taken) for (size, way), taken in samples.items()]
        facts = {
            "machine": f"{describe_machine()}, shared by client, edge and one worker, which runs one model at a time",
            "load average": f"{idle:.1f} before, {os.getloadavg()[0]:.1f} at the end",
            "model": f"{scene.model}: medians of {scene.rounds} rounds of each, interleaved, one at a time",
            "one by one": "each request is sent after the answer of the previous model; parts are sums",
            "at once": "the client sends the requests to all models together; parts are those of the last answer",
            "predict, queue": "from the answers: the longest execution, and the other time at the selector. "
            "The rest is the time between client and selector",
        }
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(rows))

    def draw(self, findings: Findings) -> Figure:
        """Draw a bar with the three parts for each size and way."""
        from horologe_experiments.harness.plots import make_figure

        figure, axes = make_figure(1, len(WAYS))
        top = 1.1 * max(row["p50_us"] for row in findings.rows)
        for panel, way in zip(axes, WAYS, strict=True):
            rows = [row for row in findings.rows if row["way"] == way]
            names, base = [str(row["models"]) for row in rows], np.zeros(len(rows))
            for part in PARTS:
                heights = np.array([row[f"{part}_us"] for row in rows])
                panel.bar(names, heights, bottom=base, label=part)
                base += heights
            panel.set(title=way, xlabel="models", ylabel="us", ylim=(0, top))
            panel.legend()
        return figure


def _write_copies(folder: Path, scene: Scene) -> list[str]:
    """Write copies of the model for the largest size. Return their names."""
    source = Path(default_repository()) / scene.model
    if not source.is_dir():
        raise SettingsError(f"model: got {scene.model!r}, wanted a folder of {default_repository()}")
    names = [f"{scene.model}-{number}" for number in range(max(scene.sizes))]
    for name in names:
        shutil.copytree(source, folder / name)
    return names


async def _measure(
    house: LocalSystem, scene: Scene, models: Sequence[str], progress: Progress
) -> dict[tuple[int, str], list[OverheadSample]]:
    from horologe import AsyncClient

    samples: dict[tuple[int, str], list[OverheadSample]] = {(size, way): [] for size in scene.sizes for way in WAYS}
    async with AsyncClient(house.topology.clients[0], keys=house.topology.keys or None) as client:
        for size in scene.sizes:
            await client.declare(
                Application(
                    _application_name(size),
                    tuple(models[:size]),
                    scene.slo_ns / 1e6,
                    "regression",
                    policy="average",
                    cache=False,
                )
            )
        with no_garbage_collection():
            for number in range(-scene.warmup_rounds, scene.rounds):
                progress(max(0, number) / scene.rounds, "rounds")
                for (size, way), taken in samples.items():
                    sample = await _round(client, way, models[:size], scene, number)
                    if number >= 0:
                        taken.append(sample)
                    await asyncio.sleep(scene.gap_ns / 1e9)
    return samples


async def _round(client: AsyncClient, way: str, models: Sequence[str], scene: Scene, number: int) -> OverheadSample:
    """Send one request to an application, or one to each of its models. Raises `SettingsError` for a missing one."""
    row, slo_ms = np.full((1, scene.width), number, np.float32), scene.slo_ns / 1e6
    begin_ns = time.perf_counter_ns()
    replies: list[Reply] = []
    if way == ENSEMBLE:
        replies = [await client.ask(_application_name(len(models)), row, slo_ms=slo_ms)]
    elif way == ONE_BY_ONE:
        for model in models:
            replies.append(await client.predict_full(model, row, slo_ms=slo_ms))
    else:
        futures = [client.submit(model, row, slo_ms=slo_ms) for model in models]
        replies = [max(await asyncio.gather(*futures), key=lambda reply: reply.queue_ns + reply.exec_ns)]
    took_ns = time.perf_counter_ns() - begin_ns
    if any(reply.missing for reply in replies):
        raise SettingsError(f"slo: got {scene.slo_ns} ns, too short for {len(models)} models")
    return OverheadSample(took_ns, sum(reply.exec_ns for reply in replies), sum(reply.queue_ns for reply in replies))


def _application_name(size: int) -> str:
    return f"all-{size}"


def _row(size: int, way: str, taken: list[OverheadSample]) -> dict[str, Any]:
    """Return medians in microseconds. The rest is the median round minus the two parts."""
    took_us = np.array([sample.took_ns for sample in taken]) / 1e3
    predict_us, queue_us = (float(np.median([sample[field] for sample in taken])) / 1e3 for field in (1, 2))
    p50_us = float(np.median(took_us))
    return {
        "models": size,
        "way": way,
        "p50_us": round(p50_us, 1),
        "p99_us": round(float(np.quantile(took_us, 0.99, method="inverted_cdf")), 1),
        "predict_us": round(predict_us, 1),
        "queue_us": round(queue_us, 1),
        "rest_us": round(p50_us - predict_us - queue_us, 1),
    }


def _bars(rows: Sequence[dict[str, Any]]) -> list[Bar]:
    by = {(row["models"], row["way"]): row["p50_us"] for row in rows}
    sizes = sorted({row["models"] for row in rows})
    most = sizes[-1]
    beside = [round(by[size, ENSEMBLE] / by[size, ONE_BY_ONE], 3) for size in sizes if size > 1]
    return [
        Bar(f"ensemble of {most} / one by one", round(by[most, ENSEMBLE] / by[most, ONE_BY_ONE], 3), FASTER, "at most"),
        Bar("ensemble / one by one, the largest of all sizes above 1", max(beside, default=0.0), 1.0, "at most"),
        Bar(f"ensemble of {most} / at once", round(by[most, ENSEMBLE] / by[most, AT_ONCE], 3), ADDED, "at most"),
    ]
