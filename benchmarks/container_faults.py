"""Random faults of the containers of a running system, under load: kill, pause for 5 s, restart.

    docker compose up -d --scale gpu-worker=2
    python benchmarks/container_faults.py --minutes 60 --json faults.json

Images go to a model at a share of its measured capacity, over the SDK and some over HTTP. Every request must have one
answer, the right one or an error that says why not. The exit code is 1 if an answer is wrong, comes twice or not at
all, or if the share of requests answered in time, outside the 5 s after a fault, is below 99% of that before the first.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bench.compose_project import SERVICE, ComposeProject, kill_processes, pause
from bench.image_requests import HttpRequests, ask_references
from bench.outcomes import Outcomes
from bench.report import end_with
from horologe import AsyncClient
from horologe_common.status import HorologeError
from horologe_load.capacity_search import CapacitySearch
from horologe_load.targets import ModelLoad

if TYPE_CHECKING:
    from bench.image_requests import References

RECOVERY_S = 5.0
"""Time after a fault that does not count."""
GOODPUT = 0.99
"""Least share of requests in time, of that before the first fault."""
PAUSE_S = 5.0
RESTART_TIMEOUT_S = 30
KINDS = ("kill", "pause", "restart")
SLO_MS, GRACE_MS = 300.0, 250.0
CLIENTS = 4
WARM_RATE, WARM_S = 100.0, 60.0
"""Load before the capacity is measured: the profiler's first runs take device time that later ones do not."""
SATURATE, SATURATE_S, STEP_S = 32, 3.0, 10.0
"""A step is long, since two seconds of queues and idle time before them carry more than the same load for an hour."""
NOT_FAULTY = ("keys", "demo")
"""Services whose containers end by themselves."""


class Fault(NamedTuple):
    """A fault of a container, in seconds since the start."""

    begin_s: float
    end_s: float
    container: str
    kind: str


class FaultTimes(NamedTuple):
    """When faults come, in seconds: none for `before_s`, one every `every_s` for `seconds`, none for `settle_s`.

    `seed`: of the choice of faults, and of the arrival times of the requests.
    """

    seconds: float
    every_s: float
    seed: int
    before_s: float = 30.0
    settle_s: float = 15.0


class FaultRun:
    """A composed system, the faults of its containers, and the requests to it."""

    def __init__(
        self, project: ComposeProject, keys: Path, references: References, rate: float, times: FaultTimes
    ) -> None:
        self.outcomes = Outcomes()
        self.faults: list[Fault] = []
        self._project = project
        self._keys = keys
        self._references = references
        self._rate = rate
        self._times = times
        self._arrivals, self._choices = random.Random(times.seed), random.Random(times.seed + 1)
        self.http = HttpRequests(project.address("frontend", 8000), keys, references, SLO_MS)

    async def run(self) -> None:
        """Send requests before, while and after faults are sent."""
        endpoint = f"tcp://{self._project.address('frontend', 8003)}"
        clients = [AsyncClient(endpoint, keys=self._keys, grace_ms=GRACE_MS) for _ in range(CLIENTS)]
        for number, client in enumerate(clients):
            self.outcomes.count_answers(number, client)
        faults = asyncio.ensure_future(self._send_faults())
        progress = asyncio.ensure_future(self._show_progress())
        over_http = asyncio.ensure_future(asyncio.to_thread(self.http.run))
        tasks: set[asyncio.Future[None]] = set()
        next_s = self.outcomes.now_s()
        while not faults.done() or self.outcomes.now_s() < self.faults[-1].end_s + self._times.settle_s:
            next_s += self._arrivals.expovariate(self._rate)
            await asyncio.sleep(max(0.0, next_s - self.outcomes.now_s()))
            task = asyncio.ensure_future(self._ask(clients[self.outcomes.sent % CLIENTS], self.outcomes.sent))
            self.outcomes.sent += 1
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        self.http.ended = True
        if tasks:
            await asyncio.wait(tasks, timeout=(SLO_MS + GRACE_MS) / 1000 + self._times.settle_s)
        progress.cancel()
        await asyncio.gather(faults, over_http)
        for client in clients:
            await client.close()

    async def _ask(self, client: AsyncClient, number: int) -> None:
        """Send the image with this number, and store the status of the answer."""
        at = number % len(self._references.images)
        self.outcomes.sent_s[number] = self.outcomes.now_s()
        try:
            answer = await client.predict(self._references.model, self._references.images[at], slo_ms=SLO_MS)
        except HorologeError as error:
            self.outcomes.statuses[number] = error.status.name
            self.outcomes.reasons[f"{error.status.name}: {error.reason}"] += 1
            return
        self.outcomes.statuses[number] = "OK"
        if not self._references.is_right(at, answer):
            self.outcomes.wrong.append(f"request {number}: got {answer!r}")

    async def _send_faults(self) -> None:
        """Send a random fault to a random container at equal distances. Every kind comes once in as many faults."""
        next_s = self._times.before_s
        kinds: list[str] = []
        while next_s < self._times.before_s + self._times.seconds:
            await asyncio.sleep(max(0.0, next_s - self.outcomes.now_s()))
            containers = {container.name: container for container in self._project.containers()
                          if container.status == "running" and container.labels[SERVICE] not in NOT_FAULTY}  # fmt: skip
            kinds = kinds or self._choices.sample(KINDS, len(KINDS))
            name, kind = self._choices.choice(sorted(containers)), kinds.pop()
            begin_s = self.outcomes.now_s()
            await asyncio.to_thread(_inject, containers[name], kind)
            self.faults.append(Fault(begin_s, self.outcomes.now_s(), name, kind))
            next_s += self._times.every_s

    async def _show_progress(self) -> None:
        while True:
            await asyncio.sleep(10)
            counts = dict(Counter(self.outcomes.statuses.values()))
            last = f"{self.faults[-1].kind} {self.faults[-1].container}" if self.faults else "none"
            text = f"{self.outcomes.now_s():5.0f} s  {len(self.faults)} faults, last: {last}  {counts}"
            print(text, file=sys.stderr, flush=True)

    def goodput(self) -> tuple[float, float]:
        """Return the shares of requests in time: before the first fault, and after it outside `RECOVERY_S`."""
        first_s = min((fault.begin_s for fault in self.faults), default=np.inf)
        before: Counter[bool] = Counter()
        quiet: Counter[bool] = Counter()
        for number, sent_s in self.outcomes.sent_s.items():
            answer_s = sent_s + SLO_MS / 1000
            if answer_s < first_s:
                before[self.outcomes.statuses.get(number) == "OK"] += 1
            elif not any(fault.begin_s < answer_s and sent_s < fault.end_s + RECOVERY_S for fault in self.faults):
                quiet[self.outcomes.statuses.get(number) == "OK"] += 1
        return tuple(counts[True] / max(1, counts.total()) for counts in (before, quiet))  # type: ignore[return-value]

    def report(self) -> dict[str, Any]:
        """Return counts, goodput, the slowest resumptions and the violations."""
        before, quiet = self.goodput()
        resumes = sorted(((self.outcomes.resume_time_s(fault.end_s), fault) for fault in self.faults), reverse=True)
        return {
            "rate": self._rate,
            "seconds": self.outcomes.now_s(),
            "requests": self.outcomes.sent,
            "statuses": dict(Counter(self.outcomes.statuses.values())),
            "http": dict(self.http.statuses),
            "goodput before": before,
            "goodput outside faults": quiet,
            "faults": dict(Counter(f"{fault.kind} {fault.container}" for fault in self.faults)),
            "slowest resumes": [(round(time_s, 2), f"{fault.kind} {fault.container}") for time_s, fault in resumes[:5]],
            "reasons": dict(self.outcomes.reasons.most_common(20)),
            "examples": [*self.outcomes.wrong, *self.http.wrong][:5],
            "violations": {
                **self.outcomes.violations(),
                "wrong over HTTP": len(self.http.wrong),
                "unanswered over HTTP": self.http.statuses["unanswered"],
                "goodput": int(quiet < GOODPUT * before),
            },
        }  # fmt: skip


