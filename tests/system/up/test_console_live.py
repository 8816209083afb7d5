"""The console of a running system under load, in headless Chromium."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from harness.model_folders import an_emulated_model
from harness.offered_load import START_S, Tally, offer
from harness.running_up import Up
from horologe import AsyncClient, Client
from system.console_page import Page, browser, needs_chromium

__all__ = ["browser"]

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [needs_chromium, pytest.mark.timeout(180)]
SECONDS, RATE, TIGHT_RATE = 8.0, 100.0, 20.0
SLO_MS, TIGHT_MS = 10_000.0, 1.0
"""Every request of the first kind is answered in time, even on a busy machine. None of the second kind can be."""
WAIT_MS = 60_000
TOTALS = """() => {
  const row = sumTraffic(state.frames).find((row) => row.name === "pretend/1");
  return row ? [row.inTime, row.inTime + Object.values(row.failed).reduce((sum, count) => sum + count, 0)] : [0, 0];
}"""
"""Requests answered in time, and all requests, that the page has received."""


class Load(threading.Thread):
    """Offers requests that are answered and requests that are refused, for `SECONDS`."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self.tallies = Tally(), Tally()
        self._endpoint = endpoint

    def run(self) -> None:
        asyncio.run(self._offer())

    async def _offer(self) -> None:
        async with AsyncClient(self._endpoint) as client:
            kinds = zip(self.tallies, (RATE, TIGHT_RATE), (SLO_MS, TIGHT_MS), strict=True)
            await asyncio.gather(*(offer(client, tally, rate, SECONDS, slo_ms=slo) for tally, rate, slo in kinds))


@pytest.fixture
def up(tmp_path: Path) -> Any:
    an_emulated_model(tmp_path / "models")
    up = Up(tmp_path, "--models", "models", "--no-profiler", "--split", HOROLOGE_WORKER_CACHE=str(tmp_path / "cache"))
    yield up
    up.stop(signal.SIGTERM)


def test_it_shows_every_request_of_a_loaded_system(browser: Any, up: Up, tmp_path: Path) -> None:
    with Client(up.ready["clients"][0]) as client:
        client.predict("pretend", [[1.0] * 4], timeout=START_S)
    viewer = Page(browser, up.ready["http"])
    page = viewer.page
    page.wait_for_selector("#state[data-state=live]")
    load = Load(up.ready["clients"][0])
    load.start()
    try:
        page.wait_for_selector("#traffic td:has-text('pretend/1')", timeout=WAIT_MS)
        page.wait_for_selector("#refusals tbody td:has-text('pretend/1')", timeout=WAIT_MS)
        page.wait_for_selector("#devices li:has-text('pretend/1')", timeout=WAIT_MS)
        assert "worker/0" in page.inner_text("#devices")
        check_pause(page)
    finally:
        load.join()
    answered, rejected = (tally.counts() for tally in load.tallies)
    assert answered == {"OK": RATE * SECONDS}
    assert not rejected["OK"]
    expected = [answered["OK"], answered.total() + rejected.total()]
    page.wait_for_function(f"expected => String(({TOTALS})()) === String(expected)", arg=expected, timeout=WAIT_MS)
    check_export(page, tmp_path)
    viewer.context.close()
    assert viewer.errors == []
    assert viewer.hosts == {up.ready["http"].removeprefix("http://")}


def check_pause(page: Any) -> None:
    """Assert that a paused page shows an action and does not change, while frames still arrive."""
    page.keyboard.press("p")
    page.wait_for_selector("#state[data-state=paused]")
    page.focus("#timeline")
    page.keyboard.press("]")
    page.wait_for_function("() => document.getElementById('detail').textContent.includes('predicted')")
    assert "pretend/1" in page.inner_text("#detail")
    shown, frames = page.inner_text("#traffic"), page.evaluate("state.frames.length")
    page.wait_for_function("before => state.frames.length >= before + 3", arg=frames, timeout=WAIT_MS)
    assert page.inner_text("#traffic") == shown
    page.keyboard.press("End")
    page.wait_for_selector("#state[data-state=live]")


def check_export(page: Any, folder: Path) -> None:
    """Assert that the exported trace has the executions of the last two minutes."""
    while page.inner_text("#span") != "120 s":
        page.click("#zoom-out")
        page.wait_for_timeout(100)
    with page.expect_download() as download:
        page.click("#export")
    file = folder / "trace.json"
    download.value.save_as(file)
    events = json.loads(file.read_text())["traceEvents"]
    actions = [event for event in events if event["ph"] == "X" and event["tid"] == 1]
    assert {event["args"]["model"] for event in actions} == {"pretend/1"}
    assert {event["args"]["status"] for event in actions} <= {"OK", "CANCELLED"}, "windows may pass on a busy machine"
    answered = sum(event["args"]["requests"] for event in actions if event["args"]["status"] == "OK")
    assert answered >= RATE * SECONDS
    assert any(event.get("cat") == "refusal" for event in events)
