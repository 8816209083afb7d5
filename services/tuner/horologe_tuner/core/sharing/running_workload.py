"""A workload of the sharing plan in force: the shares that serve it, its standby shares, and its latencies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_tuner.core.sharing.latency_window import LatencySummary, LatencyWindow
from horologe_tuner.core.sharing.shadow_rules import ShadowRules, Watch
from horologe_tuner.core.sharing.targets import DeviceShare, WorkloadTarget, check_share

if TYPE_CHECKING:
    from collections.abc import Iterator


class ShareSteps(msgspec.Struct, frozen=True):
    """Sizes of a share from the planned one up to the one that serves now. Each switch to a shadow adds a step."""

    sizes: tuple[DeviceShare, ...]

    @property
    def planned(self) -> DeviceShare:
        """The share as planned."""
        return self.sizes[0]

    @property
    def active(self) -> DeviceShare:
        """The share that serves."""
        return self.sizes[-1]

    @property
    def below(self) -> DeviceShare | None:
        """The share before the last switch: the standby for switching back."""
        return self.sizes[-2] if len(self.sizes) > 1 else None


class AppliedWorkload(msgspec.Struct, frozen=True):
    """A workload as the state file keeps it."""

    target: WorkloadTarget
    serving: tuple[ShareSteps, ...]

    def check_serving(self) -> None:
        """Raise ValueError unless the workload is served by shares of its own, of which each has ascending sizes."""
        place = f"workload {self.target.name!r}: "
        for steps in self.serving:
            for share in steps.sizes:
                check_share(share)
            percents = [share.percent for share in steps.sizes]
            if not percents or percents != sorted(set(percents)) or len({share.place for share in steps.sizes}) > 1:
                raise ValueError(f"{place}sizes: got {percents}, wanted ascending percents of one share")
        devices = [steps.active.device for steps in self.serving if steps.active.workload == self.target.name]
        if not devices or len(set(devices)) < len(self.serving):
            raise ValueError(f"{place}serving: got {devices}, wanted its shares of different devices, at least one")


class ShareStatus(msgspec.Struct, frozen=True):
    """A share of a workload for operators. `shadow`: percent of the standby that is larger; 0: no room for one."""

    device: str
    percent: float
    planned_percent: float
    shadow_percent: float
    shadow_ready: bool


class WorkloadStatus(msgspec.Struct, frozen=True):
    """State of a workload for operators. Latencies are those of the last second."""

    workload: str
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
    """Requests per second."""
    predicted_ns: int
    """Execution latency of a batch, as planned."""


class RunningWorkload:
    """A workload. `serving` differs from the shares of `target` by switches, and while it moves to a new plan."""

    def __init__(
        self, now_ns: int, target: WorkloadTarget, serving: tuple[ShareSteps, ...], rules: ShadowRules
    ) -> None:
        self.target = target
        self.serving = serving
        self.window = LatencyWindow(target.slo_ns)
        self.watch = Watch(now_ns, rules)
        self.unrepaired = ""
        """Why a violation is not repaired; empty: there is none."""

    @property
    def is_moving(self) -> bool:
        """True if it still has to move to the shares of its target."""
        return tuple(steps.planned for steps in self.serving) != self.target.shares

    def active(self) -> Iterator[DeviceShare]:
        """Yield the shares that serve."""
        return (steps.active for steps in self.serving)

    def standby_below(self) -> Iterator[DeviceShare]:
        """Yield the standby shares for switching back."""
        return (steps.below for steps in self.serving if steps.below is not None)

    def adopt_target(self, now_ns: int, target: WorkloadTarget, rules: ShadowRules) -> None:
        """Replace the target. If the SLO has changed, the latencies are discarded."""
        if target.slo_ns != self.target.slo_ns:
            self.window = LatencyWindow(target.slo_ns)
        self.target = target
        self.watch = Watch(now_ns, rules)

    def finish_move(self, now_ns: int) -> None:
        """Serve by the shares of the target."""
        self.serving = initial_steps(self.target)
        self.reset(now_ns)

    def replace_active(self, replaced: dict[tuple[str, str], tuple[DeviceShare, ...]]) -> None:
        """Replace the sizes of shares, by place."""
        self.serving = tuple(
            ShareSteps(replaced[steps.planned.place]) if steps.planned.place in replaced else steps
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

    def applied(self) -> AppliedWorkload:
        """Return what the state file keeps."""
        return AppliedWorkload(self.target, self.serving)


def initial_steps(target: WorkloadTarget) -> tuple[ShareSteps, ...]:
    """Return the shares of a target, as planned."""
    return tuple(ShareSteps((share,)) for share in target.shares)
