"""What a decision costs: CPU time of the controller's core per served request, against models, devices and pending.

    python benchmarks/decisions.py                                 the bar: 4,026 models, 20 devices, 0.9 of capacity
    python benchmarks/decisions.py --curves --json benchmarks/results/decisions.json --plot docs/decisions.png

The core is driven by a virtual clock: arrivals are Poisson, actions take exactly their profiled times, messages 0.1 ms.
Capacity is what the devices do one request at a time: batches, which cost less a request, are what is gained.
Only `handle` and `tick` are timed, so nothing of a socket or of the driver is in the figure. Refusals cost time but do
not count as served.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import random
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench import table
from horologe_common.clock import ms, s
from horologe_common.core import Joined
from horologe_common.models import ModelSpec, Profile, TensorSpec
from horologe_common.status import Status
from horologe_common.wire import Dispatch, Infer, Load, ModelReport, Outcome, Register, Result, Share, Submit, Unload
from horologe_controller.core import Controller
from horologe_controller.settings import Settings

WAY_NS = ms(0.1)
SIZES = (1, 2, 4, 8, 16)
VARIETIES = 61
SELECTOR, FRONTEND = "selector/0#1", "frontend/0#1"
PAGES = 2000
"""A device with 32 GB, as Clockwork's."""


class Case(NamedTuple):
    models: int = 4026
    devices: int = 20
    load: float = 0.9
    slo_ms: float = 100
    pending: int = 0
    """Best-effort requests that wait all along."""


class Row(NamedTuple):
    models: int
    devices: int
    load: float
    pending: int
    requests_s: float
    served: int
    refused: int
    batch: float
    loads: int
    us_per_served: float
    us_per_request: float


def report(number: int, rng: random.Random) -> ModelReport:
    """A model like those of Clockwork's appendix A: 1 to 10 ms alone, a batch of 16 in five times that, 20-300 MB."""
    variety = random.Random(number % VARIETIES)
    one_ns = ms(variety.uniform(1, 10))
    exec_ns = {size: round(one_ns * (0.73 + 0.27 * size)) for size in SIZES}
    weights = int(variety.uniform(20e6, 300e6))
    tensors = (TensorSpec("x", "FP32", (-1, 16)),)
    spec = ModelSpec(f"m{number}", "1", "emulated", tensors, tensors, SIZES, True, ms(100), weights)
    return ModelReport(spec, Profile(exec_ns, round(weights / 12e9 * 1e9)))


