"""Exact provisioning of few workloads: all sets that fit on one GPU, and a set partition by HiGHS; lower bounds.

Of the three workloads of the package's example, 7 sets fit on one V100: each alone, the three pairs, and all three. The
cheapest choice with every workload in one set is the last: one GPU, $3.06 per hour. HiGHS is a solver of such choices.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from horologe_planning.provisioning.placement import share_cost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.interference.prediction import Index
    from horologe_planning.provisioning.fleet import Fleet
    from horologe_planning.provisioning.share_tables import ShareTables

SETS_LIMIT = 5_000
"""Sets of co-located workloads, over all GPU types. HiGHS solves 2,000 of 20 workloads in 0.3 s of CPU time."""
TIME_LIMIT_S = 10.0
PAIRS_LIMIT = 200
"""Workloads whose pairs are all tried for the lower bound: 19,900 pairs."""


class SharedSet(NamedTuple):
    """Workloads that fit on one GPU, with their shares."""

    fleet: int
    members: tuple[int, ...]
    units: tuple[int, ...]


def feasible_sets(fleets: Sequence[Fleet]) -> list[SharedSet] | None:
    """Return every set of workloads that Algorithm 2 fits on one GPU of each type; None if they are too many.

    A set is only tried if it fits without its last workload: a neighbour never shortens a latency.
    """
    sets: list[SharedSet] = []
    for place, fleet in enumerate(fleets):
        tables = fleet.tables
        members = np.flatnonzero(tables.least <= tables.kind.whole)[:, None]
        units = tables.least[members]
        while len(members):
            allocation = tables.allocate(members, units)
            keep = np.flatnonzero(allocation.fits)
            members, units = members[keep], allocation.units[keep]
            found = zip(members.tolist(), units.tolist(), strict=True)
            sets += [SharedSet(place, tuple(rows), tuple(shares)) for rows, shares in found]
            if len(sets) > SETS_LIMIT:
                return None
            members, units = _extend(members, units, tables.least, tables.kind.whole)
    return sets


def cheapest_partition(fleets: Sequence[Fleet], sets: Sequence[SharedSet]) -> tuple[list[SharedSet], float]:
    """Return the cheapest choice of sets with every workload in one of them, and the lower bound of the solver.

    The choice is empty if the solver found none within its time.
    """
    chosen = _solve(fleets, sets)
    if chosen.x is None:
        return [], 0.0
    return [shared for shared, use in zip(sets, chosen.x, strict=True) if use > 0.5], float(chosen.mip_dual_bound)


def share_bound(fleets: Sequence[Fleet]) -> float:
    """Return a lower bound of the cost for any number of workloads, from the shares that each needs alone.

    For several types, this is the sum of the shares, each at its cheapest type. For one type, it is the bound L2 for
    bin packing (Martello and Toth 1990, section 8.3). Up to `PAIRS_LIMIT` workloads, it counts the share that a
    workload needs beside the neighbour that disturbs it least: without a neighbour it takes a whole GPU anyway.
    """
    rows = range(len(fleets[0].tables.workloads))
    if len(fleets) > 1:
        return sum(min(share_cost(fleet, row) for fleet in fleets) for row in rows)
    tables = fleets[0].tables
    sizes = _shared_least(tables) if len(rows) <= PAIRS_LIMIT else tables.least
    return fleets[0].price * _packing_bound(sizes, tables.kind.whole)


def _shared_least(tables: ShareTables) -> Index:
    """Return the least share of each workload beside any one neighbour, a whole GPU if none fits beside it."""
    least, whole = tables.least, tables.kind.whole
    members = np.argwhere(np.triu(least[:, None] + least[None, :] <= whole, 1))
    shared = np.full(len(least), whole, np.intp)
    if len(members):
        allocation = tables.allocate(members, least[members])
        fits = allocation.fits.astype(bool)
        np.minimum.at(shared, members[fits], allocation.units[fits])
    return shared


def _packing_bound(sizes: Index, whole: int) -> int:
    """Return the bound L2 for bins of size `whole`."""
    best = 0
    for small in range(whole // 2 + 1):
        large = sizes[sizes > whole - small]
        middle = sizes[(sizes > whole / 2) & (sizes <= whole - small)]
        rest = int(sizes[(sizes >= small) & (sizes <= whole / 2)].sum())
        free = len(middle) * whole - int(middle.sum())
        best = max(best, len(large) + len(middle) + max(0, ceil((rest - free) / whole)))
    return best


def _extend(members: Index, units: Index, least: Index, whole: int) -> tuple[Index, Index]:
    """Return the sets with one workload more, of a later row than all others, as far as the shares alone fit."""
    rows = np.arange(len(least))
    later = rows[None, :] > members[:, -1:]
    room = units.sum(axis=1, keepdims=True) + least[None, :] <= whole
    line, row = np.nonzero(later & room)
    return np.column_stack([members[line], row]), np.column_stack([units[line], least[row]])


def _solve(fleets: Sequence[Fleet], sets: Sequence[SharedSet]) -> Any:
    count = len(fleets[0].tables.workloads)
    columns = np.concatenate([np.full(len(shared.members), place) for place, shared in enumerate(sets)])
    rows = np.concatenate([shared.members for shared in sets])
    cover = csr_array((np.ones(len(rows)), (rows, columns)), shape=(count, len(sets)))
    prices = np.array([fleets[shared.fleet].price for shared in sets])
    return milp(
        prices,
        constraints=LinearConstraint(cover, 1, 1),
        bounds=Bounds(0, 1),
        integrality=np.ones(len(sets)),
        options={"time_limit": TIME_LIMIT_S},
    )