def _inject(container: Any, kind: str) -> None:
    """Carry out a fault. Returns when the container may run again."""
    if kind == "kill":
        kill_processes(container)
    elif kind == "pause":
        pause(container, PAUSE_S)
    else:
        container.restart(timeout=RESTART_TIMEOUT_S)


async def measure_capacity(client: AsyncClient, references: References) -> float:
    """Return the highest Poisson rate at which 99% of the requests are in time. Raises ValueError if there is none."""
    load = ModelLoad(client, references.model, references.images[:, 0], SLO_MS, 1)
    await load.offer_rate(WARM_RATE, WARM_S)
    search = CapacitySearch(0.5 * (await load.saturate(SATURATE, SATURATE_S)).throughput)
    while (rate := search.next_rate()) is not None:
        step = await load.offer_rate(rate, STEP_S)
        search.observe(rate, step.attained)
        print(f"  {rate:.0f}/s: {step.attained:.1%} in time", file=sys.stderr, flush=True)
    if search.carried is None:
        raise ValueError(f"{references.model}: no rate is carried within {SLO_MS:g} ms")
    return search.carried


def measure(project: ComposeProject, model: str, rate: float, share: float, times: FaultTimes) -> dict[str, Any]:
    """Run faults at `rate` requests per second, or at `share` of the capacity if it is 0."""
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder)
        project.copy_keys(keys)

        async def run() -> dict[str, Any]:
            async with AsyncClient(f"tcp://{project.address('frontend', 8003)}", keys=keys) as client:
                references = await ask_references(client, model)
                capacity = 0.0 if rate else await measure_capacity(client, references)
            faults = FaultRun(project, keys, references, rate or share * capacity, times)
            await faults.run()
            return {"model": model, "capacity": capacity, **faults.report()}

        return asyncio.run(run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--project", default="horologe", help="name of the compose project")
    parser.add_argument("--model", default="digits-cnn", help="a model of images of 64 pixels")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long faults are sent")
    parser.add_argument("--every", type=float, default=30.0, help="seconds from fault to fault")
    parser.add_argument("--load", type=float, default=0.7, help="share of the measured capacity")
    parser.add_argument("--rate", type=float, default=0.0, help="requests per second, instead of --load")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result")
    options = parser.parse_args()
    times = FaultTimes(60 * options.minutes, options.every, options.seed)
    with contextlib.closing(ComposeProject(options.project)) as project:
        result = measure(project, options.model, options.rate, options.load, times)
    end_with(result, options.json)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
