"""Links of 20 ms each way between all services: what is admitted is in time, and what cannot be in time is refused."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from fakes.proxy import SlowProxy
from harness.model_folders import an_emulated_model
from harness.offered_load import GRACE_MS, a_process, run_under_load
from horologe_cli.local.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from horologe import AsyncClient

pytestmark = pytest.mark.alone

DELAY_S = 0.02
HOST = "tcp://127.0.0.1"


@pytest.fixture
def far_services(tmp_path: Path) -> Iterator[str]:
    """Start every service in a process of its own, with a slow proxy before each. Yield the client endpoint."""
    an_emulated_model(tmp_path / "models")
    names = ("clients", "frontend", "selector", "controller")
    ports = {name: free_port("127.0.0.1") for name in names}
    with ExitStack() as stack:
        slow = {name: f"{HOST}:{stack.enter_context(SlowProxy(ports[name], DELAY_S)).port}" for name in names}
        bind = {name: f"links.bind={HOST}:{ports[name]}" for name in names}
        services: dict[str, tuple[str, ...]] = {
            "controller": (bind["controller"], "controller.workers=1"),
            "selector": (
                bind["selector"], f"links.advertise={slow['selector']}", f"links.connect={slow['controller']}",
                f"selector.state={tmp_path}",
            ),
            "frontend": (
                bind["frontend"], f"links.advertise={slow['frontend']}",
                f"links.connect={slow['selector']},{slow['controller']}",
                f"frontend.clients={HOST}:{ports['clients']}", "http.port=0", "grpc.port=0",
                f"frontend.grace_ns={GRACE_MS}ms",
            ),
            "gpu_worker": (
                f"links.connect={slow['controller']}", f"worker.repository={tmp_path}/models",
                f"worker.cache={tmp_path}/cache",
            ),
        }  # fmt: skip
        for name, sets in services.items():
            process = a_process(f"horologe_{name}", "links.allow_open=true", *sets)
            stack.callback(process.wait, 10)
            stack.callback(process.kill)
        yield slow["clients"]


async def no_fault(_: AsyncClient) -> None: ...


def test_what_is_admitted_over_slow_links_is_in_time(far_services: str) -> None:
    """A request and its answer take more than 80 ms on their links."""
    counts = run_under_load(far_services, no_fault, 100, 3, slo_ms=1000).counts()
    assert counts["OK"] > 270, counts
    assert counts["LATE"] + counts["LOST"] < 15, counts
    counts = run_under_load(far_services, no_fault, 100, 1, slo_ms=75).counts()
    assert counts["OK"] == 0, counts
    assert counts["REFUSED"] > 50, counts
