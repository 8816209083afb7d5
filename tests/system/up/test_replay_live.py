"""Replay of recordings of a real selector that learns, is killed, and restarts from its store."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from harness.running_up import Up
from harness.waiting import until
from horologe import Application, Client, HorologeError
from horologe_cli.demo.digits import held_out
from horologe_sim.replay import replay_recording

MODELS = Path(__file__).parents[3] / "models"
THREE = ("digits-cnn", "digits-mlp", "digits-linear")


def teach(client: Client, count: int) -> bool:
    """Query both applications, and send feedback on their answers. Return True."""
    images, truths = held_out()
    for at in range(count):
        for name in ("one", "all"):
            reply = client.ask(name, images[at : at + 2], context=f"user-{at % 7}")
            client.feedback(name, reply, truths[at : at + 2])
    return True


def test_the_replay_of_a_learning_selector_is_identical(tmp_path: Path) -> None:
    recorder = ("directory=recordings", "roles=selector", "messages=1000")
    sets = [part for one in recorder for part in ("--set", f"recorder.{one}")]
    up = Up(tmp_path, "--models", str(MODELS), "--split", "--no-profiler", *sets)
    with Client(up.ready["clients"][0]) as client:
        for name, policy in (("one", "exp3"), ("all", "exp4")):
            client.declare(Application(name, THREE, slo_ms=30_000.0, policy=policy, default=0.0))
        teach(client, 30)
        selector = up.ready["processes"]["selector"]
        os.kill(selector, signal.SIGUSR1)
        teach(client, 1)
        os.kill(selector, signal.SIGKILL)
        until(lambda: teach(client, 30), 60, (HorologeError,), 0.1)  # the selector restarts
    up.stop(signal.SIGTERM)
    reports = [replay_recording(path, "selector") for path in sorted((tmp_path / "recordings").glob("selector*.rec"))]
    assert len(reports) == 2
    for report in reports:
        assert report.identical, report.table()
        ((_, core),) = report.cores.items()
        assert core.faults == 0
        assert core.handled["Feedback"] >= 40
        assert core.handled["RecordsRead"] > 0
