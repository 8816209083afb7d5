"""Candidates of a plan: for each stage the shares or whole devices that it needs by itself, as few as possible.

A stage is by itself if all others answer at once, and its share has no neighbours. If `detect` then needs 30% of a
V100, `persons` 25% and `vehicles` 17.5%, a candidate has one V100 for the three. Its first layouts give all of it to
them in proportion: 40%, 35% and 25%. `plates` has whole CPUs.
"""

from __future__ import annotations

from itertools import product
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from horologe_planning.joint_planning.layout_evaluation import share_name
from horologe_planning.joint_planning.layouts import (
    LEAST_PERCENT,
    SHARES_LIMIT,
    STEP_PERCENT,
    Layout,
    PlannedDevice,
    StageShare,
    dedicated_layout,
    fill_device,
    make_layout,
)
from horologe_planning.plan import WHOLE_PERCENT, Placement
from horologe_planning.search.evaluation import first_true, replace_stage
from horologe_planning.search.whole_devices import frictionless, isolated_stages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe_planning.joint_planning.layout_evaluation import LayoutEvaluator
    from horologe_planning.search.evaluation import Configuration


REPLICAS_WITHOUT_GAIN = 2
"""More replicas are tried until this many numbers in a row bring no smaller share."""
REPLICAS_LIMIT = 64


class ShareDemand(NamedTuple):
    """Replicas of a stage on equal shares of a hardware type. `percent`: of one replica."""

    stage: str
    hardware: str
    percent: float
    replicas: int
    batch: int

    @property
    def total_percent(self) -> float:
        """Sum of the shares."""
        return self.percent * self.replicas


StageOption = ShareDemand | Placement


class LayoutCandidate(NamedTuple):
    """Numbers of shared devices by type, and for each stage its demand of shares, or its own whole devices."""

    pools: dict[str, int]
    stages: tuple[StageOption, ...]

    @property
    def demands(self) -> list[ShareDemand]:
        """The stages on shared devices."""
        return [stage for stage in self.stages if isinstance(stage, ShareDemand)]

    @property
    def dedicated(self) -> list[Placement]:
        """The stages on whole devices."""
        return [stage for stage in self.stages if isinstance(stage, Placement)]


def stage_options(evaluator: LayoutEvaluator) -> list[list[StageOption]]:
    """Return for each stage what it needs at least on each hardware type: shares where it can share, else devices."""
    options: list[list[StageOption]] = []
    for stage, whole in zip(evaluator.problem.structure.stages, isolated_stages(evaluator.problem), strict=True):
        found: list[StageOption] = []
        for hardware, least in whole.items():
            if not evaluator.times.is_shareable(hardware, stage.model):
                found.append(least)
            elif (demand := least_share(evaluator, stage.name, hardware)) is not None:
                found.append(demand)
        options.append(found)
    return options


def least_candidates(evaluator: LayoutEvaluator) -> list[LayoutCandidate]:
    """Return the candidate with the fewest devices for each choice of hardware."""
    return [_candidate(stages) for stages in product(*stage_options(evaluator))]


def _candidate(stages: Sequence[StageOption]) -> LayoutCandidate:
    percent: dict[str, float] = {}
    for stage in stages:
        if isinstance(stage, ShareDemand):
            percent[stage.hardware] = percent.get(stage.hardware, 0.0) + stage.total_percent
    pools = {hardware: ceil(total / WHOLE_PERCENT - 1e-9) for hardware, total in percent.items()}
    return LayoutCandidate(pools, tuple(stages))


def least_share(evaluator: LayoutEvaluator, stage: str, hardware: str) -> ShareDemand | None:
    """Return the equal shares with the least sum that meet the objective. None if not even whole devices do.

    Several small shares may need less than a large one: only a part of a batch's time shrinks with the share.
    """
    ideal, least, without_gain = frictionless(evaluator.problem), None, 0
    for replicas in range(1, REPLICAS_LIMIT + 1):
        if least and without_gain == REPLICAS_WITHOUT_GAIN:
            break
        better = _least_of(evaluator, ideal, ShareDemand(stage, hardware, WHOLE_PERCENT, replicas, 0), least)
        without_gain = 0 if better else without_gain + 1
        least = better or least
    return least


def _least_of(
    evaluator: LayoutEvaluator, ideal: Configuration, tried: ShareDemand, least: ShareDemand | None
) -> ShareDemand | None:
    """Return the shares of so many replicas whose sum is less than that of `least`, over all batch sizes, if any."""
    place, model = list(evaluator.models).index(tried.stage), evaluator.models[tried.stage]
    known = evaluator.problem.profiles[model]
    most_percent = least.total_percent / tried.replicas - STEP_PERCENT if least else WHOLE_PERCENT
    found = None
    for batch in reversed(known[tried.hardware].batch_sizes):

        def is_enough(steps: int, batch: int = batch) -> bool:
            percent = steps * STEP_PERCENT
            name = tried.hardware if percent == WHOLE_PERCENT else share_name(tried.hardware, percent, ())
            if name not in known:
                known[name] = evaluator.times.profile(tried.hardware, model, percent, ())
            fields = {"hardware": name, "max_batch": batch, "replicas": tried.replicas}
            return evaluator.problem.is_feasible(replace_stage(ideal, place, **fields))

        most_steps = int(min(most_percent, WHOLE_PERCENT) / STEP_PERCENT + 1e-9)
        if steps := first_true(is_enough, round(LEAST_PERCENT / STEP_PERCENT), most_steps):
            found = tried._replace(percent=steps * STEP_PERCENT, batch=batch)
            most_percent = found.percent - STEP_PERCENT
    return found


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
    scale = devices * WHOLE_PERCENT / sum(demand.total_percent for demand in demands)
    pieces = []
    for demand in demands:
        count = max(1, ceil(demand.total_percent * scale / WHOLE_PERCENT - 0.25))  # a share may be a quarter too small
        pieces += [Piece(demand.total_percent / count, demand)] * count
    return pieces


def _least_pieces(demands: Sequence[ShareDemand], devices: int) -> list[Piece]:
    """Return the replicas with which each stage needs least."""
    return [Piece(demand.percent, demand) for demand in demands for _ in range(demand.replicas)]


def _pieces_everywhere(demands: Sequence[ShareDemand], devices: int) -> list[Piece]:
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
