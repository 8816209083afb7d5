"""Models that change under load, in virtual time: no answer of an earlier content after READY, none lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from horologe_common.clock import ms
from horologe_common.core.protocol import Out
from horologe_common.status import Status
from horologe_common.wire import Admit, Answer, Models, Predict
from horologe_frontend.core.frontend import Frontend
from horologe_gpu_worker.settings import WorkerSettings
from horologe_sim.engine.simulated_clients import FrontendClient
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from sim.sim_builders import a_scenario, an_entry, assert_at_rest, assert_one_answer_each, poisson, stall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_sim.engine.simulated_faults import Fault
    from horologe_sim.scenario.scenario import Scenario

CHANGES = 30
FIRST_ID = 1 << 40


class ChangingCluster:
    """A cluster whose models change: every worker reads content k, and the client loads it, every `every_ns`."""

    def __init__(self, scenario: Scenario, monkeypatch: pytest.MonkeyPatch, every_ns: int) -> None:
        self.ready: list[int] = []
        self.answered: list[int] = []
        self.stale: list[tuple[int, int]] = []
        """(content that was READY, content of the answer)."""
        handle_request, handle_answer = Frontend.handle, FrontendClient.handle

        def handle_at_frontend(core: Frontend, now_ns: int, sender: str, message: Any, buffers: Sequence[Any]) -> None:
            if isinstance(message, Predict):
                message = msgspec.structs.replace(message, content_hash=True)
            handle_request(core, now_ns, sender, message, buffers)

        def handle_at_client(
            core: FrontendClient, now_ns: int, sender: str, message: Any, buffers: Sequence[Any]
        ) -> None:
            if isinstance(message, Models) and message.id >= FIRST_ID:
                assert message.status == Status.OK, message.reason
                self.ready.append(content_number(message.models[0].spec.content_hash))
            elif isinstance(message, Answer) and message.model == "m" and message.content_hashes:
                self.record_answer(content_number(message.content_hashes[0]))
            handle_answer(core, now_ns, sender, message, buffers)

        monkeypatch.setattr(Frontend, "handle", handle_at_frontend)
        monkeypatch.setattr(FrontendClient, "handle", handle_at_client)
        self.cluster = SimulatedCluster(scenario)
        for number in range(1, CHANGES + 1):
            self.cluster.world.events.schedule(self.cluster.begin_ns + number * every_ns, self.change, number)

    def record_answer(self, content: int) -> None:
        self.answered.append(content)
        if self.ready and content < self.ready[-1]:
            self.stale.append((self.ready[-1], content))

    def set_content(self, content: int) -> None:
        """Write a content into the repository of every worker."""
        for device in self.cluster.devices.values():
            model = device.models["m/1"]
            spec = msgspec.structs.replace(model.report.spec, content_hash=str(content))
            report = msgspec.structs.replace(model.report, spec=spec)
            device.models["m/1"] = msgspec.structs.replace(model, report=report)

    def change(self, content: int) -> None:
        self.set_content(content)
        frontend = self.cluster.world.core("frontend/0").address
        self.cluster.client.out.append(Out(frontend, Admit(FIRST_ID + content, "m", "", True)))

    def run(self) -> None:
        self.cluster.run()
        self.cluster.world.check()
        assert_one_answer_each(self.cluster)
        assert self.stale == []
        assert self.ready[-1] == CHANGES
        assert len(self.ready) == CHANGES


def content_number(content_hash: str) -> int:
    """Return the number of a content; 0 for the first one, whose hash is the name of the model."""
    return int(content_hash) if content_hash.isdigit() else 0


@pytest.mark.parametrize("split", [False, True], ids=["fused", "split"])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("faults", [(), (stall("worker/0", 400, 80),)], ids=["", "stall"])
def test_no_answer_is_of_an_earlier_content_than_ready(
    monkeypatch: pytest.MonkeyPatch, split: bool, workers: int, faults: tuple[Fault, ...]
) -> None:
    scenario = a_scenario(
        an_entry("m", slo_ns=ms(400)), split=split, workers=workers, load=[poisson(300 * workers)], faults=faults
    )
    changing = ChangingCluster(scenario, monkeypatch, ms(60))
    changing.run()
    (line,) = changing.cluster.tally.counts.values()
    assert set(line.statuses) - {status for status, count in line.statuses.items() if not count} <= {"OK"}
    assert len(set(changing.answered)) > CHANGES // 2
    assert_at_rest(changing.cluster)


def test_models_that_do_not_fit_together_change_too(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = a_scenario(
        an_entry("m", slo_ns=ms(400), weights_mb=16.0),
        an_entry("other", slo_ns=ms(400), weights_mb=16.0),
        worker=WorkerSettings(pages_bytes=1 << 24),
        load=[poisson(60)],
    )
    changing = ChangingCluster(scenario, monkeypatch, ms(60))
    changing.run()
    assert_at_rest(changing.cluster)
