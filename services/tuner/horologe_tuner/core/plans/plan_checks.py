"""Whether plans can be carried out: beside each other, with the models that are served and the devices there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from horologe_common.status import Status
from horologe_planning.plan import MAX_PLANS, check_devices
from horologe_tuner.core.standby.share_workers import DEVICE_LENGTH

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from horologe_planning.plan import Placement, Plan

NAME_LENGTH = 40
"""Characters of a stage's name in the name of a worker."""
NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
"""Characters of a worker's instance name, which contains the names of stage and device."""


class ClusterModels(NamedTuple):
    """What a plan is checked against."""

    served: Container[str] | None = None
    """Names and keys of the served models. None: not known."""
    hardware: Iterable[str] = ()
    """Hardware types of the connected devices. Empty: others can be started."""
    starts_workers: bool = False
    """True if the tuner starts workers, which bring the models of their shares."""


def check_plan(plan: Plan, others: Sequence[Plan], cluster: ClusterModels) -> tuple[Status, str]:
    """Return (OK, ""), or why the plan cannot be applied beside the others."""
    try:
        for placement in plan.shares:
            check_share(placement)
        _check_workers((*others, plan))
        check_devices((*others, plan))
    except ValueError as error:
        return Status.INVALID_INPUT, str(error)
    if conflict := _find_conflict(plan, others):
        return Status.INVALID_INPUT, conflict
    if len(others) >= MAX_PLANS:
        return Status.REFUSED, f"plans: {len(others)} are applied already, at most {MAX_PLANS}"
    return _check_cluster(plan, cluster)


def _check_cluster(plan: Plan, cluster: ClusterModels) -> tuple[Status, str]:
    types = sorted(set(cluster.hardware))
    for placement in plan.placements:
        place = f"plan {plan.name!r}: stage {placement.stage!r}: "
        waits = placement.is_share and cluster.starts_workers
        if cluster.served is not None and placement.model not in cluster.served and not waits:
            return Status.UNKNOWN_MODEL, f"{place}model {placement.model!r}: not served"
        if types and not placement.is_share and placement.hardware not in ("", *types):
            wanted = f"wanted one of {', '.join(types)}: tuner.scaler is none, so no worker can be started"
            return Status.INVALID_INPUT, f"{place}hardware: got {placement.hardware!r}, {wanted}"
    return Status.OK, ""


def check_share(placement: Placement) -> None:
    """Raise ValueError unless stage and device can name a worker."""
    for field, name in (("stage", placement.stage), ("device", placement.device)):
        if not NAME_CHARACTERS.issuperset(name):
            wanted = "wanted letters, digits, '-', '_' and '.' for a share"
            raise ValueError(f"stage {placement.stage!r}: {field}: got {name!r}, {wanted}")
    if len(placement.stage) > NAME_LENGTH:
        raise ValueError(f"stage: got {placement.stage!r}, wanted at most {NAME_LENGTH} characters for a share")


def _check_workers(plans: Iterable[Plan]) -> None:
    """Raise ValueError unless each share has a worker of its own, whatever its size."""
    workers: set[str] = set()
    stages: dict[str, str] = {}
    for plan in plans:
        for placement in plan.shares:
            if (owner := stages.setdefault(placement.stage, plan.name)) != plan.name:
                raise ValueError(
                    f"plan {plan.name!r}: stage: got {placement.stage!r}, which has shares in plan {owner!r}, wanted "
                    "another name: it names the workers"
                )
            worker = f"{placement.stage}.{placement.device[-DEVICE_LENGTH:]}"
            if worker in workers:
                wanted = f"devices whose last {DEVICE_LENGTH} characters differ"
                raise ValueError(f"stage {placement.stage!r}: device: got {placement.device!r}, wanted {wanted}")
            workers.add(worker)


def _find_conflict(plan: Plan, others: Iterable[Plan]) -> str:
    """Return why a model cannot be served by several placements; empty if it can.

    A model has one hardware type, because the controller knows models, not stages. In a pooled plan it may have more,
    and on shares. A model on shares has no other devices.
    """
    known: dict[str, tuple[tuple[str, ...], str]] = {}
    for other in (*others, plan):
        for placement in other.placements:
            types = _hardware_types(other, placement)
            first = known.setdefault(placement.model, (types, other.name))
            if first[0] != types:
                return (
                    f"stage {placement.stage!r}: hardware: got {', '.join(types)!r}, wanted {', '.join(first[0])!r}, "
                    f"which model {placement.model!r} has in plan {first[1]!r}"
                )
    return ""


def _hardware_types(plan: Plan, placement: Placement) -> tuple[str, ...]:
    if placement.is_share:
        return ("shares",)
    if plan.pooled:
        return tuple(sorted({other.hardware for other in plan.placements if other.model == placement.model}))
    return (placement.hardware,)
