"""A tuner core with a plan, and the traffic that a controller reports to it."""

from __future__ import annotations

from typing import Any

import msgspec

from harness.builders import sent
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerConnected
from horologe_common.wanted_shares import WantedShare, check_shares
from horologe_common.wire import Events, ModelEvents, PipelineArrivals, Tune, Tuning
from horologe_common.wire import ResourcePlan as PlanMessage
from horologe_planning.envelope import TrafficEnvelope
from horologe_planning.plan import Placement, Plan, encode_plans
from horologe_tuner.core.journal import JournalEntry
from horologe_tuner.core.tuner import Tuner, TunerState
from horologe_tuner.core.worker_scaling import Scaled, ScaleTo
from horologe_tuner.settings import TunerSettings

CONTROLLER, FRONTEND = "controller/0#1", "frontend/0#1"
WINDOWS = (ms(100), s(1), s(60))
FRONT = Placement("front", "classify", "v100", 4, 2, throughput=100.0)
BACK = Placement("back", "identify", "v100", 8, 1, throughput=100.0, scale_factor=0.5)
PLAN = Plan("video", ms(200), 100.0, (FRONT, BACK), TrafficEnvelope(WINDOWS, (20, 130, 6600)))
STEP_NS = ms(100)


class Bench:
    """A tuner with a controller that sends events every 100 ms, and a scaler that does what it is asked."""

    def __init__(self, state: TunerState | None = None, connect: bool = True, **settings: Any) -> None:
        settings = {"scaler": "process", **settings}
        self.tuner = Tuner("tuner/0#1", TunerSettings(**settings))
        self.now_ns = s(1000)
        self.number = 0
        self.plans: list[PlanMessage] = []
        self.scaled: list[dict[str, int]] = []
        self.shares: list[tuple[WantedShare, ...] | None] = []
        self.journal: list[JournalEntry] = []
        self.saved: list[TunerState] = []
        self.scaler_error = ""
        if state:
            self.tuner.restore(self.now_ns, state)
        if connect:
            self.connect()

    def connect(self, address: str = CONTROLLER) -> None:
        self.number = 0
        self.controller = address
        self.give(address, PeerConnected(address))

    def give(self, sender: str, message: Any) -> None:
        self.tuner.handle(self.now_ns, sender, message, ())
        self.run()

    def run(self) -> None:
        self.tuner.tick(self.now_ns)
        self.tuner.check()
        self.plans += sent(self.tuner, PlanMessage)
        self.journal += sent(self.tuner, JournalEntry, self.tuner.journal)
        self.saved += sent(self.tuner, TunerState, self.tuner.store)
        for call in sent(self.tuner, ScaleTo, self.tuner.scaler):
            check_shares(call.shares or ())
            self.scaled.append(call.workers)
            self.shares.append(call.shares)
            workers, names = {} if self.scaler_error else call.workers, (share.worker for share in call.shares or ())
            self.give(self.tuner.scaler, Scaled(workers, self.scaler_error, tuple(names)))

    def events(
        self, rate: float = 0.0, seconds: float = 0.1, model: str = "classify/1", pipeline: str = "", **fields: Any
    ) -> None:
        """Let time pass with an even rate of requests for a model, or of queries of a pipeline, or both."""
        carried = 0.0
        for _ in range(round(seconds * 1e9 / STEP_NS)):
            self.now_ns += STEP_NS
            self.number += 1
            arrivals = []
            for age in range(9, -1, -1):
                carried += rate / 100
                if count := int(carried):
                    carried -= count
                    arrivals.append((age, count))
            bins = tuple(reversed(arrivals))
            models = (ModelEvents(model, bins),) if arrivals and model else ()
            pipelines = (PipelineArrivals(pipeline, bins),) if arrivals and pipeline else ()
            events = Events(self.number, STEP_NS, ms(10), models, pipelines=pipelines, **fields)
            self.give(self.controller, events)

    def tune(self, command: Any, document: bytes = b"", dry_run: bool = False) -> Tuning:
        self.give(FRONTEND, Tune(7, command, document, dry_run))
        (answer,) = sent(self.tuner, Tuning, FRONTEND)
        assert answer.id == 7
        return answer

    def apply(self, plan: Plan = PLAN, dry_run: bool = False) -> Tuning:
        return self.tune("apply", encode_plans((plan,)), dry_run)

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = msgspec.json.decode(self.tune("status").document)
        return document

    def noted(self) -> list[str]:
        """Return the events of the journal."""
        return [entry.event for entry in self.journal]

    def replicas(self) -> dict[str, int]:
        return dict(self.tuner.plans.plans["video"].state.replicas)
