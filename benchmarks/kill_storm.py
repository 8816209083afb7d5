"""Random faults of every process of a running system, under load: KILL, TERM, STOP for 1 s, STOP for 5 s.

Every request must have one answer, the right one: OK with the value of its own input, or an error that says why not.
The exit code is 1 if an answer is wrong, comes twice or not at all, if a core raises an exception, if a model that
exists is unknown, or if service does not resume within `RESUME_S` of the end of the last fault.

    python benchmarks/kill_storm.py
    python benchmarks/kill_storm.py --split --rate 1200 --seconds 150 --json storm.json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.emulated_model import write_echo_model
from bench.outcomes import Outcomes
from bench.report import end_with
from horologe import AsyncClient
from horologe_cli.local.local_system import LocalSystem
from horologe_cli.local.topology import SystemOptions
from horologe_common.status import HorologeError

RESUME_S = 2.0
SLO_MS, GRACE_MS = 300.0, 250.0
SETTLE_S = 10.0
CLIENTS = 4
PAUSE_S = (2.0, 3.0)
STOPS_S = {"STOP 1 s": 1.0, "STOP 5 s": 5.0}
FAULTS = ("KILL", "TERM", *STOPS_S)
CORE_FAULTS = ("core fault", "turn fault", "message not sent", "heartbeat fault")
EXEC_MS = {1: 1.0, 2: 1.5, 4: 2.5, 8: 4.0}


class Fault(NamedTuple):
    """A signal to a process. `end_s`: when the process could run again, in seconds since the start."""

    begin_s: float
    end_s: float
    process: str
    kind: str


class Storm:
    """A local system, the faults of its processes, and the requests to it."""

    def __init__(self, system: LocalSystem, rate: float, seconds: float, seed: int) -> None:
        self.system = system
        self.rate = rate
        self.seconds = seconds
        self.outcomes = Outcomes()
        self.faults: list[Fault] = []
        self._random = random.Random(seed)

    async def run(self) -> None:
        """Send requests and faults for `seconds`, then requests until service can have resumed."""
        clients = [AsyncClient(self.system.topology.clients[0], grace_ms=GRACE_MS) for _ in range(CLIENTS)]
        for number, client in enumerate(clients):
            self.outcomes.count_answers(number, client)
        faults = asyncio.ensure_future(self._send_faults())
        progress = asyncio.ensure_future(self._show_progress())
        tasks: set[asyncio.Future[None]] = set()
        next_s = self.outcomes.now_s()
        while not faults.done() or self.outcomes.now_s() < self.faults[-1].end_s + SETTLE_S:
            next_s += self._random.expovariate(self.rate)
            await asyncio.sleep(max(0.0, next_s - self.outcomes.now_s()))
            task = asyncio.ensure_future(self._ask(clients[self.outcomes.sent % CLIENTS], self.outcomes.sent))
            self.outcomes.sent += 1
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        if tasks:
            await asyncio.wait(tasks, timeout=(SLO_MS + GRACE_MS) / 1000 + SETTLE_S)
        progress.cancel()
        await faults
        for client in clients:
            await client.close()

    def resume_times_s(self) -> list[tuple[float, Fault]]:
        """Return how long service took to resume after each fault with `RESUME_S` of quiet behind it; last the last.

        Quiet: no other fault begins, and no other process is stopped. If service did not resume, it is the time until
        the end of the run.
        """
        faults = sorted(self.faults, key=lambda fault: fault.end_s)
        return [
            (self.outcomes.resume_time_s(fault.end_s), fault)
            for fault in faults
            if not any(
                other is not fault and other.begin_s < fault.end_s + RESUME_S and other.end_s >= fault.end_s
                for other in faults
            )
        ]

    async def _ask(self, client: AsyncClient, number: int) -> None:
        """Send a request whose rows contain its number, and store its status."""
        outcomes = self.outcomes
        rows = 1 + number % 2
        x = np.full((rows, 4), number, np.float32)
        x[:, 1] = np.arange(rows)
        outcomes.sent_s[number] = outcomes.now_s()
        try:
            y = await client.predict("echo", x, slo_ms=SLO_MS)
        except HorologeError as error:
            status = error.status.name
            outcomes.reasons[f"{status}: {error.reason}"] += 1
        else:
            status = "OK"
            if not np.array_equal(y, x):
                outcomes.wrong.append(f"request {number}: got {y!r}")
        outcomes.statuses[number] = status

    async def _send_faults(self) -> None:
        """Send a fault to a random process every two to three seconds."""
        conts = []
        while self.outcomes.now_s() < self.seconds:
            await asyncio.sleep(self._random.uniform(*PAUSE_S))
            pids = self.system.supervisor.pids()
            process, kind = self._random.choice(sorted(pids)), self._random.choice(FAULTS)
            stop_s, begin_s = STOPS_S.get(kind, 0.0), self.outcomes.now_s()
            self.faults.append(Fault(begin_s, begin_s + stop_s, process, kind))
            if stop_s:
                _signal(pids[process], signal.SIGSTOP)
                conts.append(asyncio.ensure_future(_continue(pids[process], stop_s)))
            else:
                _signal(pids[process], signal.SIGKILL if kind == "KILL" else signal.SIGTERM)
        await asyncio.gather(*conts)

    async def _show_progress(self) -> None:
        while True:
            await asyncio.sleep(5)
            counts = dict(Counter(self.outcomes.statuses.values()))
            print(f"{self.outcomes.now_s():5.0f} s  {len(self.faults)} faults  {counts}", flush=True)


async def _continue(pid: int, after_s: float) -> None:
    await asyncio.sleep(after_s)
    _signal(pid, signal.SIGCONT)


def _signal(pid: int, number: signal.Signals) -> None:
    """Signal a process, which may have ended since."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _options(folder: str, split: bool) -> SystemOptions:
    """Return a system with two workers, whose files are in `folder`."""
    sets = (
        f"frontend.grace_ns={GRACE_MS}ms",
        f"worker.cache={folder}/cache",
        f"selector.state={folder}",
        f"profiler.state={folder}",
    )
    return SystemOptions(
        models=str(Path(folder, "models")), workers=2, split=split, http="127.0.0.1:0",
        clients=(f"ipc://{folder}/clients",), metrics="off", sets=sets, profiler=True,
    )  # fmt: skip


