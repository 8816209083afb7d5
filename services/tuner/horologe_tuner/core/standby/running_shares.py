"""The shares of all plans in force: which worker serves each stage, and which workers stand by.

Each stage has active shares, and standby shares with the model loaded: a shadow that is larger, and after a switch the
share before it. A switch changes which of them serves; nothing is loaded or started for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from horologe_common.core.protocol import instance
from horologe_planning.plan import ROUNDING, WHOLE_PERCENT
from horologe_tuner.core.standby.running_stage import (
    RunningStage,
    ShareStatus,
    SharingDecision,
    StageStatus,
    initial_steps,
)
from horologe_tuner.core.standby.share_workers import (
    find_shadows,
    percent_by_device,
    place_of,
    worker_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from horologe_common.wire import DeviceState, Events
    from horologe_planning.plan import Placement
    from horologe_tuner.core.standby.running_stage import Reason, ShareSteps, StageTarget
    from horologe_tuner.core.standby.shadow_rules import ShadowRules


class WantedWorker(NamedTuple):
    """A share that must have a worker, and the worker that it stands by for. Empty: it serves."""

    share: Placement
    standby_for: str


class RunningShares:
    """State of all stages. Invariant: a switch never raises the sum of the shares of a device above 100%."""

    def __init__(self, rules: ShadowRules) -> None:
        self.rules = rules
        self.stages: dict[str, RunningStage] = {}
        self._loaded: dict[str, frozenset[str]] = {}
        """Connected workers by instance name -> names and keys of the models that the plan keeps loaded there."""
        self._lost: frozenset[str] = frozenset()
        """Workers of active shares that were connected and are not any more."""

    def apply_targets(self, now_ns: int, targets: Iterable[StageTarget]) -> None:
        """Replace the stages. New ones serve at once. Others move when their new workers have loaded the model."""
        before, self.stages = self.stages, {}
        for target in targets:
            if (stage := before.get(target.stage)) is None:
                stage = RunningStage(now_ns, target, initial_steps(target.shares), self.rules)
            elif target != stage.target:
                stage.adopt_target(now_ns, target, self.rules)
            self.stages[target.stage] = stage

    def restore(self, now_ns: int, target: StageTarget, serving: tuple[ShareSteps, ...]) -> None:
        """Continue with a stage of an earlier incarnation."""
        self.stages[target.stage] = RunningStage(now_ns, target, serving, self.rules)

    def reset_traffic(self, now_ns: int) -> None:
        """Discard all latencies, because some were not observed."""
        for stage in self.stages.values():
            stage.reset(now_ns)

    def record_events(self, now_ns: int, events: Events) -> None:
        """Record latencies. A model is named by its key `name/version`."""
        by_model = {stage.target.model: stage for stage in self.stages.values()}
        for counts in events.models:
            stage = by_model.get(counts.model) or by_model.get(counts.model.partition("/")[0])
            if stage is not None:
                stage.window.add(now_ns, counts)

    def record_devices(self, devices: Iterable[DeviceState]) -> None:
        """Record the connected workers and the models that they have loaded."""
        loaded: dict[str, frozenset[str]] = {}
        for device in devices:
            names = {name for key in device.loaded for name in (key, key.partition("/")[0])}
            worker = instance(device.worker).partition("/")[2]
            loaded[worker] = loaded.get(worker, frozenset()) | names
        active = frozenset(worker_name(share) for stage in self.stages.values() for share in stage.active())
        self._lost = active & (self._lost | self._loaded.keys()) - loaded.keys()
        self._loaded = loaded

    def forget_devices(self) -> None:
        """Discard the workers: another controller reports them, in the order in which they connect to it."""
        self._loaded, self._lost = {}, frozenset()

    def decide(self, now_ns: int) -> Iterator[SharingDecision]:
        """Yield the switches to make now, and adopt each: moves, lost workers, violations, calm stages."""
        yield from self._decide_moves(now_ns)
        yield from self._decide_lost(now_ns)
        yield from self._decide_violations(now_ns)
        yield from self._decide_calm(now_ns)

    def shadows(self) -> dict[str, Placement]:
        """Return the shadow of each active share that has one, by the worker of the active share."""
        return find_shadows(self.stages.values(), self.rules)

    def wanted(self) -> dict[str, WantedWorker]:
        """Return the shares that must have a worker, by worker.

        Those that serve fit on their devices. A new stage stands by until the others have made room.
        """
        stages = [stage for stage in self.stages.values() if not stage.target.only_reports]
        wanted: dict[str, WantedWorker] = {}
        totals: dict[str, float] = {}
        workers: dict[str, str] = {}
        for share in (share for stage in stages for share in stage.active()):
            total = totals.get(share.device, 0.0) + share.percent
            fits = total <= WHOLE_PERCENT + ROUNDING
            wanted[worker_name(share)] = WantedWorker(share, "" if fits else workers[share.device])
            if fits:
                totals[share.device], workers[share.device] = total, worker_name(share)
        for stage in stages:
            served_by = worker_name(next(stage.active()))
            for share in (*stage.standby_below(), *(stage.target.shares if stage.is_moving else ())):
                wanted.setdefault(worker_name(share), WantedWorker(share, served_by))
        for worker, shadow in self.shadows().items():
            if worker in wanted:
                wanted.setdefault(worker_name(shadow), WantedWorker(shadow, worker))
        return wanted

    def is_ready(self, share: Placement) -> bool:
        """Return whether the worker of a share is connected and has loaded the model of its stage.

        If decisions are only reported, no standby worker is started, and each counts as ready.
        """
        target = self.stages[share.stage].target
        return target.only_reports or target.model in self._loaded.get(worker_name(share), ())

    def unrepaired(self) -> dict[str, str]:
        """Return the stages that are violated or without a worker, and why that is not repaired."""
        reasons = {name: stage.unrepaired for name, stage in self.stages.items() if stage.unrepaired}
        if self._lost:
            for name, stage in self.stages.items():
                if any(worker_name(share) in self._lost for share in stage.active()):
                    reasons[name] = "its worker has disconnected, and no standby is ready"
        return reasons

    def _decide_moves(self, now_ns: int) -> Iterator[SharingDecision]:
        """Move stages to the shares of a new plan, first those that fit; else make room, or move all at once."""
        moving = [stage for stage in self.stages.values() if stage.is_moving]
        ready = [stage for stage in moving if all(map(self.is_ready, stage.target.shares))]
        fitting = [stage for stage in ready if self._fits(stage, stage.target.shares)]
        if not fitting and moving and len(ready) == len(moving):
            if backed := list(self._make_room(now_ns, moving)):
                yield from backed
                return
            fitting = ready
        for stage in fitting:
            before = tuple(stage.active())
            stage.finish_move(now_ns)
            yield _decision(stage, "plan", "new plan", before)

    def _make_room(self, now_ns: int, moving: Iterable[RunningStage]) -> Iterator[SharingDecision]:
        """Switch the stages back that are above their plan on a device which a moving stage needs."""
        needed = {share.device for stage in moving for share in stage.target.shares}
        for stage in self.stages.values():
            if not stage.is_moving and any(below.device in needed for below in stage.standby_below()):
                yield from self._switch_back(now_ns, stage, "plan", "room for a new plan")

    def _fits(self, stage: RunningStage, shares: Iterable[Placement]) -> bool:
        """Return whether every device has room if the stage is served by `shares`, or gets more room by it."""
        others = [share for other in self.stages.values() if other is not stage for share in other.active()]
        before = percent_by_device([*others, *stage.active()])
        after = percent_by_device([*others, *shares])
        return all(total <= max(WHOLE_PERCENT, before.get(device, 0.0)) + ROUNDING for device, total in after.items())

    def _decide_lost(self, now_ns: int) -> Iterator[SharingDecision]:
        """Serve by a standby share in place of a worker that has disconnected. The controller does so already."""
        for stage in self.stages.values() if self._lost else ():
            shadows, replaced = self.shadows(), {}
            for steps in stage.serving:
                if worker_name(steps.active) not in self._lost:
                    continue
                if (shadow := shadows.get(worker_name(steps.active))) is not None and self.is_ready(shadow):
                    replaced[place_of(steps.active)] = (*steps.sizes, shadow)
                elif steps.below is not None and self.is_ready(steps.below):
                    replaced[place_of(steps.active)] = steps.sizes[:-1]
            if replaced:
                yield self._switch(now_ns, stage, replaced, "worker lost", "its worker has disconnected")

    def _decide_violations(self, now_ns: int) -> Iterator[SharingDecision]:
        """Switch violated stages to their shadows, the worst first: a shadow takes room from others."""
        found = []
        for stage in self.stages.values():
            if stage.is_moving:
                continue
            if violation := stage.watch.find_violation(now_ns, stage.window, self.rules):
                found.append((violation.second.beyond / violation.second.requests, stage, violation))
            elif stage.unrepaired and not stage.recent(now_ns, self.rules).is_violated:
                stage.unrepaired = ""
        for _, stage, violation in sorted(found, key=lambda item: -item[0]):
            shadows = self.shadows()
            replaced = {
                place_of(steps.active): (*steps.sizes, shadow)
                for steps in stage.serving
                if (shadow := shadows.get(worker_name(steps.active))) is not None and self.is_ready(shadow)
            }
            if replaced:
                cause = violation.describe(stage.target.slo_ns, self.rules)
                yield self._switch(now_ns, stage, replaced, "violation", cause)
            else:
                starting = any(worker_name(share) in shadows for share in stage.active())
                stage.unrepaired = "its shadow is not ready" if starting else "nothing is left of its device"

    def _decide_calm(self, now_ns: int) -> Iterator[SharingDecision]:
        for stage in self.stages.values():
            if stage.is_moving or not any(True for _ in stage.standby_below()):
                continue
            growth = max(steps.active.percent / steps.below.percent for steps in stage.serving if steps.below)
            summary, slo_ns = stage.recent(now_ns, self.rules), stage.target.slo_ns
            calm_ns = stage.watch.calm_ns
            if stage.watch.is_calm(now_ns, summary, slo_ns, growth):
                cause = f"{summary.describe(slo_ns)}, and low enough for the smaller share for {calm_ns / 1e9:g} s"
                yield from self._switch_back(now_ns, stage, "calm", cause)

    def _switch_back(self, now_ns: int, stage: RunningStage, reason: Reason, cause: str) -> Iterator[SharingDecision]:
        """Yield the switch to the shares before the last switch, of those that are ready."""
        replaced = {
            place_of(steps.active): steps.sizes[:-1]
            for steps in stage.serving
            if steps.below is not None and self.is_ready(steps.below)
        }
        if replaced:
            yield self._switch(now_ns, stage, replaced, reason, cause)

    def _switch(
        self,
        now_ns: int,
        stage: RunningStage,
        replaced: dict[tuple[str, str], tuple[Placement, ...]],
        reason: Reason,
        cause: str,
    ) -> SharingDecision:
        before = tuple(stage.active())
        stage.replace_active(replaced)
        stage.settle(now_ns)
        stage.watch.on_switched(now_ns, self.rules, back=reason == "calm")
        return _decision(stage, reason, cause, before)

    def describe(self, now_ns: int) -> tuple[StageStatus, ...]:
        """Return the state for operators."""
        shadows = self.shadows()
        return tuple(self._describe_stage(now_ns, stage, shadows) for stage in self.stages.values())

    def _describe_stage(self, now_ns: int, stage: RunningStage, shadows: Mapping[str, Placement]) -> StageStatus:
        summary, target = stage.recent(now_ns, self.rules), stage.target
        state = "violated" if summary.is_violated else "within SLO" if summary.requests else "no requests"
        if reason := self.unrepaired().get(target.stage):
            state = f"violated: {reason}" if stage.unrepaired else reason
        if stage.is_moving:
            state = "moving"
        shares = []
        for steps in stage.serving:
            shadow = shadows.get(worker_name(steps.active))
            percent, ready = (shadow.percent, self.is_ready(shadow)) if shadow else (0.0, False)
            shares.append(ShareStatus(steps.active.device, steps.active.percent, steps.planned.percent, percent, ready))
        return StageStatus(
            target.stage,
            target.model,
            state,
            target.slo_ns,
            summary.p99_ns,
            summary.requests,
            summary.beyond,
            tuple(shares),
            target.calls_per_second,
            max(share.latency_ns for share in target.shares),
        )

    def check(self) -> None:
        """Assert that every stage is served, and by shares of its own that grow by steps."""
        for name, stage in self.stages.items():
            assert name == stage.target.stage
            assert stage.serving
            for steps in stage.serving:
                percents = [share.percent for share in steps.sizes]
                assert percents == sorted(set(percents))
                assert all(place_of(share) == place_of(steps.planned) for share in steps.sizes)


def _decision(stage: RunningStage, reason: Reason, cause: str, before: tuple[Placement, ...]) -> SharingDecision:
    percents = {share.device: share.percent for share in before}
    after = {share.device: share.percent for share in stage.active()}
    devices = [device for device in percents | after if percents.get(device) != after.get(device)]
    moves = tuple((device, percents.get(device, 0.0), after.get(device, 0.0)) for device in devices)
    return SharingDecision(stage.target.stage, reason, cause, moves)
