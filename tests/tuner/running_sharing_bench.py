"""Shares of stages, and the latencies and workers that a controller reports to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import ms, s
from horologe_common.latency_buckets import latency_bucket
from horologe_common.wire import DeviceState, Events, ModelEvents
from horologe_planning.plan import Placement
from horologe_tuner.core.standby.running_shares import RunningShares
from horologe_tuner.core.standby.running_stage import StageTarget
from horologe_tuner.core.standby.shadow_rules import ShadowRules

if TYPE_CHECKING:
    from horologe_tuner.core.standby.running_stage import SharingDecision


STEP_NS = ms(100)
SLO_MS = 20.0


def placement(name: str, device: str, percent: float, slo_ms: float = SLO_MS) -> Placement:
    return Placement(name, name, "v100", 4, percent=percent, device=device, slo_ns=ms(slo_ms), latency_ns=ms(8))


def targets_on(*gpus: dict[str, float]) -> list[StageTarget]:
    """Return the targets on GPUs v100-1, v100-2, ... with the percents of their stages."""
    shares: dict[str, list[Placement]] = {}
    for number, gpu in enumerate(gpus, start=1):
        for name, percent in gpu.items():
            shares.setdefault(name, []).append(placement(name, f"v100-{number}", percent))
    return [StageTarget(tuple(placed), 400.0) for placed in shares.values()]


class Bench:
    """The core with events every 100 ms, and workers that load their model as soon as they are wanted."""

    def __init__(self, *gpus: dict[str, float], rules: ShadowRules | None = None) -> None:
        self.now_ns = s(1000)
        self.sharing = RunningShares(rules or ShadowRules())
        self.dead: set[str] = set()
        self.needs: dict[str, float] = {}
        """Workload -> percent with which it takes 17 ms; it takes 25 ms with less."""
        self.decisions: list[tuple[int, SharingDecision]] = []
        self.apply(*gpus)
        self.start_workers()

    def apply(self, *gpus: dict[str, float]) -> None:
        self.sharing.apply_targets(self.now_ns, targets_on(*gpus))

    def start_workers(self) -> None:
        self.sharing.record_devices(
            DeviceState(f"worker/{worker}#1", 0, "v100", (key := f"{wanted.share.model}/1",), (key,))
            for worker, wanted in self.sharing.wanted().items()
            if worker not in self.dead
        )

    def step(self, latency_ms: dict[str, float], refused: dict[str, int], count: int, start: bool = True) -> None:
        self.now_ns += STEP_NS
        models = []
        for name, stage in self.sharing.stages.items():
            latency = latency_ms.get(name, 5.0)
            if name in self.needs:
                latency = 17.0 if sum(share.percent for share in stage.active()) >= self.needs[name] else 25.0
            bucket = latency_bucket(ms(latency), stage.target.slo_ns)
            models.append(ModelEvents(f"{name}/1", (), count, refused.get(name, 0), ((bucket, count),)))
        self.sharing.record_events(self.now_ns, Events(1, STEP_NS, ms(10), tuple(models)))
        self.decisions += [(self.now_ns, decision) for decision in self.sharing.decide(self.now_ns)]
        self.sharing.check()
        if start:
            self.start_workers()

    def run(self, seconds: float, count: int = 40, refused: dict[str, int] | None = None, **latency_ms: float) -> None:
        for _ in range(round(seconds * 10)):
            self.step(latency_ms, refused or {}, count)

    def percents(self) -> dict[str, float]:
        return {name: sum(share.percent for share in stage.active()) for name, stage in self.sharing.stages.items()}

    def reasons(self) -> list[str]:
        return [decision.reason for _, decision in self.decisions]
