"""The cheapest plan of shares for a set of workloads, over GPU types and mixtures of them.

The three workloads of the package's example fit on one V100, with 12.5%, 30% and 37.5% at a margin of 1. The rest of
the GPU costs nothing more, so the plan has a margin of 3 instead: 12.5%, 35% and 40%.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import msgspec

from horologe_common.interference.prediction import INTERFERENCE_MODELS
from horologe_planning.provisioning.cheaper_plan import without_spare_gpus
from horologe_planning.provisioning.device_shares import plan_workloads
from horologe_planning.provisioning.exact_sharing import (
    cheapest_partition,
    feasible_sets,
    share_bound,
)
from horologe_planning.provisioning.fleet import Fleet
from horologe_planning.provisioning.placement import RULES, decreasing_order, place_workload, split_workloads
from horologe_planning.provisioning.share_tables import ShareTables
from horologe_planning.provisioning.workloads import (
    DEFAULT_OPTIONS,
    GpuType,
    ProvisioningError,
    ProvisioningOptions,
    check_workloads,
)
from horologe_planning.report import SharedPlans, SharingReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_planning.provisioning.workloads import Workload


EXACT_WORKLOADS = 40
"""Most workloads, counting parts, that are provisioned exactly, unless too many sets of them fit on one GPU."""
SEARCH_WORKLOADS = 200
"""Most workloads for which all rules of `RULES` are tried; above it, only Algorithm 1."""
MIXED_TYPES = 4
"""GPU types of which all sets are tried: 15 plans."""
MARGIN_STEPS = 3
"""Plans tried for a larger margin: the largest first, then by bisection."""


def provision(
    workloads: Sequence[Workload], kinds: Sequence[GpuType], options: ProvisioningOptions = DEFAULT_OPTIONS
) -> SharedPlans:
    """Return the cheapest plan found: of one GPU type, or of several types mixed.

    Few workloads are placed exactly, many by Algorithm 1, those between by the best of several rules.

    Raises ProvisioningError for invalid workloads or options and for an SLO that no GPU type can meet.
    """
    options.validate()
    check_workloads(workloads, kinds)
    if not workloads:
        return SharedPlans((), SharingReport(0.0))
    plan = _cheapest_plan(workloads, kinds, options)
    plan = _with_free_margin(plan, workloads, kinds, options)
    parts = sum(len(planned.placements) for planned in plan.plans)
    return without_spare_gpus(plan, kinds, options) if len(workloads) < parts <= SEARCH_WORKLOADS else plan


def _cheapest_plan(
    workloads: Sequence[Workload], kinds: Sequence[GpuType], options: ProvisioningOptions
) -> SharedPlans:
    plans = [_provision_on(fleets) for fleets in fleet_choices(workloads, kinds, options)]
    best = min(plans, key=lambda plan: plan.report.cost_per_hour)
    return with_report(best, cost_bound=min(plan.report.cost_bound for plan in plans), margin=options.margin)


def _with_free_margin(
    plan: SharedPlans, workloads: Sequence[Workload], kinds: Sequence[GpuType], options: ProvisioningOptions
) -> SharedPlans:
    """Return the plan with the largest margin that costs no more: it uses shares that are left over.

    Of many workloads, no other plan is tried, for the sake of the time.
    """
    enough, too_much = options.margin, options.free_margin
    if len(workloads) > SEARCH_WORKLOADS or too_much <= enough:
        return plan
    best, tried = plan, too_much
    for _ in range(MARGIN_STEPS):
        wider = msgspec.structs.replace(options, margin=tried)
        try:
            found = _cheapest_plan(workloads, kinds, wider)
        except ProvisioningError:
            found = None
        if found is not None and found.report.cost_per_hour <= plan.report.cost_per_hour * (1 + 1e-9):
            best, enough = with_report(found, cost_bound=plan.report.cost_bound), tried
        else:
            too_much = tried
        tried = (enough + too_much) / 2
        if enough == too_much:
            break
    return best


def fleet_choices(
    workloads: Sequence[Workload], kinds: Sequence[GpuType], options: ProvisioningOptions
) -> list[list[Fleet]]:
    """Return the empty fleets to plan with: each GPU type alone, all together, and for few workloads all sets between.

    A greedy plan with more types may cost more than one with fewer. Where several types mix, a workload may be split
    although one of them could serve it whole. Raises UnattainableSlo if no choice serves every workload.
    """
    if len(workloads) <= SEARCH_WORKLOADS and len(kinds) <= MIXED_TYPES:
        sets = [list(mix) for count in range(1, len(kinds) + 1) for mix in combinations(kinds, count)]
    else:
        sets = [[kind] for kind in kinds] + ([list(kinds)] if len(kinds) > 1 else [])
    choices, refusals = [], []
    for mix in sets:
        for split_cheapest in (False, True)[: len(mix)]:
            try:
                choices.append(empty_fleets(workloads, mix, options, split_cheapest=split_cheapest))
            except ProvisioningError as error:
                refusals.append(error)
    if not choices:
        raise refusals[-1]
    return choices


def empty_fleets(
    workloads: Sequence[Workload],
    kinds: Sequence[GpuType],
    options: ProvisioningOptions,
    *,
    split_cheapest: bool = False,
) -> list[Fleet]:
    """Return a fleet without GPUs for each type, with tables of the workloads, split as `split_workloads` does."""
    model = INTERFERENCE_MODELS[options.model]
    parts = split_workloads(workloads, kinds, model, options.margin, split_cheapest=split_cheapest)
    fleets = []
    for kind in kinds:
        tables = ShareTables(kind, model, options.margin)
        tables.append(parts)
        fleets.append(Fleet(tables))
    return fleets


def place_all(fleets: Sequence[Fleet], rule: str) -> list[Fleet]:
    """Return new fleets with all workloads placed in descending order of their least share (Algorithm 1)."""
    placed = [Fleet(fleet.tables) for fleet in fleets]
    for row in decreasing_order(fleets):
        place_workload(placed, row, RULES[rule])
    return placed


def plan_of(
    fleets: Sequence[Fleet], cost_bound: float = 0.0, devices: Sequence[Sequence[str]] | None = None
) -> SharedPlans:
    """Return the plans of placed workloads. `devices`: ids of the GPUs in use, by fleet. Without, they are numbered."""
    if devices is None:
        devices = [
            [f"{fleet.tables.kind.gpu.name}-{number}" for number in range(1, len(fleet.used_gpus()) + 1)]
            for fleet in fleets
        ]
    placed = [share for fleet, ids in zip(fleets, devices, strict=True) for share in fleet.placements(ids)]
    return SharedPlans(plan_workloads(placed), SharingReport(sum(fleet.cost for fleet in fleets), cost_bound))


def with_report(plan: SharedPlans, **fields: float) -> SharedPlans:
    """Return the plans with other fields of the report."""
    return plan._replace(report=msgspec.structs.replace(plan.report, **fields))


def _provision_on(fleets: Sequence[Fleet]) -> SharedPlans:
    """Return the cheapest plan found on these fleets: the best of the rules, or the exact one of few workloads."""
    count = len(fleets[0].tables.workloads)
    rules = list(RULES) if count <= SEARCH_WORKLOADS else ["least-interference"]
    placed = min((place_all(fleets, rule) for rule in rules), key=lambda placed: sum(fleet.cost for fleet in placed))
    plan = plan_of(placed, share_bound(fleets))
    if count > EXACT_WORKLOADS or not (sets := feasible_sets(fleets)):
        return plan
    chosen, bound = cheapest_partition(fleets, sets)
    cost, cost_bound = plan.report.cost_per_hour, max(bound, plan.report.cost_bound)
    if sum(fleets[shared.fleet].price for shared in chosen) >= cost * (1 - 1e-9) or not chosen:
        return with_report(plan, cost_bound=min(cost_bound, cost))
    for shared in chosen:
        fleet = fleets[shared.fleet]
        fleet.set_gpu(fleet.open_gpu(shared.members[0]), shared.members, shared.units)
    return plan_of(fleets, cost_bound)
