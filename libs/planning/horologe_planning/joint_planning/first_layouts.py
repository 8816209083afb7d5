"""First layouts of a candidate: where the shares of each stage go.

If `detect` needs 30% of a V100 by itself, `persons` 25% and `vehicles` 17.5%, one V100 suffices for the three. All of
it is given to them in proportion: 40%, 35% and 25%.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from horologe_planning.joint_planning.layouts import (
    LEAST_PERCENT,
    WHOLE,
    Layout,
    PlannedDevice,
    StageShare,
    dedicated_layout,
    fill_device,
    make_layout,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe_planning.joint_planning.share_demand import LayoutCandidate, ShareDemand

SHARES_LIMIT = int(WHOLE / LEAST_PERCENT)


class Piece(NamedTuple):
    """A share to place: percent wanted, and the demand that it is a part of."""

    percent: float
    demand: ShareDemand


def first_layouts(candidate: LayoutCandidate) -> Iterator[Layout]:
    """Yield layouts that use all of the candidate's devices, each stage in proportion to its demand.

    Few large shares, the replicas of each stage's least demand, and a share of each stage on every device.
    """
    whole = dedicated_layout(candidate.dedicated)
    for pieces in (_few_pieces, _least_pieces, _pieces_everywhere):
        devices = []
        for hardware, count in candidate.pools.items():
            demands = [demand for demand in candidate.demands if demand.hardware == hardware]
            devices += _pack(hardware, count, pieces(demands, count))
        yield make_layout((*whole, *devices))


def _few_pieces(demands: Sequence[ShareDemand], devices: int) -> list[Piece]:
    """Return as few shares of each stage as possible."""
    scale = devices * WHOLE / sum(demand.total_percent for demand in demands)
    pieces = []
    for demand in demands:
        count = max(1, ceil(demand.total_percent * scale / WHOLE - 0.25))  # a share may be a quarter too small
        pieces += [Piece(demand.total_percent / count, demand)] * count
    return pieces


def _least_pieces(demands: Sequence[ShareDemand], devices: int) -> list[Piece]:
    """Return the replicas with which each stage needs least."""
    return [Piece(demand.percent, demand) for demand in demands for _ in range(demand.replicas)]


def _pieces_everywhere(demands: Sequence[ShareDemand], devices: int) -> list[Piece]:
    """Return a share of each stage for each device."""
    return [Piece(demand.total_percent / devices, demand) for demand in demands for _ in range(devices)]


def _pack(hardware: str, count: int, pieces: Sequence[Piece]) -> list[PlannedDevice]:
    """Put each piece, the largest first, on the emptiest device, if possible one without a share of its stage.

    Then scale the shares of each device to the whole device.
    """
    devices: list[dict[ShareDemand, float]] = [{} for _ in range(count)]
    for percent, demand in sorted(pieces, key=lambda piece: (-piece.percent, piece.demand.stage)):
        open_devices = [device for device in devices if demand in device or len(device) < SHARES_LIMIT]
        if open_devices:
            fullness = [(demand in device, sum(device.values()), place) for place, device in enumerate(open_devices)]
            chosen = open_devices[min(fullness)[-1]]
            chosen[demand] = chosen.get(demand, 0.0) + percent
    return [PlannedDevice(hardware, _shares(device)) for device in devices if device]


def _shares(percent: dict[ShareDemand, float]) -> tuple[StageShare, ...]:
    filled = fill_device(dict(enumerate(percent.values())))
    return tuple(StageShare(demand.stage, filled[place], demand.batch) for place, demand in enumerate(percent))
