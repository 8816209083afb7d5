"""A gateway with a lively system behind it, for tests of the console in a browser."""

from __future__ import annotations

import json
import time
from typing import Any

from fakes.gateway import FakeGateway
from horologe_common.core.buckets import BUCKETS_NS
from horologe_common.wire import (
    ActionRecord,
    Activity,
    Describe,
    Description,
    DeviceInfo,
    RefusalRecord,
    ShareActivity,
    ShareState,
    Tune,
    Tuning,
    Watch,
)
from horologe_frontend.console.traffic import Totals

WORKERS = ("worker/0#a1", "worker/1#b2", "worker/gpu-left#c3", "worker/gpu-right#d4")
MODELS = {"resnet50/1": 8.0, "bert-base/3": 21.0, "digits-cnn/1": 1.4, "speech/2": 12.5}
EPOCH_NS = 40_000_000_000_000
TUNER = {
    "blind": "",
    "scaler": "process",
    "scaler_error": "",
    "plans": [
        {"name": "video", "replicas": {"detect": 3, "track": 1}, "planned_replicas": {"detect": 2, "track": 1},
         "stages": []},
        {"name": "speech", "replicas": {}, "planned_replicas": {}, "stages": [
            {"stage": "speech", "p99_ns": 18_200_000, "slo_ns": 25_000_000, "state": "within SLO",
             "shares": [{"device": "GPU-7", "percent": 40.0, "shadow_percent": 60.0}]}]},
    ],
    "journal": [
        {"age_ns": 4_000_000_000, "event": "scaled up", "subject": "video", "dry_run": False,
         "text": "detect 2 -> 3: 212 queries/s in 5 s, planned for 180"},
        {"age_ns": 95_000_000_000, "event": "applied", "subject": "video", "dry_run": False, "text": "2 stages"},
    ],
}  # fmt: skip

TRAFFIC = (
    ("model", "resnet50/1", 400, 0.001, 8), ("model", "bert-base/3", 160, 0.06, 13),
    ("model", "digits-cnn/1", 2100, 0.012, 6), ("model", "speech/2", 210, 0.0, 11),
    ("application", "digits", 300, 0.002, 9), ("pipeline", "video/1", 58, 0.03, 18),
)  # fmt: skip
"""(kind, name, requests per second, refused, bucket of the shortest latency)."""


class SceneGateway(FakeGateway):
    """Two whole devices and one with two shares. Each runs its model without a pause; one in forty is late."""

    def __init__(self) -> None:
        super().__init__()
        self._begin_s = time.monotonic()
        self._sent = 0
        self.actions = self._all_actions()

    def _all_actions(self) -> list[ActionRecord]:
        """Return the actions of ten minutes, by their end."""
        actions = []
        for worker, (model, took_ms) in zip(WORKERS, MODELS.items(), strict=True):
            at_ns = EPOCH_NS
            for number in range(round(600_000 / took_ms / 1.2)):
                planned_ns = round(took_ms * 1e6)
                slow = 1.9 if number % 40 == 7 else 0.96 + 0.08 * ((number * 37) % 11) / 10
                end_ns = at_ns + round(planned_ns * slow)
                late = 2 if number % 40 == 7 else 0
                actions.append(
                    ActionRecord(
                        "infer", worker, 0, model, 8, 1 + number % 8, at_ns, at_ns + planned_ns, at_ns, end_ns, 0, late
                    )
                )
                if number % 150 == 10:
                    load_ns = at_ns + 30_000_000
                    actions.append(
                        ActionRecord("load", worker, 0, "digits-mlp/1", 0, 0, at_ns, load_ns, at_ns, load_ns, 0)
                    )
                at_ns = end_ns + planned_ns // (4 + number % 7)
        return sorted(actions, key=lambda action: action.end_ns)

    @property
    def now_ns(self) -> int:
        return EPOCH_NS + round((time.monotonic() - self._begin_s + 12) * 1e9)

    async def call(self, message: Any, buffers: Any = ()) -> Any:
        match message:
            case Watch():
                return self._activity(message.after)
            case Describe():
                return Description(0, self._shares(), "horologe", 17)
            case Tune():
                return Tuning(0, json.dumps(TUNER).encode())
        return await super().call(message, buffers)

    def _activity(self, after: int) -> Activity:
        now_ns = self.now_ns
        number = sum(action.end_ns <= now_ns for action in self.actions[after : after + 20_000]) + after
        actions = self.actions[after:number]
        since_ns = actions[0].end_ns if actions else now_ns
        refusals = tuple(
            RefusalRecord(at_ns, model, reason, 3 + at_ns // 50_000_000 % 5, 4_200_000)
            for at_ns in range(since_ns - since_ns % 50_000_000, now_ns, 50_000_000)
            for model, reason, second in (("bert-base/3", "work_ahead", 3), ("digits-cnn/1", "expired", 7))
            if at_ns // 1_000_000_000 % 10 == second
        )
        shares = tuple(
            ShareActivity(
                worker, 0, 5, sum(a.end_ns - a.begin_ns for a in actions if a.worker == worker and a.kind == "infer")
            )
            for worker in WORKERS
        )
        return Activity(0, number, now_ns, tuple(actions), refusals, shares, 3)

    def _shares(self) -> tuple[ShareState, ...]:
        devices = (("", "v100", 100.0), ("", "v100", 100.0), ("GPU-7", "a100", 40.0), ("GPU-7", "a100", 60.0))
        return tuple(
            ShareState(worker, 0, "cuda:0", 64, 21.5, (model, "digits-mlp/1"), 2, 0, {}, 0, kind, (model,), percent,
                       DeviceInfo(device, kind))
            for worker, model, (device, kind, percent) in zip(WORKERS, MODELS, devices, strict=True)
        )  # fmt: skip

    def traffic_totals(self, since_ns: int = 0) -> list[Totals]:
        seconds = (self.now_ns - EPOCH_NS) / 1e9
        totals = []
        for kind, name, rate, refused, bucket in TRAFFIC:
            count = round(seconds * rate)
            latency = [0] * (len(BUCKETS_NS) + 1)
            for offset, part in ((0, 0.5), (1, 0.3), (2, 0.15), (4, 0.05)):
                latency[8 + bucket + offset] = round(count * part)
            failed = {"REFUSED": round(count * refused), "LATE": round(count * refused / 8)}
            totals.append(Totals(kind, name, count, {status: n for status, n in failed.items() if n}, tuple(latency)))
        return totals
