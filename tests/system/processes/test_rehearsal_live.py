"""`horologe up --scheduler auto` with real processes: rehearsals run, and changes under load lose nothing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from harness.model_folders import SIGNATURE, a_folder
from harness.offered_load import ClosedLoad
from harness.running_services import RunningServices
from harness.waiting import until
from horologe import Client
from horologe_common.status import HorologeError
from horologe_common.transport.sockets import LinkSettings
from horologe_common.wire import UseScheduler
from system.reactors import Running, no_signals

if TYPE_CHECKING:
    from pathlib import Path

assert no_signals
MODEL = SIGNATURE + "[emulated]\nexec_ms = { 1 = 20.0, 2 = 30.0 }\nload_ms = 3\n"
"""Batches take so long that requests are queued at each change, while the clients and rehearsals need little CPU."""
CHANGES = ("orloj", "clockwork", "edf", "nexus", "horologe")


def last_rehearsal(client: Client) -> dict[str, float]:
    """Return what each scheduler would have served, or nothing before the first rehearsal."""
    rehearsal = client.tune("status")["rehearsal"]
    return dict(rehearsal["served"]) if rehearsal else {}


def uses(client: Client, name: str) -> bool:
    return client.describe().scheduler == f"auto: {name}"


def test_rehearsals_run_and_changes_under_load_lose_nothing(tmp_path: Path) -> None:
    a_folder(tmp_path / "models", "pretend", MODEL)
    sets = ("tuner.rehearsal_interval_ns=5s", "worker.pages_bytes=64MiB", "worker.host_bytes=1MiB")
    with RunningServices(tmp_path, *sets, scheduler="auto") as local:
        endpoint = local.endpoint
        load = ClosedLoad(endpoint, 4)
        with Client(endpoint) as client:
            until(lambda: client.describe().scheduler.startswith("auto: "))
            until(lambda: "horologe" in last_rehearsal(client), retry=(HorologeError,))  # once the tuner is connected
            (edge,) = local._folder.glob("edge")
            settings = LinkSettings(connect=(f"unix://{edge}",), bind=(f"unix://{tmp_path}/tuner",))
            tuner = Running("tuner", settings, (), False, "9")
            try:
                until(lambda: any(sender.startswith("controller") for sender, _ in tuner.core.heard))
                controller = next(sender for sender, _ in tuner.core.heard if sender.startswith("controller"))
                for name in CHANGES * 2:
                    tuner.say(controller, UseScheduler(name, {}, f"{name} is next"))
                    until(partial(uses, client, name))
            finally:
                tuner.stop()
        outcomes = load.stop()
        assert set(outcomes) == {"OK"}
