"""A state of the tuner with two pipelines and a stage on a share."""

from __future__ import annotations

import msgspec

from horologe_common.clock import ms
from horologe_planning.plan import PLAN_VERSION, Placement, Plan
from horologe_tuner.core.plans.running_plan import AppliedPlan
from horologe_tuner.core.standby.running_stage import ShareSteps
from horologe_tuner.core.standby.share_workers import resized
from horologe_tuner.core.tuner import TunerState
from tuner.tuner_bench import PLAN

STAGES = tuple(msgspec.structs.replace(placed, model=f"{placed.model}-2") for placed in PLAN.placements)
OTHER = msgspec.structs.replace(PLAN, name="audio", placements=STAGES)
SHARE = Placement(
    "chat", "chat", "v100", 4, percent=40.0, device="v100-1", slo_ns=ms(100), latency_ns=ms(5),
    exec_ns=((1, ms(2)), (4, ms(5))),
)  # fmt: skip
CHAT = AppliedPlan(Plan("chat", ms(100), 20.0, (SHARE,)), {}, (ShareSteps((SHARE, resized(SHARE, 50.0))),))
VIDEO, AUDIO = (AppliedPlan(plan, {"front": 2, "back": 3}) for plan in (PLAN, OTHER))
STATE = TunerState(PLAN_VERSION, 7, (VIDEO, AUDIO, CHAT))
