"""A state of the tuner with two pipelines and a workload."""

from __future__ import annotations

import msgspec

from horologe_common.clock import ms
from horologe_tuner.core.pipeline_tuning.running_plan import AppliedPlan
from horologe_tuner.core.sharing.running_workload import AppliedWorkload, ShareSteps
from horologe_tuner.core.sharing.targets import DeviceShare, WorkloadTarget
from horologe_tuner.core.tuner import TunerState
from tuner.tuner_bench import PLAN

STAGES = tuple(msgspec.structs.replace(stage, model=f"{stage.model}-2") for stage in PLAN.stages)
OTHER = msgspec.structs.replace(PLAN, pipeline="audio", stages=STAGES)
SHARE = DeviceShare("chat", "v100-1", "v100", 40.0)
TARGET = WorkloadTarget("chat", "chat", 20.0, ms(100), 4, (SHARE,), {"v100-1": {1: ms(2), 4: ms(5)}}, ms(5))
WORKLOAD = AppliedWorkload(TARGET, (ShareSteps((SHARE, SHARE.resized(50.0))),))
VIDEO, AUDIO = (AppliedPlan(plan, {"front": 2, "back": 3}) for plan in (PLAN, OTHER))
STATE = TunerState(7, (VIDEO, AUDIO), (WORKLOAD,))