def measure(split: bool, rate: float, seconds: float, seed: int, log: Path | None) -> dict[str, Any]:
    """Run a storm against a new system. Return its counts, violations and faults."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        write_echo_model(Path(folder, "models"), "echo", 4, EXEC_MS, 3)
        with LocalSystem(_options(folder, split), lambda name, line: lines.append(f"{name}: {line}")) as system:
            system.wait_ready(60)
            storm = Storm(system, rate, seconds, seed)
            asyncio.run(storm.run())
    if log:
        log.write_text("\n".join(lines))
    outcomes, resumes_s = storm.outcomes, storm.resume_times_s()
    core_faults = [line for line in lines if any(fault in line for fault in CORE_FAULTS)]
    unknown = [reason for reason in outcomes.reasons if reason.startswith("UNKNOWN_MODEL")]
    return {
        "split": split,
        "rate": rate,
        "seconds": seconds,
        "requests": outcomes.sent,
        "statuses": dict(Counter(outcomes.statuses.values())),
        "resumed_s": resumes_s[-1][0],
        "slowest_resumes_s": [(time_s, fault._asdict()) for time_s, fault in sorted(resumes_s)[-3:]],
        "violations": {
            **outcomes.violations(),
            "core faults": len(core_faults),
            "unknown model": sum(status == "UNKNOWN_MODEL" for status in outcomes.statuses.values()),
            "not resumed in time": int(resumes_s[-1][0] > RESUME_S),
        },
        "faults": dict(Counter(f"{fault.kind} {fault.process}" for fault in storm.faults)),
        "examples": [*outcomes.wrong[:5], *core_faults[:5], *unknown[:5]],
        "reasons": dict(outcomes.reasons.most_common(20)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults are sent")
    parser.add_argument("--rate", type=float, default=280.0, help="requests per second")
    parser.add_argument("--split", action="store_true", help="a process for each service")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result")
    parser.add_argument("--log", type=Path, metavar="FILE", help="write the log of all processes")
    arguments = parser.parse_args()
    result = measure(arguments.split, arguments.rate, arguments.seconds, arguments.seed, arguments.log)
    end_with(result, arguments.json)


if __name__ == "__main__":
    main()
