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

from horologe_cli.openloop import PATIENCE_S
from horologe_cli.stage import READY_S, benchmark_model, machine, services
from horologe_cli.texts import OK, Application, Ended, Replay, alone_ms, drawn, inputs_of, poisson
from horologe_common.clock import ms, s
from horologe_common.status import Status
from horologe_sim.experiment import Bar, Findings, scene

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

    from horologe_cli.embedded import Embedded
    from horologe_cli.texts import Text
    from horologe_sim.experiment import Progress

DRAWN = 20_000
"""Texts that mean and 99th percentile of the times alone are computed of."""
NEAR, ROLLING = 0.02, 3
"""The finish rate has settled where that of so many windows on end is first this near to that of the second half."""


class Side(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is compared: a scheduler, and whatever else of the services is set for it."""

    scheduler: str
    sets: tuple[str, ...] = ()
    """As for `--set`; `{fresh}` stands for a folder that is empty at the start of each run."""


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
    applications: tuple[Application, ...]
    sides: tuple[Side, ...]
    """The first is what the last has to reach."""


class Measure(NamedTuple):
    """The machine before a run."""

    alone_ms: dict[int, float]
    mean_ms: float
    p99_ms: float


class Dynamic:
    name = "dynamic"
    title = "A dynamic model, live: finish rates on the same arrivals"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`. Starts the services as processes of this machine."""
        place = scene(self.name, Scene, quick, changes)
        measures: list[Measure] = []
        found: dict[str, list[list[Ended]]] = {side.scheduler: [] for side in place.sides}
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            shutil.copytree(benchmark_model(place.model), folder / "models" / place.model)
            for number in range(place.runs):
                progress(number / place.runs, f"run {number + 1}")
                measures.append(_measured(folder, place, seed))
                texts = _arrivals(place, measures[-1], [seed, number])
                turn = number % len(place.sides)  # a machine that becomes slower does not always hit the same side
                for at, side in enumerate((*place.sides[turn:], *place.sides[:turn])):
                    progress((number + at / len(place.sides)) / place.runs, f"run {number + 1}, {side.scheduler}")
                    found[side.scheduler].append(_replayed(folder, place, side, texts, _slo_ns(place, measures[-1])))
        rows = [_row(place, side.scheduler, found[side.scheduler]) for side in place.sides]
        series = {"Alone": _alone(measures), "windows": {name: _windows(place, runs) for name, runs in found.items()}}
        return Findings(self.name, self.title, seed, quick, _facts(place, measures), rows, _bars(rows), series)

    def draw(self, findings: Findings) -> Figure:
        """Finish rates over time, and times alone over lengths."""
        from horologe_sim.experiments.figures import figure

        drawn_figure, (rates, times) = figure(1, 2)
        for name, windows in findings.series["windows"].items():
            rates.plot(*zip(*windows, strict=True), marker=".", label=name)
        rates.set(xlabel="seconds since the start", ylabel="finish rate", ylim=(0, 1.02))
        rates.legend()
        lengths = [row["length"] for row in findings.series["Alone"]]
        times.plot(lengths, [row["ms"] for row in findings.series["Alone"]], marker="o")
        times.set(xlabel="tokens", ylabel="ms alone", xlim=(0, None), ylim=(0, None))
        return drawn_figure


def _measured(folder: Path, place: Scene, seed: int) -> Measure:
    """Times alone by length, and of what the applications send."""
    import uvloop

    with _services(folder, Side(place.sides[0].scheduler)) as house:
        alone = uvloop.run(_probe(house, place))
    lengths = drawn(place.applications, DRAWN, np.random.default_rng(seed))[1]
    times = np.interp(lengths, list(alone), list(alone.values()))
    return Measure(alone, float(times.mean()), float(np.quantile(times, 0.99)))


def _replayed(folder: Path, place: Scene, side: Side, texts: list[Text], slo_ns: int) -> list[Ended]:
    """One run of one side."""
    import uvloop

    with _services(folder, side) as house:
        return uvloop.run(_replay(house, place, texts, slo_ns))


def _services(folder: Path, side: Side) -> Embedded:
    """With nothing learned, but for the worker's profile of the model: that is measured once for all."""
    fresh = tempfile.mkdtemp(dir=folder)
    own = (one.replace("{fresh}", fresh) for one in side.sets)
    sets = f"worker.cache={folder / 'cache'}", f"controller.scheduler={side.scheduler}", *own
    return services(folder / "models", sets)


async def _probe(house: Embedded, place: Scene) -> dict[int, float]:
    from horologe import AsyncClient

    house.wait_ready(READY_S)
    async with AsyncClient(house.arrangement.clients[0], keys=house.arrangement.keys or None) as client:
        return await alone_ms(client, place.model, place.lengths, place.probes)


async def _replay(house: Embedded, place: Scene, texts: list[Text], slo_ns: int) -> list[Ended]:
    from horologe import AsyncClient

    house.wait_ready(READY_S)
    async with AsyncClient(house.arrangement.clients[0], keys=house.arrangement.keys or None) as client:
        await client.predict(place.model, inputs_of(place.lengths[0], 0), timeout=PATIENCE_S)  # a LOAD is no arrival's
        return await Replay(client, place.model, [one.name for one in place.applications], slo_ns).run(texts)


def _slo_ns(place: Scene, measure: Measure) -> int:
    return ms(place.slo_multiple * measure.p99_ms)


def _arrivals(place: Scene, measure: Measure, seed: list[int]) -> list[Text]:
    return poisson(place.applications, place.load * 1e3 / measure.mean_ms, place.seconds, np.random.default_rng(seed))


def _row(place: Scene, name: str, runs: list[list[Ended]]) -> dict[str, Any]:
    """Medians over the runs."""
    found = [_of_run(place, ended) for ended in runs]
    medians = {field: round(statistics.median(one[field] for one in found), 4) for field in found[0]}
    return {"scheduler": name} | medians | {"settled_s": settled_s(_windows(place, runs))}


def _of_run(place: Scene, ended: list[Ended]) -> dict[str, float]:
    """Shares of the requests of one run; latencies and batches of those in time."""
    good = [one for one in ended if one.status == OK]
    took = sorted(one.took_ns for one in good) or [0]
    refused = sum(one.status == Status.REFUSED.name for one in ended)
    rates = {"finished": len(good) / len(ended)}
    for at, application in enumerate(place.applications):
        own = [one.status == OK for one in ended if one.text.application == at]
        rates[application.name] = sum(own) / max(1, len(own))
    return rates | {
        "refused": refused / len(ended), "late": (len(ended) - len(good) - refused) / len(ended),
        "p50_ms": took[len(took) // 2] / 1e6, "p99_ms": took[len(took) * 99 // 100] / 1e6,
        "batch": sum(one.batch_size for one in good) / max(1, len(good)),
    }  # fmt: skip


def _windows(place: Scene, runs: list[list[Ended]]) -> list[tuple[float, float]]:
    """(second at which it begins, finish rate) of each window, over all runs."""
    count = int(place.seconds / place.window_s)
    sent, good = np.zeros(count), np.zeros(count)
    for one in (one for ended in runs for one in ended):
        at = int(one.text.at_ns / s(place.window_s))
        if at < count:
            sent[at] += 1
            good[at] += one.status == OK
    rates = good / np.maximum(1, sent)
    return [(place.window_s * at, round(float(rate), 4)) for at, rate in enumerate(rates)]


def settled_s(windows: Sequence[tuple[float, float]]) -> float | None:
    """From which second on the finish rate has been at its final level, that of the second half, for the first time."""
    rates = [rate for _, rate in windows]
    final = statistics.fmean(rates[len(rates) // 2 :]) if rates else 0.0
    for at, (begin_s, _) in enumerate(windows):
        if statistics.fmean(rates[at : at + ROLLING]) >= final - NEAR:
            return begin_s
    return None


def _alone(measures: Sequence[Measure]) -> list[dict[str, Any]]:
    """Times alone by length, medians of the runs."""
    return [
        {"length": length, "ms": round(statistics.median(one.alone_ms[length] for one in measures), 2)}
        for length in measures[0].alone_ms
    ]


def _facts(place: Scene, measures: Sequence[Measure]) -> dict[str, str]:
    mean_ms, p99_ms = (statistics.median(getattr(one, field) for one in measures) for field in ("mean_ms", "p99_ms"))
    return {
        "machine": f"{machine()}, shared by client, edge, worker and profiler",
        "applications": "; ".join(
            f"{one.name}: {one.share:g} of the requests, {one.median:g} tokens (median), {one.least} to {one.most}"
            for one in place.applications
        ),
        "load": f"{place.load:g} of what the worker does one at a time: {place.load * 1e3 / mean_ms:.1f} r/s; "
        f"a text takes {mean_ms:.1f} ms alone on average, {p99_ms:.1f} ms at the 99th percentile, "
        f"and the SLO is {place.slo_multiple:g} times that, {place.slo_multiple * p99_ms:.0f} ms",
        "runs": f"medians of {place.runs}, {place.seconds:g} s each from services that know nothing; "
        "load and SLO are measured anew before each",
        "settled_s": f"from when on {ROLLING} windows of {place.window_s:g} s finish within {NEAR} of the second half",
    }


def _bars(rows: Sequence[dict[str, Any]]) -> list[Bar]:
    """The last side against the first, on the same arrivals."""
    first, last = rows[0], rows[-1]
    if first is last:
        return []
    name = f"finish rate of {last['scheduler']}, beside that of {first['scheduler']}"
    return [Bar(name, last["finished"], first["finished"])]