class Drive:
    """One controller, its devices, and the virtual time between them."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case = case
        self.rng = random.Random(seed)
        self.controller = Controller("controller/0#1", Settings(margin_ns=ms(1)), "host")
        self.models = [report(number, self.rng) for number in range(case.models)]
        self.events: list[tuple[int, int, str, Any]] = []
        self.free: dict[tuple[str, str], int] = {}
        self.count = self.served = self.asked = self.refused = self.batches = self.loads = 0
        self.cpu_ns = 0
        self.now_ns = s(1000)
        weights = [1 / (1 + rank) ** 0.9 for rank in range(case.models)]
        self.rng.shuffle(weights)
        self.weights = weights
        rows_s = [1e9 / profile_of(model).exec_ns[1] for model in self.models]
        mean_s = sum(weights) / sum(weight / rate for weight, rate in zip(weights, rows_s, strict=True))
        self.rate = case.load * case.devices * mean_s

    def post(self, at_ns: int, sender: str, message: Any) -> None:
        self.count += 1
        heapq.heappush(self.events, (at_ns, self.count, sender, message))

    def open(self) -> None:
        for address in (SELECTOR, FRONTEND):
            self.turn([(address, Joined(address, "host"))])
        for number in range(self.case.devices):
            address = f"worker/{number}#1"
            self.turn([(address, Joined(address, "host"))])
            self.turn([(address, Register((Share(0, "gpu", PAGES),), tuple(self.models)))])
        for number in range(self.case.pending):
            key = self.models[number % self.case.models].spec.key
            self.post(self.now_ns, SELECTOR, Submit(-1 - number, key, s(20), 1, FRONTEND, number))

    def run(self, seconds: float) -> None:
        until_ns = self.now_ns + s(seconds)
        at_ns = float(self.now_ns)
        draws: list[ModelReport] = []
        next_ns = self.now_ns
        while self.now_ns < until_ns:
            wake_ns = self.controller.wakeup_ns()
            times = [next_ns, self.events[0][0] if self.events else until_ns, wake_ns or until_ns]
            self.now_ns = min(until_ns, max(self.now_ns, min(times)))
            mail = []
            while self.events and self.events[0][0] <= self.now_ns:
                _, _, sender, message = heapq.heappop(self.events)
                mail.append((sender, message))
            while next_ns <= self.now_ns:
                if not draws:
                    draws = self.rng.choices(self.models, self.weights, k=4096)
                self.asked += 1
                mail.append((SELECTOR, Submit(
                    self.asked, draws.pop().spec.key, ms(self.case.slo_ms), 1, FRONTEND, self.asked
                )))  # fmt: skip
                at_ns += self.rng.expovariate(self.rate) * 1e9
                next_ns = int(at_ns)
            self.turn(mail)

    def turn(self, mail: list[tuple[str, Any]]) -> None:
        """A drain and a tick, timed; then what the devices make of what came out."""
        controller, now_ns = self.controller, self.now_ns
        begin_ns = time.thread_time_ns()
        for sender, message in mail:
            controller.handle(now_ns, sender, message, ())
        controller.tick(now_ns)
        self.cpu_ns += time.thread_time_ns() - begin_ns
        outs, controller.out = controller.out, []
        for out in outs:
            self.answer(out.to, out.message)

    def answer(self, to: str, message: Any) -> None:
        match message:
            case Infer() | Load():
                infer = isinstance(message, Infer)
                lane = (to, "exec" if infer else "load")
                begin_ns = max(self.now_ns + WAY_NS, self.free.get(lane, 0))
                if begin_ns > message.latest_ns:
                    status, end_ns = Status.TOO_LATE, begin_ns
                else:
                    status, end_ns = Status.OK, begin_ns + message.expected_ns
                    self.free[lane] = end_ns
                    self.served += len(message.rows) if infer else 0
                    self.batches += infer
                    self.loads += not infer
                self.post(end_ns + WAY_NS, to, Result(message.action_id, int(status), begin_ns, end_ns))
            case Outcome():
                self.refused += 1
            case Dispatch() | Unload() | _:
                pass


def profile_of(model: ModelReport) -> Profile:
    assert model.profile is not None
    return model.profile


def measure(case: Case, seconds: float, seed: int) -> Row:
    """Warm up until the pages are full, then count."""
    drive = Drive(case, seed)
    drive.open()
    drive.run(4.0)
    drive.cpu_ns = drive.served = drive.refused = drive.batches = drive.loads = 0
    asked = drive.asked
    gc.collect()
    gc.disable()  # as in the reactor, which collects when it is idle
    drive.run(seconds)
    gc.enable()
    asked = drive.asked - asked
    served = max(1, drive.served)
    return Row(
        case.models, case.devices, case.load, case.pending, drive.rate, drive.served, drive.refused,
        served / max(1, drive.batches), drive.loads, drive.cpu_ns / 1000 / served, drive.cpu_ns / 1000 / max(1, asked),
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="of virtual time, after 4 to warm up")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--curves", action="store_true", help="models 100..10,000, devices 1..100, pending 10..100,000")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="needs matplotlib")
    options = parser.parse_args()
    cases = [Case()]
    if options.curves:
        cases += [Case(models=count) for count in (100, 300, 1000, 10_000)]
        cases += [Case(devices=count) for count in (1, 3, 10, 50, 100)]
        cases += [Case(pending=count) for count in (10, 100, 1000, 10_000, 100_000)]
    rows = []
    for case in cases:
        rows.append(measure(case, options.seconds, options.seed))
        print(f"  {case}: {rows[-1].us_per_served:.1f} us per served request", file=sys.stderr)
    print(table.text(Row._fields, [[f"{cell:.4g}" for cell in row] for row in rows]))
    holds = rows[0].us_per_served <= 40
    print(f"\n4,026 models, 20 devices, 0.9: {rows[0].us_per_served:.1f} us, wanted <= 40: {'yes' if holds else 'NO'}")
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode([row._asdict() for row in rows])))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
