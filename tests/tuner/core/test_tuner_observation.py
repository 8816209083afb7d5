"""What the tuner counts, and what it does while arrivals are missing and after a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.service.state_file import StateFile
from horologe_common.wire import (
    Events,
    ModelEvents,
    ResourcePlan,
    Tune,
)
from horologe_planning.plan import encode_plans
from horologe_tuner.core.tuner import TunerState
from horologe_tuner.core.worker_scaling import ScaleTo

if TYPE_CHECKING:
    from pathlib import Path
from tuner.tuner_bench import CONTROLLER, FRONT, FRONTEND, PLAN, STEP_NS, Bench


def test_only_the_entry_stage_counts_as_queries() -> None:
    bench = Bench()
    bench.apply(msgspec.structs.replace(PLAN, entry="back"))
    bench.events(400, 2, model="classify/1")
    assert bench.replicas() == {"front": 2, "back": 1}
    bench.events(50, 2, model="identify/3")  # two queries for each call
    assert bench.status()["plans"][0]["rates"][1] == pytest.approx(100, rel=0.05)


def test_queries_count_that_make_no_call_and_other_calls_of_the_entry_model_do_not() -> None:
    bench = Bench()
    bench.apply()
    bench.events(80, 20, pipeline="video")
    bench.events(2_000, 5)  # of other clients
    assert bench.replicas() == {"front": 2, "back": 1}
    bench.events(300, 1.2, model="", pipeline="video")  # the selector refuses all of them
    assert bench.replicas()["front"] >= 6
    assert bench.tune("arrivals", b"video").document.count(b'"calls_per_query":1.0') == 1


@pytest.mark.parametrize("cause", ["silence", "disconnected"])
def test_a_blind_tuner_changes_nothing_and_says_so(cause: str) -> None:
    bench = Bench()
    bench.apply()
    bench.events(300, 40)
    replicas, calls = bench.replicas(), len(bench.scaled)
    if cause == "disconnected":
        bench.give(CONTROLLER, PeerDisconnected(CONTROLLER))
    else:
        assert bench.tuner.wakeup_ns() == bench.now_ns + s(2)
        bench.now_ns += s(2)
        bench.run()
    assert bench.journal[-1].event == "blind"
    assert bench.status()["blind"]
    bench.tuner.refresh_stats()
    assert bench.tuner.stats.values["horologe_tuner_blind",] == 1
    bench.now_ns += s(600)
    bench.run()
    assert (bench.replicas(), len(bench.scaled)) == (replicas, calls)
    bench.connect("controller/0#2")
    assert bench.plans[-1].models  # the new controller gets the plan
    bench.events(10, 25)
    assert bench.replicas() == replicas  # not observed for 30 s
    bench.events(10, 20)
    assert bench.replicas() == {"front": 1, "back": 1}
    assert bench.status()["blind"] == ""


def test_a_gap_in_the_events_counts_as_not_observed() -> None:
    bench = Bench()
    bench.apply()
    bench.events(300, 5)
    replicas = bench.replicas()
    bench.events(10, 20)
    bench.number += 3
    bench.events(10, 28)
    assert bench.replicas() == replicas
    bench.events(10, 5)
    assert bench.replicas() == {"front": 1, "back": 1}


def test_events_of_an_earlier_controller_or_that_arrive_twice_do_not_count() -> None:
    bench = Bench()
    bench.apply()
    bench.events(100, 1)
    last = Events(bench.number, STEP_NS, ms(10), (ModelEvents("classify/1", ((0, 10_000),)),))
    bench.give(CONTROLLER, last)
    bench.give("controller/0#9", msgspec.structs.replace(last, number=bench.number + 1))
    bench.events(0, 0.2)
    assert bench.replicas() == {"front": 2, "back": 1}


def test_a_restarted_tuner_goes_on_with_what_runs(tmp_path: Path) -> None:
    bench = Bench()
    bench.apply()
    bench.events(300, 2)
    StateFile(TunerState, str(tmp_path), "tuner").save(bench.saved[-1])
    replicas, loaded = bench.replicas(), list[TunerState]()

    def adopt(state: TunerState, age_ns: int) -> list[str]:
        loaded.append(state)
        return []

    assert StateFile(TunerState, str(tmp_path), "tuner").restore(adopt)
    (saved,) = loaded
    again = Bench(saved)
    assert again.replicas() == replicas
    assert again.plans[-1] == bench.plans[-1]
    again.events(10, 29)
    assert again.replicas() == replicas
    assert again.scaled == [{"v100": sum(replicas.values())}]  # workers may have been lost meanwhile
    again.events(10, 5)
    assert again.replicas() == {"front": 1, "back": 1}
    assert again.plans[-1].number > saved.number


def test_the_state_is_stored_before_it_takes_effect() -> None:
    bench = Bench()
    bench.tuner.handle(bench.now_ns, FRONTEND, Tune(1, "apply", encode_plans((PLAN,))), ())
    kinds = [type(out.message) for out in bench.tuner.out]
    assert kinds.index(TunerState) < kinds.index(ResourcePlan) < kinds.index(ScaleTo)


def test_a_plan_applied_while_blind_is_carried_out_when_events_arrive() -> None:
    bench = Bench()
    bench.apply()
    bench.events(100, 1)
    bench.now_ns += s(3)
    bench.run()
    bench.apply(msgspec.structs.replace(PLAN, placements=(msgspec.structs.replace(FRONT, replicas=7),)))
    assert bench.scaled[-1] == {"v100": 3}
    bench.events(100, 0.1)
    assert bench.scaled[-1] == {"v100": 7}
