"""When and how far stages scale: pure functions of envelope, plan and state (InferLine section 5).

A stage needs k_m = ceil(r * s_m / (mu_m * rho_m)) replicas for a rate of r queries per second: s_m is its scale factor,
mu_m the throughput of a replica, rho_m the load that the planner has chosen for its replicas. A stage that the plan
loads to 0.1, because one replica is more than enough, would get ten times the replicas for ten times the rate. Where a
plan has provisioning levels, they replace rho_m: the replicas that the estimator found sufficient for multiples of the
sample's rate.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Literal

import msgspec

from horologe_common.clock import s
from horologe_planning.plan import MAX_REPLICAS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_planning.plan import Placement, Plan


DOWN_WINDOW_NS, DOWN_SPAN_NS = s(5), s(30)
"""Scaling down follows the highest rate of any 5 s in the last 30 s. With levels it follows `RecentPeak`. Both need
30 s of observation."""
HYSTERESIS = 1.1
"""Replicas are changed to those for this multiple of the demand. Without it, the next peak of the same traffic, which
exceeds the last one every second time, would scale up again."""


def level_replicas(plan: Plan, factor: float) -> dict[str, int]:
    """Return the replicas by stage for `factor` times the sample's rate, at most `MAX_REPLICAS`.

    Beyond the last level they grow in proportion. Raises IndexError if the plan has no levels.
    """
    level = next((level for level in plan.levels if level.factor >= factor), plan.levels[-1])
    more = max(1.0, factor / level.factor)
    counts = (math.ceil(min(more * n, MAX_REPLICAS)) for n in level.replicas)
    return {stage.stage: count for stage, count in zip(plan.counted, counts, strict=True)}


def carried_factor(plan: Plan, replicas: Mapping[str, int]) -> float:
    """Return the multiple of the sample's rate that running replicas suffice for. 0 if not even the first level."""
    counts = [replicas[stage.stage] for stage in plan.counted]
    enough = [level.factor for level in plan.levels if all(n >= m for n, m in zip(counts, level.replicas, strict=True))]
    last = plan.levels[-1]
    if enough and enough[-1] == last.factor:
        return last.factor * min(n / m for n, m in zip(counts, last.replicas, strict=True))
    return enough[-1] if enough else 0.0


class RecentPeak:
    """Highest multiple of the sample's rates, over all windows of the envelope, in the last `span_ns`."""

    def __init__(self) -> None:
        self._peaks: deque[tuple[int, float]] = deque()
        """Times and factors. Each factor is lower than those before."""

    def add(self, now_ns: int, rates: Sequence[float], planned: Sequence[float], span_ns: int) -> float:
        """Add the rates since the last call, by window. Return the highest factor."""
        factor = max(rate / sample for rate, sample in zip(rates, planned, strict=True))
        while self._peaks and self._peaks[-1][1] <= factor:
            self._peaks.pop()
        self._peaks.append((now_ns, factor))
        while self._peaks[0][0] <= now_ns - span_ns:
            self._peaks.popleft()
        return self._peaks[0][1]


ROUNDING = 1e-9
"""A product that exceeds a whole number only by this much is that number: the rest is floating-point error."""


class ScalingRules(msgspec.Struct, frozen=True):
    """Variants and delays of the rules. The defaults are the paper's, except for plans with levels."""

    demand: Literal["paper", "relative"] = "paper"
    """Rate to scale up to. paper: the highest of the rates that exceed the sample's. relative: the planned rate, times
    the largest ratio of a rate to the sample's in the same window. A burst that exceeds the sample's by a tenth then
    adds a tenth of the replicas, not the burst's rate divided by the mean rate."""
    settle_ns: int = s(15)
    """Time after any change before the next scaling down: three times the activation time of a replica. Plans with
    levels keep the replicas for the highest demand of as long a time."""
    headroom: float = 1.25
    """Plans with levels: multiple of the present traffic that the replicas carry. A replica works seconds after it was
    ordered, and nearly all misses after a rise of the rate are in these seconds. More headroom has fewer misses and
    costs more (experiments/results/inferline.md)."""

    def __post_init__(self) -> None:
        """Raise ValueError if the headroom is below 1."""
        if not self.headroom >= 1:
            raise ValueError(f"tuner.headroom: got {self.headroom}, wanted at least 1")


class TrafficDemand(msgspec.Struct, frozen=True):
    """Queries per second that the envelope demands, and the window that shows it. 0: the plan suffices."""

    rate: float = 0.0
    window_ns: int = 0


class ScalingState(msgspec.Struct):
    """State of the rules: running replicas, and times of changes."""

    replicas: dict[str, int]
    """By stage."""
    changed_ns: int
    """Time of the last change."""


