"""The console of a running system under load, in headless Chromium."""

from __future__ import annotations

import asyncio
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


def test_it_shows_every_request_of_a_loaded_system(browser: Any, up: Up) -> None:
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
    finally:
        load.join()
    answered, rejected = (tally.counts() for tally in load.tallies)
    assert answered == {"OK": RATE * SECONDS}
    assert not rejected["OK"]
    expected = [answered["OK"], answered.total() + rejected.total()]
    page.wait_for_function(f"expected => String(({TOTALS})()) === String(expected)", arg=expected, timeout=WAIT_MS)
    viewer.context.close()
    assert viewer.errors == []
    assert viewer.hosts == {up.ready["http"].removeprefix("http://")}
