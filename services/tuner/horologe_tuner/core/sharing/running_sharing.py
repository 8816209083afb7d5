"""The sharing plan in force: which worker serves each workload, and which workers stand by.

Each workload has an active share, and standby shares with the model loaded: a shadow that is larger, and after a switch
the share before it. A switch changes which of them serves; nothing is loaded or started for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.protocol import instance
from horologe_tuner.core.sharing.decisions import SharingDecision
from horologe_tuner.core.sharing.running_workload import (
    AppliedWorkload,
    RunningWorkload,
    ShareStatus,
    WorkloadStatus,
    initial_steps,
)
from horologe_tuner.core.sharing.shadows import collect_shadows, percent_left
from horologe_tuner.core.sharing.targets import (
    ROUNDING,
    WHOLE,
    DeviceShare,
    TargetChecks,
    check_elsewhere,
    percent_by_device,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

    from horologe_common.wire import DeviceState, Events
    from horologe_tuner.core.sharing.decisions import Reason
    from horologe_tuner.core.sharing.shadow_rules import ShadowRules
    from horologe_tuner.core.sharing.targets import WorkloadTarget


class RunningSharing:
    """State of all workloads. Invariant: a switch never raises the sum of the shares of a device above 100%.

    `assume_ready`: decide as if every standby worker had its model loaded, for dry runs.
    """

    def __init__(self, rules: ShadowRules, *, assume_ready: bool = False) -> None:
        self.rules = rules
        self.assume_ready = assume_ready
        self.workloads: dict[str, RunningWorkload] = {}
        self._loaded: dict[str, frozenset[str]] = {}
        """Connected workers by instance name -> names and keys of the models that the plan keeps loaded there."""
        self._lost: frozenset[str] = frozenset()
        """Workers of active shares that were connected and are not any more."""

    def apply_targets(self, now_ns: int, targets: Mapping[str, WorkloadTarget]) -> None:
        """Replace the plan. New workloads serve at once. Others move when their new workers have loaded the model."""
        before, self.workloads = self.workloads, {}
        for name, target in targets.items():
            if (workload := before.get(name)) is None:
                workload = RunningWorkload(now_ns, target, initial_steps(target), self.rules)
            else:
                workload.adopt_target(now_ns, target, self.rules)
            self.workloads[name] = workload

    def restore(self, now_ns: int, applied: Iterable[AppliedWorkload], elsewhere: Container[str] = ()) -> list[str]:
        """Continue with the workloads of an earlier incarnation. Return those that are not valid, and why.

        `elsewhere`: models of pipelines.
        """
        together, dropped = TargetChecks(), list[str]()
        for saved in applied:
            try:
                check_elsewhere(saved.target, elsewhere)
                saved.check_serving()
                together.add(saved.target)
            except ValueError as error:
                dropped.append(str(error))
            else:
                self.workloads[saved.target.name] = RunningWorkload(now_ns, saved.target, saved.serving, self.rules)
        return dropped

    def applied(self) -> tuple[AppliedWorkload, ...]:
        """Return what the state file keeps."""
        return tuple(workload.applied() for workload in self.workloads.values())

    def reset_traffic(self, now_ns: int) -> None:
        """Discard all latencies, because some were not observed."""
        for workload in self.workloads.values():
            workload.reset(now_ns)

    def record_events(self, now_ns: int, events: Events) -> None:
        """Record latencies. A model is named by its key `name/version`."""
        by_model = {workload.target.model: workload for workload in self.workloads.values()}
        for counts in events.models:
            workload = by_model.get(counts.model) or by_model.get(counts.model.partition("/")[0])
            if workload is not None:
                workload.window.add(now_ns, counts)

    def record_devices(self, devices: Iterable[DeviceState]) -> None:
        """Record the connected workers and the models that they have loaded."""
        loaded: dict[str, frozenset[str]] = {}
        for device in devices:
            names = {name for key in device.loaded for name in (key, key.partition("/")[0])}
            worker = instance(device.worker).partition("/")[2]
            loaded[worker] = loaded.get(worker, frozenset()) | names
        active = frozenset(share.worker for workload in self.workloads.values() for share in workload.active())
        self._lost = active & (self._lost | self._loaded.keys()) - loaded.keys()
        self._loaded = loaded

    def forget_devices(self) -> None:
        """Discard the workers: another controller reports them, in the order in which they connect to it."""
        self._loaded, self._lost = {}, frozenset()

    def decide(self, now_ns: int) -> Iterator[SharingDecision]:
        """Yield the switches to make now, and adopt each: moves, lost workers, violations, calm workloads."""
        yield from self._decide_moves(now_ns)
        yield from self._decide_lost(now_ns)
        yield from self._decide_violations(now_ns)
        yield from self._decide_calm(now_ns)

    def shadows(self) -> dict[DeviceShare, DeviceShare]:
        """Return the shadow of each active share that has one."""
        workloads = self.workloads.values()
        return collect_shadows(workloads, percent_left(workloads), self.rules)

    def wanted(self) -> dict[DeviceShare, str]:
        """Return the shares that must have a worker, and the worker that each stands by for, if it does.

        The others are active and fit on their devices. A new workload stands by until the others have made room.
        """
        shares: dict[DeviceShare, str] = {}
        totals: dict[str, float] = {}
        workers: dict[str, str] = {}
        for workload in self.workloads.values():
            for share in workload.active():
                total = totals.get(share.device, 0.0) + share.percent
                fits = total <= WHOLE + ROUNDING
                shares[share] = "" if fits else workers[share.device]
                if fits:
                    totals[share.device], workers[share.device] = total, share.worker
        for workload in self.workloads.values():
            served_by = next(workload.active()).worker
            standby = (*workload.standby_below(), *(workload.target.shares if workload.is_moving else ()))
            shares = dict.fromkeys(standby, served_by) | shares
        return {shadow: share.worker for share, shadow in self.shadows().items()} | shares

    def is_ready(self, share: DeviceShare) -> bool:
        """Return whether the worker of a share is connected and has loaded the model of its workload."""
        model = self.workloads[share.workload].target.model
        return self.assume_ready or model in self._loaded.get(share.worker, ())

    def unrepaired(self) -> dict[str, str]:
        """Return the workloads that are violated or without a worker, and why that is not repaired."""
        reasons = {name: workload.unrepaired for name, workload in self.workloads.items() if workload.unrepaired}
        if self._lost:
            for name, workload in self.workloads.items():
                if any(share.worker in self._lost for share in workload.active()):
                    reasons[name] = "its worker has disconnected, and no standby is ready"
        return reasons

    def _decide_moves(self, now_ns: int) -> Iterator[SharingDecision]:
        """Move workloads to the shares of a new plan, first those that fit; else make room, or move all at once."""
        moving = [workload for workload in self.workloads.values() if workload.is_moving]
        ready = [workload for workload in moving if all(map(self.is_ready, workload.target.shares))]
        fitting = [workload for workload in ready if self._fits(workload, workload.target.shares)]
        if not fitting and moving and len(ready) == len(moving):
            if backed := list(self._make_room(now_ns, moving)):
                yield from backed
                return
            fitting = ready
        for workload in fitting:
            before = tuple(workload.active())
            workload.finish_move(now_ns)
            yield _decision(workload, "plan", "new plan", before)

    def _make_room(self, now_ns: int, moving: Iterable[RunningWorkload]) -> Iterator[SharingDecision]:
        """Switch the workloads back that are above their plan on a device which a moving workload needs."""
        needed = {share.device for workload in moving for share in workload.target.shares}
        for workload in self.workloads.values():
            if not workload.is_moving and any(below.device in needed for below in workload.standby_below()):
                yield from self._switch_back(now_ns, workload, "plan", "room for a new plan")

    def _fits(self, workload: RunningWorkload, shares: Iterable[DeviceShare]) -> bool:
        """Return whether every device has room if the workload is served by `shares`, or gets more room by it."""
        others = [share for other in self.workloads.values() if other is not workload for share in other.active()]
        before = percent_by_device([*others, *workload.active()])
        after = percent_by_device([*others, *shares])
        return all(total <= max(WHOLE, before.get(device, 0.0)) + ROUNDING for device, total in after.items())

    def _decide_lost(self, now_ns: int) -> Iterator[SharingDecision]:
        """Serve by a standby share in place of a worker that has disconnected. The controller does so already."""
        for workload in self.workloads.values() if self._lost else ():
            shadows, replaced = self.shadows(), {}
            for steps in workload.serving:
                if steps.active.worker not in self._lost:
                    continue
                if (shadow := shadows.get(steps.active)) is not None and self.is_ready(shadow):
                    replaced[steps.active.place] = (*steps.sizes, shadow)
                elif steps.below is not None and self.is_ready(steps.below):
                    replaced[steps.active.place] = steps.sizes[:-1]
            if replaced:
                yield self._switch(now_ns, workload, replaced, "worker lost", "its worker has disconnected")

    def _decide_violations(self, now_ns: int) -> Iterator[SharingDecision]:
        """Switch violated workloads to their shadows, the worst first: a shadow takes room from others."""
        found = []
        for workload in self.workloads.values():
            if workload.is_moving:
                continue
            if violation := workload.watch.find_violation(now_ns, workload.window, self.rules):
                found.append((violation.second.beyond / violation.second.requests, workload, violation))
            elif workload.unrepaired and not workload.recent(now_ns, self.rules).is_violated:
                workload.unrepaired = ""
        for _, workload, violation in sorted(found, key=lambda item: -item[0]):
            shadows = self.shadows()
            replaced = {
                steps.active.place: (*steps.sizes, shadows[steps.active])
                for steps in workload.serving
                if steps.active in shadows and self.is_ready(shadows[steps.active])
            }
            if replaced:
                cause = violation.describe(workload.target.slo_ns, self.rules)
                yield self._switch(now_ns, workload, replaced, "violation", cause)
            else:
                starting = any(share in shadows for share in workload.active())
                workload.unrepaired = "its shadow is not ready" if starting else "nothing is left of its device"

    def _decide_calm(self, now_ns: int) -> Iterator[SharingDecision]:
        """Switch calm workloads back to their smaller shares."""
        for workload in self.workloads.values():
            if workload.is_moving or not any(True for _ in workload.standby_below()):
                continue
            growth = max(steps.active.percent / steps.below.percent for steps in workload.serving if steps.below)
            summary, slo_ns = workload.recent(now_ns, self.rules), workload.target.slo_ns
            calm_ns = workload.watch.calm_ns
            if workload.watch.is_calm(now_ns, summary, slo_ns, growth):
                cause = f"{summary.describe(slo_ns)}, and low enough for the smaller share for {calm_ns / 1e9:g} s"
                yield from self._switch_back(now_ns, workload, "calm", cause)

    def _switch_back(
        self, now_ns: int, workload: RunningWorkload, reason: Reason, cause: str
    ) -> Iterator[SharingDecision]:
        """Yield the switch to the shares before the last switch, of those that are ready."""
        replaced = {
            steps.active.place: steps.sizes[:-1]
            for steps in workload.serving
            if steps.below is not None and self.is_ready(steps.below)
        }
        if replaced:
            yield self._switch(now_ns, workload, replaced, reason, cause)

    def _switch(
        self,
        now_ns: int,
        workload: RunningWorkload,
        replaced: dict[tuple[str, str], tuple[DeviceShare, ...]],
        reason: Reason,
        cause: str,
    ) -> SharingDecision:
        before = tuple(workload.active())
        workload.replace_active(replaced)
        workload.settle(now_ns)
        workload.watch.on_switched(now_ns, self.rules, back=reason == "calm")
        return _decision(workload, reason, cause, before)

    def describe(self, now_ns: int) -> tuple[WorkloadStatus, ...]:
        """Return the state for operators."""
        shadows = self.shadows()
        return tuple(self._describe_workload(now_ns, workload, shadows) for workload in self.workloads.values())

    def _describe_workload(
        self, now_ns: int, workload: RunningWorkload, shadows: Mapping[DeviceShare, DeviceShare]
    ) -> WorkloadStatus:
        summary, target = workload.recent(now_ns, self.rules), workload.target
        state = "violated" if summary.is_violated else "within SLO" if summary.requests else "no requests"
        if reason := self.unrepaired().get(target.name):
            state = f"violated: {reason}" if workload.unrepaired else reason
        if workload.is_moving:
            state = "moving"
        shares = []
        for steps in workload.serving:
            shadow = shadows.get(steps.active)
            percent, ready = (shadow.percent, self.is_ready(shadow)) if shadow else (0.0, False)
            shares.append(ShareStatus(steps.active.device, steps.active.percent, steps.planned.percent, percent, ready))
        return WorkloadStatus(
            target.name, target.model, state, target.slo_ns, summary.p99_ns, summary.requests, summary.beyond,
            tuple(shares), target.rate, target.latency_ns,
        )  # fmt: skip

    def check(self) -> None:
        """Assert that every workload is served, and by shares of its own that grow by steps."""
        for name, workload in self.workloads.items():
            assert name == workload.target.name
            assert workload.serving
            for steps in workload.serving:
                percents = [share.percent for share in steps.sizes]
                assert percents == sorted(set(percents))
                assert all(share.place == steps.planned.place for share in steps.sizes)


def _decision(
    workload: RunningWorkload, reason: Reason, cause: str, before: tuple[DeviceShare, ...]
) -> SharingDecision:
    percents = {share.device: share.percent for share in before}
    after = {share.device: share.percent for share in workload.active()}
    devices = [device for device in percents | after if percents.get(device) != after.get(device)]
    moves = tuple((device, percents.get(device, 0.0), after.get(device, 0.0)) for device in devices)
    return SharingDecision(workload.target.name, reason, cause, moves)