class Decision(msgspec.Struct, frozen=True):
    """A change of replicas, and its reason."""

    direction: Literal["up", "down"]
    rate: float
    """Queries per second to provision for."""
    window_ns: int
    """Window in which this rate was observed."""
    before: dict[str, int]
    after: dict[str, int]
    """Replicas of all stages."""

    def describe(self) -> str:
        """Return one sentence: the rate, the window, and each stage that changes."""
        changes = [f"{stage} {self.before[stage]} -> {n}" for stage, n in self.after.items() if n != self.before[stage]]
        return f"{self.rate:.0f} queries/s in {self.window_ns / 1e9:g} s: {', '.join(changes)}"


def replicas_needed(stage: Placement, rate: float, ratio: float) -> int:
    """Return k_m for `rate` queries per second at a provisioning ratio of `ratio`, 1 to `MAX_REPLICAS`."""
    needed = rate * stage.scale_factor / (stage.throughput * ratio) - ROUNDING
    return math.ceil(min(max(1.0, needed), MAX_REPLICAS))


def running_part(plan: Plan, replicas: Mapping[str, int]) -> float:
    """Return the running part of the planned replicas, of the stage that has the least of them; at most 1.

    With levels: the multiple of the sample's rate that the replicas suffice for, which may be above 1.
    """
    if plan.levels:
        return carried_factor(plan, replicas)
    return min(1.0, *(replicas[stage.stage] / stage.replicas for stage in plan.counted))


def find_demand(plan: Plan, replicas: Mapping[str, int], rates: Sequence[float], rules: ScalingRules) -> TrafficDemand:
    """Compare the present rates with those of the sample, window by window.

    `rates`: queries per second by window of the plan's envelope. If fewer replicas run than planned, they serve only
    that part of the sample's rates. Plans with levels use the relative demand, with headroom. A plan without envelope
    demands nothing.
    """
    if plan.envelope is None:
        return TrafficDemand()
    relative, headroom = rules.demand == "relative" or bool(plan.levels), rules.headroom if plan.levels else 1.0
    part, windows = running_part(plan, replicas), plan.envelope.windows_ns
    exceeding = [
        (plan.rate * headroom * rate / planned if relative else rate, window_ns)
        for rate, planned, window_ns in zip(rates, plan.envelope.rates(), windows, strict=True)
        if headroom * rate > part * planned * (1 + ROUNDING)
    ]
    return TrafficDemand(*max(exceeding)) if exceeding else TrafficDemand()


def scale_up(plan: Plan, replicas: Mapping[str, int], rate: float) -> dict[str, int]:
    """Return the replicas by stage for a demand of `rate`, never fewer than there are.

    Plans with levels get the level of the rate times `HYSTERESIS`.
    """
    if plan.levels:
        level = level_replicas(plan, HYSTERESIS * rate / plan.rate)
        return {stage: max(n, level[stage]) for stage, n in replicas.items()}
    return {
        stage.stage: max(replicas[stage.stage], replicas_needed(stage, rate, stage.provisioning_ratio(plan.rate)))
        for stage in plan.counted
    }


def scale_down(plan: Plan, replicas: Mapping[str, int], rate: float) -> dict[str, int]:
    """Return the replicas by stage for a highest recent rate of `rate`, never more than there are.

    Every stage gets the smallest ratio of the pipeline (the paper's rho_p), which removes the fewest replicas. Plans
    with levels get the level of the rate times `HYSTERESIS`.
    """
    if plan.levels:
        level = level_replicas(plan, HYSTERESIS * rate / plan.rate)
        return {stage: min(n, level[stage]) for stage, n in replicas.items()}
    ratio = min(stage.provisioning_ratio(plan.rate) for stage in plan.counted)
    return {stage.stage: min(replicas[stage.stage], replicas_needed(stage, rate, ratio)) for stage in plan.counted}


def decide(
    now_ns: int,
    plan: Plan,
    state: ScalingState,
    rates: Sequence[float],
    recent_rate: float | None,
    rules: ScalingRules,
) -> Decision | None:
    """Return the change to make now, if any.

    `rates`: highest rates since the last call, by window of the plan's envelope. `recent_rate`: highest rate in
    `DOWN_WINDOW_NS` over the last `DOWN_SPAN_NS`, for a plan with levels the planned rate times `RecentPeak`. None: not
    observed for so long, so nothing is scaled down.
    """
    replicas, demand = state.replicas, find_demand(plan, state.replicas, rates, rules)
    if demand.rate:
        after = scale_up(plan, replicas, demand.rate)
        return Decision("up", demand.rate, demand.window_ns, replicas, after) if after != replicas else None
    if recent_rate is None or now_ns < state.changed_ns + rules.settle_ns:
        return None
    recent_rate *= rules.headroom if plan.levels else 1.0
    after = scale_down(plan, replicas, recent_rate)
    if (needed := find_demand(plan, after, rates, rules).rate) > 0:  # the next check would scale up again
        after = {stage: min(replicas[stage], count) for stage, count in scale_up(plan, after, needed).items()}
    return None if after == replicas else Decision("down", recent_rate, DOWN_WINDOW_NS, replicas, after)
