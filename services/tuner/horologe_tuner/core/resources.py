"""Resources that the applied plans need together: shares of models for the controller, workers for the scaler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.status import Status
from horologe_common.wire import PlannedModel

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from horologe_planning.tuning_plan import TuningPlan

    Running = Iterable[tuple[TuningPlan, Mapping[str, int]]]
    """Plans with the replicas of their stages."""


def planned_models(running: Running) -> tuple[PlannedModel, ...]:
    """Return the resources of each model by hardware type: its stages' replicas, the smallest of their batches.

    The replicas of stages and of plans add up. In a pooled plan, stages that call one model share its devices.
    """
    models: dict[tuple[str, str], PlannedModel] = {}
    for plan, replicas in running:
        counted: dict[tuple[str, str], bool] = {}
        for stage in plan.stages:
            key, shares, batch = (stage.model, stage.hardware), replicas[stage.stage], stage.max_batch
            if (before := models.get(key)) is not None:
                shares = before.shares + (0 if plan.pooled and key in counted else shares)
                batch = min(batch, before.max_batch)
            models[key], counted[key] = PlannedModel(stage.model, shares, batch, stage.hardware), True
    return tuple(models.values())


def workers_needed(running: Running, limit: int) -> dict[str, int]:
    """Return the number of workers of each hardware type, at most `limit`.

    A replica has a worker of its own. In a pooled plan, stages share the workers of their hardware type.
    """
    workers: dict[str, int] = {}
    for plan, replicas in running:
        needed: dict[str, int] = {}
        for stage in plan.stages:
            count, others = replicas[stage.stage], needed.get(stage.hardware, 0)
            needed[stage.hardware] = max(others, count) if plan.pooled else others + count
        for hardware, count in needed.items():
            workers[hardware] = min(limit, workers.get(hardware, 0) + count)
    return workers


MAX_PLANS = 256


def check_plan(
    plan: TuningPlan, others: list[TuningPlan], served: Container[str] | None, hardware: Iterable[str],
    shared: Mapping[str, str],
) -> tuple[Status, str]:  # fmt: skip
    """Return (OK, ""), or why the plan cannot be applied beside the others.

    `served`: names and keys of the served models, None if they are not known. `hardware`: the hardware types of the
    connected devices; empty if others can be started. `shared`: workloads of the sharing plan, by model.
    """
    for stage in plan.stages:
        if workload := shared.get(stage.model):
            return Status.INVALID_INPUT, f"stage {stage.stage!r}: model {stage.model!r}: has shares as {workload!r}"
    if conflict := _find_conflict(plan, others):
        return Status.INVALID_INPUT, conflict
    if len(others) >= MAX_PLANS:
        return Status.REFUSED, f"plans: {len(others)} are applied already, at most {MAX_PLANS}"
    types = sorted(set(hardware))
    for stage in plan.stages:
        if served is not None and stage.model not in served:
            return Status.UNKNOWN_MODEL, f"stage {stage.stage!r}: model {stage.model!r}: not served"
        if types and stage.hardware not in ("", *types):
            wanted = f"wanted one of {', '.join(types)}: tuner.scaler is none, so no worker can be started"
            return Status.INVALID_INPUT, f"stage {stage.stage!r}: hardware: got {stage.hardware!r}, {wanted}"
    return Status.OK, ""


def _find_conflict(plan: TuningPlan, others: Iterable[TuningPlan]) -> str:
    """Return why the plan cannot be carried out beside others; empty if it can.

    A model has one hardware type, because the controller knows models, not stages. In a pooled plan it may have more.
    """
    hardware: dict[str, tuple[tuple[str, ...], str]] = {}
    for other in (*others, plan):
        for stage in other.stages:
            types: tuple[str, ...] = (stage.hardware,)
            if other.pooled:
                types = tuple(sorted({row.hardware for row in other.stages if row.model == stage.model}))
            first = hardware.setdefault(stage.model, (types, other.pipeline))
            if first[0] != types:
                return (
                    f"stage {stage.stage!r}: hardware: got {', '.join(types)!r}, wanted {', '.join(first[0])!r}, which "
                    f"model {stage.model!r} has in pipeline {first[1]!r}"
                )
    return ""
