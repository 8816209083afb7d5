"""CPU time of the edge for a request over HTTP, by part: the no-op, 64 clients that wait for each answer.

    python benchmarks/edge.py                                    # two minutes
    python benchmarks/edge.py --mosec --markdown edge.md
    python benchmarks/edge.py --functions 40                     # also the functions that take most of it

Measures CPU time, so other programs on the machine matter little: they slow down caches, not the count of the work.

1. The time of each process, in turns of the interfaces (and of mosec), from the kernel's accounting.
2. The parts, by samples of the CPU time of the edge (`bench/cpu_sampler`), scaled to that time.
3. The kernel's part of it by perf, and the number of system calls by strace, where these programs are installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import psutil

from bench import report
from bench.edge_parts import count_functions, count_parts
from bench.horologe_server import Launch, start_horologe
from bench.peers import PEER_SERVERS, prepare_peer, wait_ready
from bench.runs import ScenarioRuns
from bench.system_calls import counting_calls, sampling_kernel
from bench.systems import DIALECTS_OF_INTERFACES
from bench.targets import make_target
from bench.workload import ROOT, load_scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.workload import Scenario

INTERFACES = ("json", "binary")
SLO_MS = 1000.0
"""Long enough that no request is refused: the cost of an answer is measured, not admission."""
CLIENT = "load generator"
"""This process. On two cores, it has a part of them."""
SAMPLER = Path(__file__).parent / "bench/cpu_sampler"
CALLS = ("read", "write", "writev", "epoll_pwait", "futex", "clock_gettime", "timerfd_settime")


class Side(NamedTuple):
    """A server over one interface: what runs against it, and the processes that serve it and the `CLIENT`, by name."""

    name: str
    runs: ScenarioRuns
    processes: dict[str, psutil.Process]


class Parts(NamedTuple):
    """What the sampler has found: shares of the edge's time by part and by function, and its garbage collections."""

    shares: dict[str, float]
    functions: list[tuple[str, float]]
    samples: int
    collections: int
    collecting_us: float
    """Per request."""


class Calls(NamedTuple):
    """System calls per request by name, and shares of the CPU time by (system call, `socket` or `entry`)."""

    counts: dict[str, float]
    times: dict[tuple[str, str], float]


def measure_cpu(side: Side, clients: int, seconds: float) -> dict[str, float]:
    """Return the CPU time of each process per request, in microseconds."""
    before = {name: sum(process.cpu_times()[:2]) for name, process in side.processes.items()}
    answered = run(side, clients, seconds)
    return {
        name: (sum(process.cpu_times()[:2]) - before[name]) / answered * 1e6 for name, process in side.processes.items()
    }


def run(side: Side, clients: int, seconds: float) -> int:
    """Keep `clients` requests in flight. Return the number of answers. Raises `RuntimeError` if one is an error."""
    load = side.runs.closed(clients, seconds)
    if load.refused or load.failed or load.wrong or not load.ok:
        counts = f"{load.ok} ok, {load.refused} refused, {load.failed} failed, {load.wrong} wrong"
        raise RuntimeError(f"{side.name}: {counts}")
    return load.ok


def measure_parts(side: Side, path: Path, clients: int, seconds: float) -> Parts:
    """Sample the edge, whose sampler writes to `path`."""
    pid = side.processes["edge"].pid
    os.kill(pid, signal.SIGUSR2)
    answered = run(side, clients, seconds)
    os.kill(pid, signal.SIGUSR2)
    result = path.with_name(f"{path.name}.{pid}")
    while not result.exists():
        time.sleep(0.05)
    document = json.loads(result.read_bytes())
    result.unlink()
    stacks: list[tuple[Any, int]] = document["stacks"]
    return Parts(
        count_parts(stacks), count_functions(stacks), sum(count for _, count in stacks),
        document["collections"], document["collecting_ns"] / 1e3 / answered,
    )  # fmt: skip


def measure_calls(side: Side, clients: int, seconds: float) -> Calls:
    """Count and time the system calls of the edge, where strace and perf are installed."""
    pid = side.processes["edge"].pid
    counts, times = Counter[str](), Counter[tuple[str, str]]()
    answered = 1
    if shutil.which("perf"):
        with sampling_kernel(pid, times):
            run(side, clients, seconds)
    if shutil.which("strace"):
        with counting_calls(pid, counts):
            answered = run(side, clients, seconds)
    total = max(1, times.total())
    return Calls(
        {call: count / answered for call, count in counts.items()}, {key: count / total for key, count in times.items()}
    )


@contextlib.contextmanager
def start_sides(scenario: Scenario, mosec: bool, path: Path) -> Iterator[list[Side]]:
    """Start the servers. The sampler of the edge writes to `path`."""
    os.environ["CPU_SAMPLES"] = str(path)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SAMPLER), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(start_horologe(Launch(ROOT / "models", 1), scenario.model))
        client = {CLIENT: psutil.Process()}
        processes = {name: psutil.Process(pid) for name, pid in server.pids.items()}
        sides = []
        for interface in INTERFACES:
            dialect = DIALECTS_OF_INTERFACES[interface]
            sides.append(Side(interface, _runs(scenario, server.http, dialect), {**processes, **client}))
        for interface in INTERFACES if mosec else ():
            peer = PEER_SERVERS["mosec"]
            started = prepare_peer(peer, scenario, interface == "binary")
            stack.enter_context(started.server)
            wait_ready(peer, started, scenario)
            found = {f"mosec {process.pid}": process for process in started.server.processes()}
            sides.append(Side(f"mosec {interface}", _runs(scenario, started.url, started.dialect), {**found, **client}))
        yield sides


