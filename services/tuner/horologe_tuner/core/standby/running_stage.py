"""A stage that is served by shares: those that serve, its standby shares, its latencies, and changes of its shares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from horologe_planning.plan import Placement
from horologe_tuner.core.standby.shadow_rules import LatencySummary, LatencyWindow, ShadowRules, ViolationWatch
from horologe_tuner.core.standby.share_workers import place_of, worker_name

if TYPE_CHECKING:
    from collections.abc import Iterator


Reason: TypeAlias = Literal["violation", "calm", "worker lost", "plan"]


class SharingDecision(msgspec.Struct, frozen=True):
    """A switch to other shares. `moves`: (device, percent before, percent after)."""

    stage: str
    reason: Reason
    cause: str
    """Observation that led to the decision, as a phrase."""
    moves: tuple[tuple[str, float, float], ...]

    def describe(self) -> str:
        """Return one sentence for log and status."""
        moves = ", ".join(f"{device} {before:g}% -> {after:g}%" for device, before, after in self.moves)
        return f"{self.cause}: {moves}"


class ShareStatus(msgspec.Struct, frozen=True):
    """A share of a stage for operators. `shadow`: percent of the standby that is larger; 0: no room for one."""

    device: str
    percent: float
    planned_percent: float
    shadow_percent: float
    shadow_ready: bool


class StageStatus(msgspec.Struct, frozen=True):
    """State of a stage on shares for operators. Latencies are those of the last second."""

    stage: str
    model: str
    state: str
    """within SLO, violated, moving (to the shares of a new plan), or no requests."""
    slo_ns: int
    p99_ns: int | None
    requests: int
    beyond: int
    """Requests beyond the SLO or refused."""
    shares: tuple[ShareStatus, ...]
    planned_rate: float
    """Calls per second."""
    predicted_ns: int
    """Execution latency of a batch, as planned; of several shares, the longest."""


class ShareSteps(msgspec.Struct, frozen=True):
    """Sizes of a share from the planned one up to the one that serves now. Each switch to a shadow adds a step."""

    sizes: tuple[Placement, ...]

    @property
    def planned(self) -> Placement:
        """The share as planned."""
        return self.sizes[0]

    @property
    def active(self) -> Placement:
        """The share that serves."""
        return self.sizes[-1]

    @property
    def below(self) -> Placement | None:
        """The share before the last switch: the standby for switching back."""
        return self.sizes[-2] if len(self.sizes) > 1 else None


class StageTarget(msgspec.Struct, frozen=True):
    """The planned shares of a stage, at least one, and whether decisions are only reported."""

    shares: tuple[Placement, ...]
    calls_per_second: float
    """Planned calls of the stage."""
    only_reports: bool = False

    @property
    def stage(self) -> str:
        """Name of the stage."""
        return self.shares[0].stage

    @property
    def model(self) -> str:
        """Served model of the stage."""
        return self.shares[0].model

    @property
    def slo_ns(self) -> int:
        """Time that a call may take."""
        return self.shares[0].slo_ns


class RunningStage:
    """A stage. `serving` differs from the shares of `target` by switches, and while it moves to a new plan."""

    def __init__(self, now_ns: int, target: StageTarget, serving: tuple[ShareSteps, ...], rules: ShadowRules) -> None:
        self.target = target
        self.serving = serving
        self.window = LatencyWindow(target.slo_ns)
        self.watch = ViolationWatch(now_ns, rules)
        self.unrepaired = ""
        """Why a violation is not repaired; empty: there is none."""

    @property
    def is_moving(self) -> bool:
        """True if it still has to move to the shares of its target."""
        planned = [worker_name(steps.planned) for steps in self.serving]
        return planned != [worker_name(share) for share in self.target.shares]

    def active(self) -> Iterator[Placement]:
        """Yield the shares that serve."""
        return (steps.active for steps in self.serving)

    def standby_below(self) -> Iterator[Placement]:
        """Yield the standby shares for switching back."""
        return (steps.below for steps in self.serving if steps.below is not None)

    def adopt_target(self, now_ns: int, target: StageTarget, rules: ShadowRules) -> None:
        """Replace the target. If the SLO has changed, the latencies are discarded."""
        if target.slo_ns != self.target.slo_ns:
            self.window = LatencyWindow(target.slo_ns)
        self.target = target
        self.watch = ViolationWatch(now_ns, rules)
        if not self.is_moving:
            self.serving = tuple(
                ShareSteps((share, *steps.sizes[1:])) for share, steps in zip(target.shares, self.serving, strict=True)
            )

    def finish_move(self, now_ns: int) -> None:
        """Serve by the shares of the target."""
        self.serving = initial_steps(self.target.shares)
        self.reset(now_ns)

    def replace_active(self, replaced: dict[tuple[str, str], tuple[Placement, ...]]) -> None:
        """Replace the sizes of shares, by place."""
        self.serving = tuple(
            ShareSteps(replaced[place]) if (place := place_of(steps.planned)) in replaced else steps
            for steps in self.serving
        )

    def settle(self, now_ns: int) -> None:
        """Ignore the latencies of requests that arrived before a switch."""
        self.window.reset(now_ns + self.target.slo_ns)
        self.unrepaired = ""

    def reset(self, now_ns: int) -> None:
        """Discard the latencies: some messages are missing, or other shares serve."""
        self.window.reset(now_ns)
        self.watch.reset(now_ns)
        self.unrepaired = ""

    def recent(self, now_ns: int, rules: ShadowRules) -> LatencySummary:
        """Return the latencies of the last second."""
        return self.window.summarize(now_ns - rules.check_ns)


def initial_steps(shares: tuple[Placement, ...]) -> tuple[ShareSteps, ...]:
    """Return the shares, as planned."""
    return tuple(ShareSteps((share,)) for share in shares)


def check_steps(serving: tuple[ShareSteps, ...], stages: tuple[str, ...]) -> None:
    """Raise ValueError unless stored shares serve each of the stages, on different devices, with ascending sizes."""
    for steps in serving:
        percents = [share.percent for share in steps.sizes]
        one_place = len({place_of(share) for share in steps.sizes}) == 1
        if percents != sorted(set(percents)) or not one_place or not all(0 < percent <= 100 for percent in percents):
            raise ValueError(f"serving: got sizes {percents}, wanted ascending percents of one share")
    places = [place_of(steps.active) for steps in serving]
    if len(set(places)) < len(places) or {stage for stage, _ in places} != set(stages):
        raise ValueError(f"serving: got {places}, wanted shares of different devices for each of {', '.join(stages)}")
