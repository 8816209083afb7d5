"""`horologe experiment dynamic`: a model whose time depends on its input, live, under several schedulers.

The text encoder of the benchmarks on ONNX Runtime, one worker, two applications with texts of different lengths. How
long texts take alone is measured before each run, which gives the SLO (a multiple of the 99th percentile, as ORLOJ's
tables have it) and the rate (a part of what the worker does one at a time). The arrivals of a run are drawn once, and
sent at the same times to every side, each on services of its own that know nothing yet.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from horologe_cli.local.local_services import READY_S, benchmark_model, describe_machine, local_services
from horologe_common.clock import ms
from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_experiments.live.finish_rates import NEAR, ROLLING, of_run, settled_s, windows
from horologe_experiments.live.text_traffic import (
    TextResult,
    TextSource,
    TextTraffic,
    draw_texts,
    inputs_of,
    measure_alone_ms,
    poisson_texts,
    share_one_at_a_time,
)
from horologe_load.targets import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

    from horologe_cli.local.local_system import LocalSystem
    from horologe_experiments.harness.experiment import Progress
    from horologe_experiments.live.text_traffic import Text

DRAWN = 20_000
"""Texts that mean and 99th percentile of the times alone are computed of."""


class Side(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is compared: a scheduler, and whatever else of the services is set for it."""

    scheduler: str
    name: str = ""
    """In tables; empty: that of the scheduler."""
    profiler: bool = False
    """Whether it learns how long texts take: from nothing, in each run."""
    sets: tuple[str, ...] = ()
    """As for `--set`."""

    @property
    def label(self) -> str:
        return self.name or self.scheduler


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    description: str
    model: str
    """Of `benchmarks/models`."""
    runs: int
    seconds: float
    load: float
    """Part of what the worker does one at a time."""
    slo_multiple: float
    """Of the 99th percentile of the times alone."""
    window_s: float
    probes: int
    """Of each length."""
    lengths: tuple[int, ...]
    """That are timed alone; between them times are interpolated."""
    applications: tuple[TextSource, ...]
    sides: tuple[Side, ...]
    """The first is what the last has to reach."""


class Run(NamedTuple):
    """The machine before it, and what became of its requests, by side."""

    alone_ms: dict[int, float]
    mean_ms: float
    p99_ms: float
    possible: float
    ended: dict[str, list[TextResult]]


