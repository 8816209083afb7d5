"""The tuner core under random sequences of messages and faults: its promises hold in every order."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.recording.snapshot import restore, snapshot
from horologe_common.wire import DeviceState, Events, ModelEvents, Tune, Tuning
from horologe_common.wire import ResourcePlan as PlanMessage
from horologe_planning.envelope import TrafficEnvelope
from horologe_planning.plan import Placement, Plan, encode_plans
from horologe_tuner.core.tuner import Tuner, TunerState
from horologe_tuner.core.worker_scaling import Scaled, ScaleTo
from horologe_tuner.settings import TunerSettings

ENVELOPE = TrafficEnvelope((ms(100), s(1), s(60)), (20, 130, 6600))
PLANS = [
    Plan(name, ms(200), 100.0, (
        Placement("x", "x", "v100", 4, 2, throughput=100.0),
        Placement("y", model, "k80", 1, 1, throughput=90.0, scale_factor=0.5),
    ), ENVELOPE)
    for name, model in (("p", "y"), ("q", "z"))
]  # fmt: skip

steps = st.lists(
    st.one_of(
        st.tuples(st.just("events"), st.integers(0, 60), st.integers(0, 2)),
        st.tuples(st.just("wait"), st.integers(1, s(20)), st.just(0)),
        st.tuples(st.just("controller"), st.booleans(), st.integers(1, 2)),
        st.tuples(
            st.just("tune"), st.sampled_from(["apply", "dry", "withdraw", "status", "broken"]), st.integers(0, 1)
        ),
        st.tuples(st.just("scaled"), st.booleans(), st.integers(0, 5)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


class Run:
    """Gives a tuner the steps, and checks after each what must always hold."""

    def __init__(self) -> None:
        self.tuner = Tuner("tuner/0#1", TunerSettings(scaler="process"))
        self.now_ns, self.number, self.controller, self.asked = s(1), 0, "", 0
        self.calls: list[ScaleTo] = []
        self.saved: TunerState | None = None

    def give(self, sender: str, message: Any) -> None:
        self.asked += isinstance(message, Tune)
        self.tuner.handle(self.now_ns, sender, message, ())
        self.tick()

    def tick(self) -> None:
        self.tuner.tick(self.now_ns)
        self.tuner.refresh_stats()
        self.tuner.check()
        outs, self.tuner.out = self.tuner.out, []
        applied = [running for running in self.tuner.plans.plans.values() if not running.dry_run]
        for out in outs:
            if isinstance(out.message, ScaleTo):
                assert not self.calls, "one call at a time"
                assert self.controller or not self.tuner.describe(self.now_ns).blind
                self.calls.append(out.message)
            elif isinstance(out.message, TunerState):
                self.saved = out.message
            elif isinstance(out.message, PlanMessage):
                assert out.to == self.controller
                assert self.saved is None or out.message.number in (0, self.saved.number)
            elif isinstance(out.message, Tuning):
                self.asked -= 1
        assert self.asked == 0, "each call has one answer"
        if not applied:
            assert not self.tuner.describe(self.now_ns).workers_wanted
        wake_ns = self.tuner.wakeup_ns()
        assert wake_ns is None or wake_ns > self.now_ns

    def step(self, verb: str, value: Any, other: int) -> None:
        if verb == "wait":
            self.now_ns += value
            self.tick()
        elif verb == "events":
            self.now_ns += ms(100)
            self.number += 1 + (other == 2)
            models = (ModelEvents("x/1", ((5, value), (0, value))),) if value else ()
            devices = (DeviceState("w", 0, "v100", ("x/1",)),) if other else None
            self.give(
                self.controller or "controller/0#9", Events(self.number, ms(100), ms(10), models, devices=devices)
            )
        elif verb == "controller":
            address = f"controller/0#{other}"
            if value:
                self.controller, self.number = address, 0
            elif self.controller == address:
                self.controller = ""
            self.give(address, PeerConnected(address) if value else PeerDisconnected(address))
        elif verb == "tune":
            plan = PLANS[other]
            documents = {"withdraw": plan.name.encode(), "status": b"", "broken": b"{"}
            command: Any = value if value in ("withdraw", "status") else "apply"
            document = documents.get(value, encode_plans((plan,)))
            self.give("frontend/0#1", Tune(1, command, document, value == "dry"))
        elif verb == "scaled" and self.calls:
            call = self.calls.pop()
            self.give(self.tuner.scaler, Scaled({} if value else call.workers, "failed" if value else ""))
        elif verb == "restart":
            self.tuner = Tuner("tuner/0#2", TunerSettings(scaler="process"))
            self.calls.clear()
            if self.saved:
                self.tuner.restore(self.now_ns, self.saved)
                wanted = {applied.plan.name: applied.replicas for applied in self.saved.applied}
                assert {name: running.state.replicas for name, running in self.tuner.plans.plans.items()} == wanted
            self.controller = ""
            self.tick()


@settings(max_examples=80, deadline=None)
@given(steps)
def test_no_order_of_messages_and_faults_breaks_a_promise(sequence: list[tuple[str, Any, int]]) -> None:
    run = Run()
    for step in sequence:
        run.step(*step)
    copy = restore(snapshot(run.tuner))
    assert copy.describe(run.now_ns) == run.tuner.describe(run.now_ns)