def _runs(scenario: Scenario, url: str, dialect: str) -> ScenarioRuns:
    return ScenarioRuns(scenario, lambda inputs: make_target(url, dialect, scenario, inputs))


def process_table(cpu: dict[str, list[dict[str, float]]]) -> str:
    """Return the CPU time of each side by process; medians of the rounds."""
    rows = []
    for name, rounds in cpu.items():
        middle = {process: statistics.median(each[process] for each in rounds) for process in rounds[0]}
        server = [server_us(each) for each in rounds]
        cells = [middle.get("edge"), middle.get("worker-0"), statistics.median(server), min(server), middle[CLIENT]]
        rows.append([name, *["" if value is None else f"{value:.1f}" for value in cells]])
    return report.markdown(("side, us", "edge", "worker", "server", "smallest round", CLIENT), rows)


def server_us(round_us: dict[str, float]) -> float:
    """Return the CPU time of all processes of a server."""
    return sum(round_us.values()) - round_us[CLIENT]


def compare_peers(cpu: dict[str, list[dict[str, float]]]) -> list[str]:
    """Return a line for each interface: how much of our CPU time mosec needs, of the servers and with the client."""
    lines = []
    for name in INTERFACES:
        pairs = list(zip(cpu[name], cpu.get(f"mosec {name}", ()), strict=False))
        if pairs:
            servers = sorted(server_us(peer) / server_us(own) for own, peer in pairs)
            together = statistics.median(sum(peer.values()) / sum(own.values()) for own, peer in pairs)
            span = f"{servers[0]:.2f} to {servers[-1]:.2f}"
            lines.append(
                f"{name}: mosec needs {statistics.median(servers):.2f} ({span}) of the CPU time, "
                f"{together:.2f} together with the load generator"
            )
    return lines


def parts_table(cpu: dict[str, list[dict[str, float]]], parts: dict[str, Parts]) -> str:
    """Return the time of each part of the edge per request, in microseconds."""
    edge_us = {name: statistics.median(each["edge"] for each in cpu[name]) for name in parts}
    rows = []
    for part in next(iter(parts.values())).shares:
        shares = [(edge_us[name], found.shares[part]) for name, found in parts.items()]
        rows.append([part, *[text for us, share in shares for text in (f"{us * share:.1f}", f"{share:.1%}")]])
    rows.append(["all", *[text for us in edge_us.values() for text in (f"{us:.1f}", "")]])
    return report.markdown(("part", *[text for name in parts for text in (f"{name}, us", "share")]), rows)


def calls_table(cpu: dict[str, list[dict[str, float]]], calls: dict[str, Calls]) -> str:
    """Return the system calls per request, and the CPU time of the kernel per request in microseconds."""
    edge_us = {name: statistics.median(each["edge"] for each in cpu[name]) for name in calls}
    rows = []
    for call in (*CALLS, "other"):
        row = [call]
        for name, found in calls.items():
            socket, entry = (found.times.get((call, place), 0.0) * edge_us[name] for place in ("socket", "entry"))
            count = found.counts.get(call, sum(n for each, n in found.counts.items() if each not in CALLS))
            row += [f"{count:.3f}", f"{socket:.2f}", f"{entry:.2f}"]
        rows.append(row)
    names = [f"{name}, {column}" for name in calls for column in ("calls", "us in sockets", "us of the call")]
    return report.markdown(("system call", *names), rows)


def write_report(
    cpu: dict[str, list[dict[str, float]]], parts: dict[str, Parts], calls: dict[str, Calls], functions: int
) -> str:
    """Return all tables."""
    texts = [process_table(cpu), *compare_peers(cpu), parts_table(cpu, parts), calls_table(cpu, calls)]
    for name, found in parts.items():
        collections = f"{found.collections} garbage collections, {found.collecting_us:.2f} us per request"
        texts.append(f"{name}: {found.samples} samples; {collections}")
    for name, found in parts.items() if functions else ():
        rows = [[function, f"{share:.1%}"] for function, share in found.functions[:functions]]
        texts.append(report.markdown((f"function, {name}", "share"), rows))
    return "\n\n".join(text.strip() for text in texts)


def in_turns(sides: Sequence[Side], rounds: int, measure: Callable[[Side], Any]) -> dict[str, list[Any]]:
    """Return what `measure` returns for each side, by round."""
    found: dict[str, list[Any]] = {side.name: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            found[side.name].append(measure(side))
            print(f"{side.name}: {found[side.name][-1]}"[:300], file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64, help="requests in flight")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a round")
    parser.add_argument("--sample", type=float, default=20.0, help="seconds of sampling per interface", metavar="S")
    parser.add_argument("--mosec", action="store_true", help="also measure mosec, installed on first use")
    parser.add_argument("--functions", type=int, default=0, help="number of functions to print per interface")
    parser.add_argument("--markdown", type=Path, help="also write the tables to this file")
    options = parser.parse_args()
    report.print_machine(report.describe_machine())
    scenario = msgspec.structs.replace(load_scenario("noop"), slo_ms=SLO_MS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples"
        with start_sides(scenario, options.mosec, path) as sides:
            own = [side for side in sides if "edge" in side.processes]
            for side in sides:
                run(side, options.clients, 2.0)  # warm-up
            cpu = in_turns(sides, options.rounds, lambda side: measure_cpu(side, options.clients, options.seconds))
            parts = {side.name: measure_parts(side, path, options.clients, options.sample) for side in own}
            calls = {side.name: measure_calls(side, options.clients, options.seconds) for side in own}
    text = write_report(cpu, parts, calls, options.functions)
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n")


if __name__ == "__main__":
    main()
