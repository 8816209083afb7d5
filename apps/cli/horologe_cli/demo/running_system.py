"""Measures a running system, for example that of docker-compose.yml, as `horologe demo` measures its own."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from horologe import AsyncClient
from horologe_cli.demo.demo_run import DemoRun, check_criteria
from horologe_cli.local.local_system import is_loading
from horologe_common.status import HorologeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_cli.demo.demo_options import DemoLoad, RunningSystem
    from horologe_cli.demo.demo_run import DemoResult
    from horologe_common.wire import ModelState

READY_TIMEOUT_S = 120.0
POLL_S = 0.5


async def measure_running(
    system: RunningSystem, load: DemoLoad, on_progress: Callable[[str, float], None]
) -> DemoResult:
    """Wait until no model is loading, then measure the system.

    Raises HorologeError if the system does not answer, OSError if it cannot be reached over HTTP.
    """
    run = DemoRun(system.http, load, on_progress, system.headers())
    async with AsyncClient(system.endpoint, keys=system.keys or None) as client:
        await run.run(client, await _wait_until_loaded(client))
    run.result.criteria = check_criteria(run.result)
    return run.result


async def _wait_until_loaded(client: AsyncClient) -> list[ModelState]:
    end = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            states = await client.models()
        except HorologeError:
            if time.monotonic() > end:
                raise
            states = []
        loaded = states and not any(is_loading(state) for state in states)
        if loaded or (states and time.monotonic() > end):
            return states
        await asyncio.sleep(POLL_S)
