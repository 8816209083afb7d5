"""The cheapest plan of shares for a set of workloads, over GPU types and mixtures of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_common.interference.prediction import DEFAULT_INTERFERENCE_MODEL, INTERFERENCE_MODELS
from horologe_tuner.core.provisioning.exact_sharing import (
    SharedSet,
    cheapest_partition,
    feasible_sets,
    share_bound,
)
from horologe_tuner.core.provisioning.fleet import Fleet
from horologe_tuner.core.provisioning.placement import RULES, decreasing_order, place_workload, split_workloads
from horologe_tuner.core.provisioning.share_tables import GpuType, ShareTables, check_workloads
from horologe_tuner.core.provisioning.workloads import ProvisioningError, SharingPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_tuner.core.provisioning.workloads import Workload


class ProvisioningOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to provision. The defaults give the cheapest plan found."""

    model: str = DEFAULT_INTERFERENCE_MODEL
    """Name of an interference model."""
    margin: float = 1.0
    """Safety margin: predicted latency times 1 + `margin` * relative error of the model must meet the SLO."""
    paper_batches: bool = False
    """Use b_appr of Eq. 17 instead of the batch size with the least share."""
    exact_workloads: int = 20
    """Most workloads, counting parts, that are provisioned exactly."""
    search_workloads: int = 200
    """Most workloads for which all rules of `RULES` are tried; above it, only Algorithm 1."""

    def validate(self) -> None:
        """Raise ProvisioningError that names the invalid option, its value and the range wanted."""
        if self.model not in INTERFERENCE_MODELS:
            wanted = ", ".join(INTERFERENCE_MODELS)
            raise ProvisioningError(f"model: got {self.model!r}, wanted one of {wanted}")
        if not 0 <= self.margin <= 10:
            raise ProvisioningError(f"margin: got {self.margin:g}, wanted 0 to 10 standard deviations")


DEFAULT_OPTIONS = ProvisioningOptions()
PAPER_OPTIONS = ProvisioningOptions("igniter", 0.0, True, 0, 0)
"""iGniter's Algorithm 1 and nothing else."""


def provision(
    workloads: Sequence[Workload], kinds: Sequence[GpuType], options: ProvisioningOptions = DEFAULT_OPTIONS
) -> SharingPlan:
    """Return the cheapest plan found: of one GPU type, or of several types mixed.

    Few workloads are placed exactly, many by Algorithm 1, those between by the best of several rules.

    Raises ProvisioningError for invalid workloads or options and for an SLO that no GPU type can meet.
    """
    options.validate()
    if not kinds:
        raise ProvisioningError("gpu types: got none, wanted at least one")
    check_workloads(workloads, kinds)
    if not workloads:
        return SharingPlan((), 0.0)
    choices = [[kind] for kind in kinds] + ([list(kinds)] if len(kinds) > 1 else [])
    plans, refusals = [], []
    for chosen in choices:
        try:
            plans.append(_provision_with(workloads, chosen, options))
        except ProvisioningError as error:
            refusals.append(error)
    if not plans:
        raise refusals[-1]
    best = min(plans, key=lambda plan: plan.cost_per_hour)
    return msgspec.structs.replace(best, cost_bound=min(best.cost_per_hour, plans[-1].cost_bound))


def empty_fleets(workloads: Sequence[Workload], kinds: Sequence[GpuType], options: ProvisioningOptions) -> list[Fleet]:
    """Return a fleet without GPUs for each type, with tables of the workloads, split where one exceeds a GPU."""
    model = INTERFERENCE_MODELS[options.model]
    parts = split_workloads(workloads, kinds, model, options.margin)
    fleets = []
    for kind in kinds:
        tables = ShareTables(kind, model, options.margin, options.paper_batches)
        tables.append(parts)
        fleets.append(Fleet(tables))
    return fleets


def place_all(fleets: Sequence[Fleet], rule: str) -> list[Fleet]:
    """Return new fleets with all workloads placed in descending order of their least share (Algorithm 1)."""
    placed = [Fleet(fleet.tables) for fleet in fleets]
    for row in decreasing_order(fleets):
        place_workload(placed, row, RULES[rule])
    return placed


def plan_of(fleets: Sequence[Fleet], cost_bound: float = 0.0) -> SharingPlan:
    """Return the plan of placed workloads."""
    gpus = tuple(gpu for fleet in fleets for gpu in fleet.planned_gpus())
    return SharingPlan(gpus, sum(fleet.cost for fleet in fleets), cost_bound)


def _provision_with(
    workloads: Sequence[Workload], kinds: Sequence[GpuType], options: ProvisioningOptions
) -> SharingPlan:
    """Return the plan with any of these GPU types."""
    fleets = empty_fleets(workloads, kinds, options)
    count = len(fleets[0].tables.workloads)
    chosen, bound = list[SharedSet](), 0.0
    if count <= options.exact_workloads and (sets := feasible_sets(fleets)):
        chosen, bound = cheapest_partition(fleets, sets)
    if chosen:
        for shared in chosen:
            fleet = fleets[shared.fleet]
            gpu = fleet.open_gpu(shared.members[0])
            fleet.set_gpu(gpu, np.array(shared.members, np.intp), np.array(shared.units, np.intp))
        return plan_of(fleets, bound)
    rules = list(RULES) if count <= options.search_workloads else ["least-interference"]
    placed = min((place_all(fleets, rule) for rule in rules), key=lambda placed: sum(fleet.cost for fleet in placed))
    return plan_of(placed, share_bound(fleets))
