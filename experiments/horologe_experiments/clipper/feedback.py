"""Clipper section 4.2: observations per second that the selector can process, with and without the prediction cache."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.core.instruments import quantile
from horologe_experiments.clipper.feedback_process.__main__ import Measurement, Order
from horologe_experiments.clipper.feedback_process.durability import Durability, compare_with_store
from horologe_experiments.clipper.feedback_process.feedback_load import FeedbackLoad, LoadSettings
from horologe_experiments.clipper.feedback_process.redis_server import RedisServer
from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_selector.settings import SelectorSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress

WANTED_RATE = 20_000
"""Observations per second."""
WANTED_P99_MS = 20.0
"""99th percentile of the time to the acknowledgement."""
PAPER_ROWS = [
    {"store": "paper: Clipper", "cache": cache, "rate": rate} for cache, rate in (("yes", 11_000), ("no", 6_000))
]
TIMEOUT_S = 600.0
"""Timeout of one measurement."""


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of feedback."""

    description: str
    stores: tuple[str, ...]
    outstanding: int
    kill_after: int
    alone: bool
    load: LoadSettings


class Feedback:
    """Observations per second by store, and durability after a kill."""

    name = "feedback"
    title = "Feedback: observations per second of the selector's learning"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`. Measures by the machine's clock; each row is a process on one core."""
        scene = load_scene(self.name, Scene, quick, changes)
        idle = os.getloadavg()[0]
        rows: list[dict[str, Any]] = []
        skipped: list[str] = []
        steps = 2 * len(scene.stores) + 1
        for store in scene.stores:
            for cached in (True, False):
                progress(
                    (len(rows) + 2 * len(skipped)) / steps, f"{store}, {'cached' if cached else 'predicted again'}"
                )
                with (
                    tempfile.TemporaryDirectory(prefix="feedback-") as folder,
                    RedisServer(store, Path(folder)) as server,
                ):
                    if server.missing:
                        skipped.append(store)
                        break
                    measurement = _measure(_order(scene, store, folder, server.url, seed, cached))
                    rows.append(_row(store, cached, measurement))
        progress((steps - 1) / steps, "kill -9")
        durability = _measure_durability(scene, seed)
        facts = _facts(scene, rows, durability, skipped)
        facts["load average"] = f"{idle:.1f} before, {os.getloadavg()[0]:.1f} at the end; the run itself makes it 1"
        return Findings(self.name, self.title, seed, quick, facts, [*rows, *PAPER_ROWS], _bars(rows, durability))

    def draw(self, findings: Findings) -> Figure:
        """Draw observations per second and the time to the acknowledgement, by store."""
        from horologe_experiments.harness.plots import make_figure

        figure, (left, right) = make_figure(1, 2)
        stores = list(dict.fromkeys(row["store"] for row in findings.rows))
        for number, cache in enumerate(("yes", "no")):
            rows = {row["store"]: row for row in findings.rows if row["cache"] == cache}
            positions = [position + 0.4 * number for position in range(len(stores))]
            label = "predictions cached" if cache == "yes" else "predicted again"
            left.bar(positions, [rows[store]["rate"] for store in stores], 0.4, label=label)
            right.bar(positions, [rows[store].get("p99_ms", 0) for store in stores], 0.4, label=label)
        for axes, bar, label in (
            (left, WANTED_RATE, "observations/s"),
            (right, WANTED_P99_MS, "acknowledged, p99 (ms)"),
        ):
            axes.axhline(bar, color="k", ls="--", lw=0.8, label="wanted, sqlite")
            axes.set(ylabel=label, ylim=(0, None))
            axes.set_xticks(
                [position + 0.2 for position in range(len(stores))], [store.partition(":")[0] for store in stores]
            )
            axes.legend(fontsize=7)
        return figure


def _order(
    scene: Scene, store: str, folder: str, url: str, seed: int, cached: bool, print_acknowledged: bool = False
) -> Order:
    settings = SelectorSettings(store=store, state=folder, redis=url, predictions=scene.load.observations)
    core = max(os.sched_getaffinity(0))
    return Order(scene.load, settings, seed, cached, scene.outstanding, core, scene.alone, print_acknowledged)


def _start_process(order: Order) -> subprocess.Popen[bytes]:
    # All threads share one core, and more BLAS threads would only spin while they wait for each other.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    child = subprocess.Popen(
        [sys.executable, "-m", "horologe_experiments.clipper.feedback_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert child.stdin
    child.stdin.write(msgspec.json.encode(order))
    child.stdin.close()
    child.stdin = None
    return child


def _measure(order: Order) -> Measurement:
    with _start_process(order) as child:
        text, _ = child.communicate(timeout=TIMEOUT_S)
        if child.returncode:
            raise RuntimeError(f"{order.settings.store}: the process ended with {child.returncode}")
    return msgspec.json.decode(text, type=Measurement)


def _measure_durability(scene: Scene, seed: int) -> Durability:
    """Kill the process after `kill_after` acknowledgements and compare them with the observations in its file."""
    with tempfile.TemporaryDirectory(prefix="feedback-") as folder:
        order = _order(scene, "sqlite", folder, "", seed, cached=True, print_acknowledged=True)
        acknowledged: list[int] = []
        with _start_process(order) as child:
            assert child.stdout
            for line in child.stdout:
                acknowledged.append(int(line))
                if len(acknowledged) == scene.kill_after:
                    child.kill()
        return compare_with_store(FeedbackLoad(scene.load, seed), order.settings, acknowledged)


def _row(store: str, cached: bool, measurement: Measurement) -> dict[str, Any]:
    return {
        "store": store,
        "cache": "yes" if cached else "no",
        "rate": round(measurement.observations / measurement.seconds),
        "p50_ms": _quantile_ms(measurement.took_ns, 0.5),
        "p99_ms": _quantile_ms(measurement.took_ns, 0.99),
        "max_ms": _quantile_ms(measurement.took_ns, 1.0),
        "cpu_us": round(measurement.cpu_s / measurement.observations * 1e6, 1),
        "not_ok": measurement.not_ok,
        "a_group": round(measurement.changes / max(1, measurement.groups), 1),
        "write_p50_ms": _quantile_ms(measurement.write_ns, 0.5),
        "write_p99_ms": _quantile_ms(measurement.write_ns, 0.99),
        "predict_us": round(measurement.predict_ns / 1e3, 1),
        "resident_mb": measurement.bytes_resident >> 20,
    }


def _quantile_ms(ascending_ns: list[int], share: float) -> float:
    return round(quantile(ascending_ns, share) / 1e6, 2) if ascending_ns else 0.0


def _bars(rows: list[dict[str, Any]], durability: Durability) -> list[Bar]:
    bars = []
    for row in rows:
        if (row["store"], row["cache"]) == ("sqlite", "yes"):
            bars.append(Bar("observations a second, SQLite", row["rate"], WANTED_RATE))
            bars.append(Bar("p99 of the acknowledgement in ms, SQLite", row["p99_ms"], WANTED_P99_MS, "at most"))
    bars.append(Bar("observations not acknowledged OK", sum(row["not_ok"] for row in rows), 0, "at most"))
    return [*bars, Bar("kill -9: acknowledged and lost", durability.lost, 0, "at most")]


def _facts(scene: Scene, rows: list[dict[str, Any]], durability: Durability, skipped: list[str]) -> dict[str, str]:
    load = scene.load
    predict_us = sorted(row["predict_us"] for row in rows)
    facts = {
        "load": f"{scene.outstanding} lists of {load.list} outstanding, {len(load.accuracies)} models, Exp4, "
        f"{load.contexts:,} contexts, drawn uniformly; times from the bytes of a Feedback to those of its Acknowledged",
        "core": "event loop and store writer share one core"
        + (", at real-time priority where permitted" if scene.alone else ""),
        "cache": "no: a perceptron in the same thread repeats the predictions of each list, "
        f"{load.width}-{load.hidden}-10 units in numpy: {predict_us[len(predict_us) // 2]} us each",
        "a_group": "contexts that are written and synced together",
        "kill -9": f"{durability.acknowledged:,} observations had been acknowledged, {durability.stored:,} were stored",
    }
    if skipped:
        facts["not measured"] = f"{', '.join(skipped)}: no redis-server, or no package redis"
    return facts
