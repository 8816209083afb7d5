"""`horologe experiment dynamic`: a model whose execution time depends on its input, live, under several schedulers.

The text encoder of the benchmarks runs on ONNX Runtime, on one worker. Two applications send texts of different
lengths. Solo times are measured before each run. They give the SLO (a multiple of their 99th percentile, as in ORLOJ's
tables) and the rate (a part of what the worker serves one at a time). Every side gets the same arrivals, on newly
started services: a side is measured from its first request on, or after other traffic of the same kind.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from horologe_common.clock import ms
from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_experiments.live.finish_rates import NEAR, ROLLING, rates_of_run, settled_s, window_rates
from horologe_experiments.live.local_services import READY_S, benchmark_model, describe_machine, local_services
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
"""Number of texts behind mean and 99th percentile of the solo times."""


class Side(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A side of the comparison: a scheduler, and other settings of the services."""

    scheduler: str
    name: str = ""
    """Name in tables; empty: the scheduler's."""
    profiler: bool = False
    """Run a profiler, which starts without data in each run."""
    sets: tuple[str, ...] = ()
    """Settings, as for `--set`."""
    learns: bool = False
    """Send other texts for `Scene.learn_s` before the measured ones."""

    @property
    def label(self) -> str:
        """Return the name in tables."""
        return self.name or self.scheduler


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of dynamic."""

    description: str
    model: str
    """A model of `benchmarks/models`."""
    runs: int
    seconds: float
    load: float
    """Part of what the worker serves one at a time."""
    slo_multiple: float
    """SLO divided by the 99th percentile of the solo times."""
    window_s: float
    probes: int
    """Probes of each length."""
    lengths: tuple[int, ...]
    """Lengths of the probes. Times of other lengths are interpolated."""
    applications: tuple[TextSource, ...]
    sides: tuple[Side, ...]
    """Sides of the comparison. Those after the first must reach it."""
    learn_s: float
    """Seconds of other texts, at the same rate."""
    wanted: float
    """Finish rate that a side must reach after learning."""


class DynamicRun(NamedTuple):
    """Solo times before the run, and the results by side."""

    alone_ms: dict[int, float]
    mean_ms: float
    p99_ms: float
    possible: float
    results: dict[str, list[TextResult]]


class Dynamic:
    """Finish rates of the sides on the same arrivals."""

    name = "dynamic"
    title = "A dynamic model, live: finish rates on the same arrivals"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`. Starts the services as processes of this machine."""
        scene = load_scene(self.name, Scene, quick, changes)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            shutil.copytree(benchmark_model(scene.model), folder / "models" / scene.model)
            runs = [_run(folder, scene, seed, number, progress) for number in range(scene.runs)]
        by_side = {side.label: [run.results[side.label] for run in runs] for side in scene.sides}
        series = {
            "Alone": _alone(runs),
            "windows": {name: window_rates(scene.seconds, scene.window_s, ended) for name, ended in by_side.items()},
        }
        rows = [_row(scene, name, ended) for name, ended in by_side.items()]
        return Findings(self.name, self.title, seed, quick, _facts(scene, runs), rows, _bars(scene, rows), series)

    def draw(self, findings: Findings) -> Figure:
        """Draw finish rates over time, and solo times by length."""
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


def _run(folder: Path, scene: Scene, seed: int, number: int, progress: Progress) -> DynamicRun:
    """Measure solo times, draw the arrivals, and send them to every side in turn."""
    import uvloop

    progress(number / scene.runs, f"run {number + 1}")
    with _services(folder, scene.sides[0]) as house:
        alone = uvloop.run(_probe(house, scene))
    times_ms = _times_ms(alone, draw_texts(scene.applications, DRAWN, np.random.default_rng(seed))[1])
    mean_ms, p99_ms = float(times_ms.mean()), float(np.quantile(times_ms, 0.99))
    slo_ns = ms(scene.slo_multiple * p99_ms)
    random = np.random.default_rng([seed, number])
    rate = scene.load * 1e3 / mean_ms
    texts = poisson_texts(scene.applications, rate, scene.seconds, random)
    took_ns = 1e6 * _times_ms(alone, [text.length for text in texts])
    results: dict[str, list[TextResult]] = {}
    first = number % len(
        scene.sides
    )  # rotate the sides, so that a drift of the machine does not always hit the same one
    for side in (*scene.sides[first:], *scene.sides[:first]):
        progress((number + len(results) / len(scene.sides)) / scene.runs, f"run {number + 1}, {side.label}")
        parts = [texts]
        if side.learns:
            other = np.random.default_rng([seed, number, 1])
            parts.insert(0, poisson_texts(scene.applications, rate, scene.learn_s, other))
        with _services(folder, side) as house:
            results[side.label] = uvloop.run(_replay(house, scene, parts, slo_ns))
    return DynamicRun(alone, mean_ms, p99_ms, share_one_at_a_time(texts, took_ns.tolist(), slo_ns), results)


