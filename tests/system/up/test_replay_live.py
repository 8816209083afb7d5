"""Replay of recordings of a real selector that learns, is killed, and restarts from its store."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness.running_up import Up
from horologe import Application, Client, HorologeError
from horologe_cli.demo.digits import held_out
from horologe_sim.replay import replay_recording

if TYPE_CHECKING:
    from collections.abc import Callable

MODELS = Path(__file__).parents[3] / "models"
THREE = ("digits-cnn", "digits-mlp", "digits-linear")


def teach(client: Client, count: int) -> None:
    """Query both applications, and send feedback on their answers."""
    images, truths = held_out()
    for at in range(count):
        for name in ("one", "all"):
            reply = client.ask(name, images[at : at + 2], context=f"user-{at % 7}")
            client.feedback(name, reply, truths[at : at + 2])


def retry(call: Callable[[], object]) -> None:
    """Repeat the call for at most 60 s while it raises HorologeError, because the selector restarts."""
    end = time.monotonic() + 60
    while True:
        try:
            call()
            return
        except HorologeError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


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
        retry(lambda: teach(client, 30))
    up.stop(signal.SIGTERM)
    reports = [replay_recording(path, "selector") for path in sorted((tmp_path / "recordings").glob("selector*.rec"))]
    assert len(reports) == 2
    for report in reports:
        assert report.identical, report.table()
        ((_, core),) = report.cores.items()
        assert core.faults == 0
        assert core.handled["Feedback"] >= 40
        assert core.handled["RecordsRead"] > 0
