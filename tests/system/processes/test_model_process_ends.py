"""Python models whose process ends under load: exactly the requests of its batch are FAILED."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from harness.model_folders import a_python_model
from harness.running_services import RunningServices
from harness.waiting import until
from horologe import AsyncClient, Client
from horologe_common.status import HorologeError

if TYPE_CHECKING:
    from collections.abc import Iterator

COPIES, SETTLE_S, INIT_S = 2, 60, 1
EXIT, PATIENT_MS, SHORT_MS = 9, 20_000, 300
SOURCE = f"""
import os, time

class Model:
    def __init__(self):
        time.sleep({INIT_S})

    def predict_batch(self, inputs):
        if inputs["x"][0, 0] == {EXIT}:
            os._exit(3)
        return {{"y": inputs["x"]}}
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServices]:
    folder = tmp_path_factory.mktemp("h")
    a_python_model(folder / "models", SOURCE, batch_sizes=[1])
    with RunningServices(folder, workers=COPIES) as system:
        yield system


def wait_for_copies(endpoint: str) -> None:
    """Wait until every worker holds the model."""
    with Client(endpoint) as client:
        until(lambda: all("code/1" in share.resident for share in client.describe().shares), SETTLE_S)


async def predict(client: AsyncClient, value: float, slo_ms: float) -> str:
    """Return the status of a request, with the reason of a failure."""
    x = np.full((1, 4), value, np.float32)
    try:
        y = await client.predict("code", x, slo_ms=slo_ms)
    except HorologeError as error:
        return f"FAILED: {error.reason}" if error.status.name == "FAILED" else error.status.name
    np.testing.assert_array_equal(y, x)
    return "OK"


async def crash_under_load(
    endpoint: str, crashes: int, slo_ms: float, rate: float = 100, seconds: float = 2.5
) -> Counter[str]:
    """Send a request every 1/rate seconds, and `crashes` that end their process after the first tenth."""
    async with AsyncClient(endpoint) as client:
        tasks = []
        for number in range(int(rate * seconds)):
            crashing = 0 <= number - int(rate * seconds / 10) < crashes
            tasks.append(
                asyncio.ensure_future(predict(client, EXIT if crashing else 1, PATIENT_MS if crashing else slo_ms))
            )
            await asyncio.sleep(1 / rate)
        return Counter(await asyncio.wait_for(asyncio.gather(*tasks), SETTLE_S))


@pytest.mark.parametrize(("crashes", "slo_ms"), [(1, PATIENT_MS), (COPIES, PATIENT_MS)], ids=["one copy", "all copies"])
def test_only_the_crashed_batch_fails(system: RunningServices, crashes: int, slo_ms: float) -> None:
    wait_for_copies(system.endpoint)
    statuses = asyncio.run(crash_under_load(system.endpoint, crashes, slo_ms))
    failed = "FAILED: model code/1: process ended (exit code 3)"
    assert statuses == {failed: crashes, "OK": statuses.total() - crashes}


def test_requests_that_cannot_wait_for_the_next_process_are_refused(system: RunningServices) -> None:
    wait_for_copies(system.endpoint)
    statuses = asyncio.run(crash_under_load(system.endpoint, COPIES, SHORT_MS))
    assert statuses.pop("FAILED: model code/1: process ended (exit code 3)") == COPIES
    assert statuses.keys() <= {"OK", "REFUSED", "LATE"}
    assert statuses["REFUSED"] > 0
