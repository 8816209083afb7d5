"""First layouts of a candidate: where the shares of each stage go."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from horologe_tuner.core.joint_planning.layouts import (
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

    from horologe_tuner.core.joint_planning.candidates import Candidate
    from horologe_tuner.core.joint_planning.share_demand import ShareDemand

SHARES_LIMIT = int(WHOLE / LEAST_PERCENT)


def first_layouts(candidate: Candidate) -> Iterator[Layout]:
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


Piece = tuple[float, ShareDemand] if TYPE_CHECKING else tuple
"""Percent wanted, and the demand that it is a part of."""


def _few_pieces(demands: Sequence[ShareDemand], devices: int) -> list[Piece]:
    """Return as few shares of each stage as possible."""
    scale = devices * WHOLE / sum(demand.total_percent for demand in demands)
    pieces = []
    for demand in demands:
        count = max(1, ceil(demand.total_percent * scale / WHOLE - 0.25))  # a share may be a quarter too small
        pieces += [(demand.total_percent / count, demand)] * count
    return pieces


def _least_pieces(demands: Sequence[ShareDemand], devices: int) -> list[Piece]:
    """Return the replicas with which each stage needs least."""
    return [(demand.percent, demand) for demand in demands for _ in range(demand.replicas)]


def _pieces_everywhere(demands: Sequence[ShareDemand], devices: int) -> list[Piece]:
    """Return a share of each stage for each device."""
    return [(demand.total_percent / devices, demand) for demand in demands for _ in range(devices)]


def _pack(hardware: str, count: int, pieces: Sequence[Piece]) -> list[PlannedDevice]:
    """Put each piece, the largest first, on the emptiest device, if possible one without a share of its stage.

    Then scale the shares of each device to the whole device.
    """
    devices: list[list[Piece]] = [[] for _ in range(count)]
    for percent, demand in sorted(pieces, key=lambda piece: (-piece[0], piece[1].stage)):
        open_devices = [device for device in devices if len(device) < SHARES_LIMIT]
        if not open_devices:
            break

        def fullness(device: list[Piece], stage: str = demand.stage) -> tuple[bool, float]:
            return any(other.stage == stage for _, other in device), sum(own for own, _ in device)

        min(open_devices, key=fullness).append((percent, demand))
    return [PlannedDevice(hardware, _shares(device)) for device in devices if device]


def _shares(pieces: Sequence[Piece]) -> tuple[StageShare, ...]:
    percent = fill_device({place: piece[0] for place, piece in enumerate(pieces)})
    return tuple(StageShare(demand.stage, percent[place], demand.batch) for place, (_, demand) in enumerate(pieces))