def _times_ms(alone: Mapping[int, float], lengths: Any) -> Any:
    """Return the solo times of texts of these lengths, interpolated between the probes."""
    return np.interp(lengths, list(alone), list(alone.values()))


def _services(folder: Path, side: Side) -> LocalSystem:
    """Return services that start without data, except the worker's profile of the model, which is shared."""
    sets = f"worker.cache={folder / 'cache'}", f"controller.scheduler={side.scheduler}", "profiler.state=", *side.sets
    return local_services(folder / "models", sets, profiler=side.profiler)


async def _probe(house: LocalSystem, scene: Scene) -> dict[int, float]:
    from horologe import AsyncClient

    house.wait_ready(READY_S)
    async with AsyncClient(house.topology.clients[0], keys=house.topology.keys or None) as client:
        return await measure_alone_ms(client, scene.model, scene.lengths, scene.probes)


async def _replay(house: LocalSystem, scene: Scene, parts: Sequence[list[Text]], slo_ns: int) -> list[TextResult]:
    """Send the parts one after the other. Return the results of the last."""
    from horologe import AsyncClient

    house.wait_ready(READY_S)
    async with AsyncClient(house.topology.clients[0], keys=house.topology.keys or None) as client:
        await client.predict(
            scene.model, inputs_of(scene.lengths[0], 0), timeout=TIMEOUT_S
        )  # loads the model before the first arrival
        traffic = TextTraffic(client, scene.model, [source.name for source in scene.applications], slo_ns)
        return [await traffic.run(texts) for texts in parts][-1]


def _row(scene: Scene, name: str, runs: list[list[TextResult]]) -> dict[str, Any]:
    """Return a row with medians over the runs."""
    rates = [rates_of_run([source.name for source in scene.applications], ended) for ended in runs]
    medians = {
        field: round(statistics.median(values[field] for values in rates), 1 if field.endswith("_ms") else 4)
        for field in rates[0]
    }
    return {"side": name} | medians | {"settled_s": settled_s(window_rates(scene.seconds, scene.window_s, runs))}


def _alone(runs: Sequence[DynamicRun]) -> list[dict[str, Any]]:
    """Return the solo times by length, as medians of the runs."""
    return [
        {"length": length, "ms": round(statistics.median(run.alone_ms[length] for run in runs), 2)}
        for length in runs[0].alone_ms
    ]


def _facts(scene: Scene, runs: Sequence[DynamicRun]) -> dict[str, str]:
    mean_ms, p99_ms, possible = (
        statistics.median(getattr(run, field) for run in runs) for field in ("mean_ms", "p99_ms", "possible")
    )
    return {
        "machine": f"{describe_machine()}, shared by client, edge, worker and profiler",
        "applications": "; ".join(
            f"{source.name}: {source.share:g} of the requests, {source.median:g} tokens (median), "
            f"{source.least} to {source.most}"
            for source in scene.applications
        ),
        "load": f"{scene.load:g} of what the worker serves one at a time: {scene.load * 1e3 / mean_ms:.1f} r/s; "
        f"a text takes {mean_ms:.1f} ms alone on average, {p99_ms:.1f} ms at the 99th percentile, "
        f"and the SLO is {scene.slo_multiple:g} times that, {scene.slo_multiple * p99_ms:.0f} ms",
        "possible": f"{possible:.1%} would finish if each ran alone, in order of arrival, with known execution times",
        "runs": f"medians of {scene.runs}, {scene.seconds:g} s each on services that start without data; "
        f"load and SLO are measured before each; learning: {scene.learn_s:g} s of other texts before the measured ones",
        "settled_s": f"first time with {ROLLING} windows of {scene.window_s:g} s within {NEAR} of the second half",
    }


def _bars(scene: Scene, rows: Sequence[dict[str, Any]]) -> list[Bar]:
    """Return the bars: each side against the first, and those after learning against what is wanted."""
    first = rows[0]
    beside = [
        Bar(f"finish rate of {row['side']}, beside that of {first['side']}", row["finished"], first["finished"])
        for row in rows[1:]
    ]
    learned = {side.label for side in scene.sides if side.learns}
    after = [row for row in rows if row["side"] in learned]
    return [*beside, *(Bar(f"finish rate of {row['side']}", row["finished"], scene.wanted) for row in after)]