class Dynamic:
    name = "dynamic"
    title = "A dynamic model, live: finish rates on the same arrivals"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`. Starts the services as processes of this machine."""
        scene = load_scene(self.name, Scene, quick, changes)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            shutil.copytree(benchmark_model(scene.model), folder / "models" / scene.model)
            runs = [_run(folder, scene, seed, number, progress) for number in range(scene.runs)]
        found = {side.label: [run.ended[side.label] for run in runs] for side in scene.sides}
        series = {
            "Alone": _alone(runs),
            "windows": {name: windows(scene.seconds, scene.window_s, ended) for name, ended in found.items()},
        }
        rows = [_row(scene, name, ended) for name, ended in found.items()]
        return Findings(self.name, self.title, seed, quick, _facts(scene, runs), rows, _bars(rows), series)

    def draw(self, findings: Findings) -> Figure:
        """Finish rates over time, and times alone over lengths."""
        from horologe_experiments.harness.plots import make_figure

        drawn_figure, (rates, times) = make_figure(1, 2)
        for name, points in findings.series["windows"].items():
            rates.plot(*zip(*points, strict=True), marker=".", label=name)
        rates.set(xlabel="seconds since the start", ylabel="finish rate", ylim=(0, 1.02))
        rates.legend()
        lengths = [row["length"] for row in findings.series["Alone"]]
        times.plot(lengths, [row["ms"] for row in findings.series["Alone"]], marker="o")
        times.set(xlabel="tokens", ylabel="ms alone", xlim=(0, None), ylim=(0, None))
        return drawn_figure


def _run(folder: Path, scene: Scene, seed: int, number: int, progress: Progress) -> Run:
    """The machine measured, arrivals drawn, and replayed for every side in turn."""
    import uvloop

    progress(number / scene.runs, f"run {number + 1}")
    with _services(folder, scene.sides[0]) as house:
        alone = uvloop.run(_probe(house, scene))
    times_ms = _times_ms(alone, draw_texts(scene.applications, DRAWN, np.random.default_rng(seed))[1])
    mean_ms, p99_ms = float(times_ms.mean()), float(np.quantile(times_ms, 0.99))
    slo_ns = ms(scene.slo_multiple * p99_ms)
    random = np.random.default_rng([seed, number])
    texts = poisson_texts(scene.applications, scene.load * 1e3 / mean_ms, scene.seconds, random)
    took_ns = 1e6 * _times_ms(alone, [text.length for text in texts])
    ended: dict[str, list[TextResult]] = {}
    first = number % len(scene.sides)  # a machine that becomes slower does not always hit the same side
    for side in (*scene.sides[first:], *scene.sides[:first]):
        progress((number + len(ended) / len(scene.sides)) / scene.runs, f"run {number + 1}, {side.label}")
        with _services(folder, side) as house:
            ended[side.label] = uvloop.run(_replay(house, scene, texts, slo_ns))
    return Run(alone, mean_ms, p99_ms, share_one_at_a_time(texts, took_ns.tolist(), slo_ns), ended)


def _times_ms(alone: Mapping[int, float], lengths: Any) -> Any:
    """Of texts of these lengths, between those that were timed."""
    return np.interp(lengths, list(alone), list(alone.values()))


def _services(folder: Path, side: Side) -> LocalSystem:
    """With nothing learned, but for the worker's profile of the model: that is measured once for all."""
    sets = f"worker.cache={folder / 'cache'}", f"controller.scheduler={side.scheduler}", "profiler.state=", *side.sets
    return local_services(folder / "models", sets, profiler=side.profiler)


async def _probe(house: LocalSystem, scene: Scene) -> dict[int, float]:
    from horologe import AsyncClient

    house.wait_ready(READY_S)
    async with AsyncClient(house.topology.clients[0], keys=house.topology.keys or None) as client:
        return await measure_alone_ms(client, scene.model, scene.lengths, scene.probes)


async def _replay(house: LocalSystem, scene: Scene, texts: list[Text], slo_ns: int) -> list[TextResult]:
    from horologe import AsyncClient

    house.wait_ready(READY_S)
    async with AsyncClient(house.topology.clients[0], keys=house.topology.keys or None) as client:
        await client.predict(scene.model, inputs_of(scene.lengths[0], 0), timeout=TIMEOUT_S)  # a LOAD is no arrival's
        return await TextTraffic(client, scene.model, [one.name for one in scene.applications], slo_ns).run(texts)


def _row(scene: Scene, name: str, runs: list[list[TextResult]]) -> dict[str, Any]:
    """Medians over the runs."""
    found = [of_run([one.name for one in scene.applications], ended) for ended in runs]
    medians = {
        field: round(statistics.median(one[field] for one in found), 1 if field.endswith("_ms") else 4)
        for field in found[0]
    }
    return {"side": name} | medians | {"settled_s": settled_s(windows(scene.seconds, scene.window_s, runs))}


def _alone(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Times alone by length, medians of the runs."""
    return [
        {"length": length, "ms": round(statistics.median(one.alone_ms[length] for one in runs), 2)}
        for length in runs[0].alone_ms
    ]


def _facts(scene: Scene, runs: Sequence[Run]) -> dict[str, str]:
    mean_ms, p99_ms, possible = (
        statistics.median(getattr(run, field) for run in runs) for field in ("mean_ms", "p99_ms", "possible")
    )
    return {
        "machine": f"{describe_machine()}, shared by client, edge, worker and profiler",
        "applications": "; ".join(
            f"{one.name}: {one.share:g} of the requests, {one.median:g} tokens (median), {one.least} to {one.most}"
            for one in scene.applications
        ),
        "load": f"{scene.load:g} of what the worker does one at a time: {scene.load * 1e3 / mean_ms:.1f} r/s; "
        f"a text takes {mean_ms:.1f} ms alone on average, {p99_ms:.1f} ms at the 99th percentile, "
        f"and the SLO is {scene.slo_multiple:g} times that, {scene.slo_multiple * p99_ms:.0f} ms",
        "possible": f"{possible:.1%} would finish if each ran alone, in order of arrival, its time known beforehand",
        "runs": f"medians of {scene.runs}, {scene.seconds:g} s each from services that know nothing; "
        "load and SLO are measured anew before each",
        "settled_s": f"from when on {ROLLING} windows of {scene.window_s:g} s finish within {NEAR} of the second half",
    }


def _bars(rows: Sequence[dict[str, Any]]) -> list[Bar]:
    """The last side against the first, on the same arrivals."""
    first, last = rows[0], rows[-1]
    if first is last:
        return []
    name = f"finish rate of {last['side']}, beside that of {first['side']}"
    return [Bar(name, last["finished"], first["finished"])]
