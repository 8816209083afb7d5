"""A controller with a tuner and workers, for tests of plans."""

from __future__ import annotations

from typing import Any

from controller.controller_builders import FRONTEND, SELECTOR, TUNER, a_new_controller
from harness.builders import a_report, a_spec
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import (
    DeviceInfo,
    Infer,
    Load,
    PlannedModel,
    Register,
    ResourcePlan,
    Result,
    Share,
    Submit,
    Unload,
)


class Bench:
    """A controller with workers that carry out LOADs at once, and INFERs when told to."""

    def __init__(self, hardware: tuple[str, ...], models: tuple[str, ...] = ("sum",), **options: Any) -> None:
        self.pages = options.pop("pages", 64)
        pages_each = options.pop("pages_each", 1)
        self.specs = [a_spec(name, weights_bytes=pages_each << 24) for name in models]
        settings = {"scheduler": "edf", "preload": True, "workers": len(hardware), **options}
        self.controller = a_new_controller(TUNER, **settings)
        self.workers: list[str] = []
        self.infers: list[tuple[str, Infer]] = []
        self.loads: list[tuple[str, str]] = []
        self.unloads: list[tuple[str, str]] = []
        self.now_ns = 0
        for kind in hardware:
            self.add_worker(kind)

    def add_worker(self, hardware: str, name: str = "", percent: float = 100.0, device: str = "") -> str:
        worker = f"worker/{name or len(self.workers)}#{len(self.workers) + 1}"
        self.workers.append(worker)
        share = Share(0, "cpu", self.pages, hardware=hardware, percent=percent)
        register = Register((share,), tuple(map(a_report, self.specs)), device_info=DeviceInfo(device, hardware))
        self.controller.handle(self.now_ns, worker, PeerConnected(worker, "host"), ())
        self.controller.handle(self.now_ns, worker, register, ())
        self.settle()
        return worker

    def lose(self, worker: str) -> None:
        self.controller.handle(self.now_ns, worker, PeerDisconnected(worker), ())
        self.settle()
        self.infers = [item for item in self.infers if item[0] != worker]

    def settle(self) -> None:
        """Tick, and answer LOADs, until the controller sends no more."""
        self.controller.tick(self.now_ns)
        while True:
            loads = [out for out in self.controller.out if isinstance(out.message, Load)]
            self.infers += [(out.to, out.message) for out in self.controller.out if isinstance(out.message, Infer)]
            self.unloads += [
                (out.to, out.message.model) for out in self.controller.out if isinstance(out.message, Unload)
            ]
            self.controller.out.clear()
            if not loads:
                self.controller.check()
                return
            for out in loads:
                self.loads.append((out.to, out.message.model))
                result = Result(out.message.action_id, Status.OK, self.now_ns, self.now_ns + 1)
                self.controller.handle(self.now_ns, out.to, result, ())
            self.controller.tick(self.now_ns)

    def plan(self, *models: PlannedModel, number: int = 1, sender: str = TUNER) -> None:
        self.controller.handle(self.now_ns, sender, ResourcePlan(number, models), ())
        self.settle()

    def submit(self, model: str = "sum/1", count: int = 1, rows: int = 1, first: int = 0) -> None:
        first = first or self.now_ns + 1
        for number in range(first, first + count):
            message = Submit(number, model, s(10), rows, FRONTEND, number)
            self.controller.handle(self.now_ns, SELECTOR, message, ())
        self.settle()

    def finish_all(self) -> list[tuple[str, Infer]]:
        """Finish INFERs until none is left. Return all since the last call."""
        done = []
        while self.infers or self.controller.pending():
            if not self.infers:  # a policy lets the queue wait
                self.now_ns = max(self.now_ns + 1, self.controller.wakeup_ns() or 0)
                self.settle()
                continue
            worker, infer = self.infers.pop(0)
            done.append((worker, infer))
            self.now_ns += ms(1)
            result = Result(infer.action_id, Status.OK, self.now_ns - ms(1), self.now_ns)
            self.controller.handle(self.now_ns, worker, result, ())
            self.settle()
        return done
