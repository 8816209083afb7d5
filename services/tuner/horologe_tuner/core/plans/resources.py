"""Resources that plans need together: shares of models for the controller, workers for the scaler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.wire import PlannedModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from horologe_planning.plan import Plan

    Running = Iterable[tuple[Plan, Mapping[str, int]]]
    """Plans with the replicas of their stages that follow the traffic."""


def planned_models(running: Running) -> tuple[PlannedModel, ...]:
    """Return the resources of each model by hardware type: its stages' replicas, the smallest of their batches.

    The replicas of stages and of plans add up. In a pooled plan, stages that call one model share its devices.
    """
    models: dict[tuple[str, str], PlannedModel] = {}
    for plan, replicas in running:
        counted: dict[tuple[str, str], bool] = {}
        for placed in plan.counted:
            key, shares, batch = (placed.model, placed.hardware), replicas[placed.stage], placed.max_batch
            if (before := models.get(key)) is not None:
                shares = before.shares + (0 if plan.pooled and key in counted else shares)
                batch = min(batch, before.max_batch)
            models[key], counted[key] = PlannedModel(placed.model, shares, batch, placed.hardware), True
    return tuple(models.values())


def workers_needed(running: Running, limit: int) -> dict[str, int]:
    """Return the number of workers of each hardware type, at most `limit`.

    A replica has a worker of its own. In a pooled plan, stages share the workers of their hardware type.
    """
    workers: dict[str, int] = {}
    for plan, replicas in running:
        needed: dict[str, int] = {}
        for placed in plan.counted:
            count, others = replicas[placed.stage], needed.get(placed.hardware, 0)
            needed[placed.hardware] = max(others, count) if plan.pooled else others + count
        for hardware, count in needed.items():
            workers[hardware] = min(limit, workers.get(hardware, 0) + count)
    return workers
