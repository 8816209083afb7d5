"""Additions to a layout that is too slow: one more device, for the stage that gains most by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_planning.joint_planning.layouts import WHOLE, Layout, PlannedDevice, StageShare, make_layout

if TYPE_CHECKING:
    from horologe_planning.joint_planning.layout_evaluation import LayoutEvaluator

GAIN = 0.98
"""Factor on the reached SLO that an addition must bring."""
STAGES = 2
"""Additions of a hardware type: those for the two stages that gain most."""


def additions(evaluator: LayoutEvaluator, layout: Layout) -> list[Layout]:
    """Return the layout with a whole device more, of each hardware type, for the stages that gain most by it.

    A stage may then have replicas on several hardware types.
    """
    reached_ns, found = evaluator.reached_slo_ns(layout), []
    for hardware in evaluator.problem.hardware:
        widened = [_add(evaluator, layout, hardware, stage) for stage in evaluator.models]
        better = [other for other in widened if evaluator.reached_slo_ns(other) < GAIN * reached_ns]
        found += sorted(better, key=evaluator.reached_slo_ns)[:STAGES]
    return found


def _add(evaluator: LayoutEvaluator, layout: Layout, hardware: str, stage: str) -> Layout:
    """Return the layout with a device for the stage, with its best batch size; without, if its model has no profile."""
    profile = evaluator.problem.profiles[evaluator.models[stage]].get(hardware)
    if profile is None:
        return layout
    devices = (PlannedDevice(hardware, (StageShare(stage, WHOLE, size),)) for size in profile.batch_sizes)
    return min((make_layout((*layout, device)) for device in devices), key=evaluator.reached_slo_ns)
