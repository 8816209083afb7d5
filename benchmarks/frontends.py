"""1, 2 and 4 frontends at one controller, on two hosts with 1 ms between them: latencies, CPU time per request.

The hosts are network namespaces of this machine, so this needs root and `ip`. Controller, selectors, workers and
the frontends with even numbers are on one host, the others and the clients on the other. Each case also kills one of
its frontends halfway: the clients go on with the others.

    python benchmarks/frontends.py
    python benchmarks/frontends.py --rate 200 --seconds 10 --json benchmarks/results/frontends.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from bench import slow_link
from bench.emulated_model import write_echo_model
from bench.service_processes import Process, ServiceProcesses
from horologe import AsyncClient
from horologe_common.status import HorologeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HOSTS = {"hzone": "10.77.0.1", "hztwo": "10.77.0.2"}
DELAY_S = 0.001
SLO_MS, CLIENTS, START_S, WORKERS = 200.0, 8, 60.0, 2
MODEL = "echo"


def on_host(host: str, *command: str) -> list[str]:
    return ["ip", "netns", "exec", host, *command]


def create_hosts() -> subprocess.Popen[str]:
    """Create the namespaces, and start the link between them."""
    remove_hosts()
    for host in HOSTS:
        subprocess.run(["ip", "netns", "add", host], check=True)
        subprocess.run(on_host(host, "ip", "link", "set", "lo", "up"), check=True)
    ends = [text for pair in HOSTS.items() for text in pair]
    link = subprocess.Popen(
        [sys.executable, str(Path(slow_link.__file__)), *ends, str(DELAY_S)], stdout=subprocess.PIPE, text=True
    )
    assert link.stdout is not None
    if link.stdout.readline() != "ready\n":
        raise RuntimeError("the link between the hosts did not start")
    return link


def remove_hosts() -> None:
    for host in HOSTS:
        subprocess.run(["ip", "netns", "del", host], check=False, stderr=subprocess.DEVNULL)


def frontend_host(number: int) -> str:
    return list(HOSTS)[number % 2]


def clients_endpoint(number: int) -> str:
    return f"tcp://{HOSTS[frontend_host(number)]}:{7300 + number}"


def services(folder: Path, frontends: int, selectors: int) -> dict[str, Process]:
    """Return the services by name."""
    one = HOSTS["hzone"]

    def service(module: str, bind: str, connect: Sequence[str], *settings: str) -> Process:
        links = (f"links.bind={bind}", f"links.connect={','.join(connect)}", "links.allow_open=true")
        return Process(module, (*links, *settings), 0)

    controller = f"tcp://{one}:7000"
    middle = [f"tcp://{one}:{7100 + number}" for number in range(selectors)]
    found = {"controller": service("horologe_controller", controller, (), f"controller.workers={WORKERS}")}
    for number, endpoint in enumerate(middle):
        settings = (f"selector.name={number}", "selector.store=memory")
        found[f"selector-{number}"] = service("horologe_selector", endpoint, [controller], *settings)
    for number in range(frontends):
        bind = f"tcp://{HOSTS[frontend_host(number)]}:{7200 + number}"
        settings = (
            f"frontend.name={number}",
            f"frontend.clients={clients_endpoint(number)}",
            "http.port=0",
            "grpc.port=0",
        )
        found[f"frontend-{number}"] = service("horologe_frontend", bind, [*middle, controller], *settings)
    for number in range(WORKERS):
        settings = (
            f"worker.name={number}", f"worker.repository={folder}/models", f"worker.cache={folder}/cache",
            "worker.pin=false",
        )  # fmt: skip
        found[f"worker-{number}"] = service("horologe_gpu_worker", "", [controller], *settings)
    return found


def measure(frontends: int, selectors: int, rate: float, seconds: float) -> dict[str, Any]:
    """Run a case. Return how the requests ended, their latencies, and the CPU time of each service per request."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_echo_model(folder / "models", MODEL, 4, {1: 1.0, 2: 1.5, 4: 2.5, 8: 4.0, 16: 7.0}, 3.0)
        found = services(folder, frontends, selectors)
        hosts = {key: frontend_host(int(key[-1])) if key.startswith("frontend") else "hzone" for key in found}
        with ServiceProcesses(folder, found, {key: on_host(host) for key, host in hosts.items()}) as processes:
            load = subprocess.Popen(
                on_host("hztwo", sys.executable, __file__, "--load", json.dumps([frontends, rate, seconds])),
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert load.stdout is not None
            try:
                lines = load.stdout
                if lines.readline() != "ready\n":
                    raise RuntimeError(processes.read_log("frontend-0")[-2000:])
                before = cpu_times_s(processes, found)
                steady = json.loads(lines.readline())
                after = cpu_times_s(processes, found)
                if frontends > 1:
                    processes.stop("frontend-0", signal.SIGKILL)
                killed = json.loads(lines.readline())
            finally:
                load.kill()
                load.wait()
    answered = max(1, sum(steady["ends"].values()))
    roles = Counter[str]()
    for key, spent_s in after.items():
        roles[key.partition("-")[0]] += (spent_s - before[key]) / answered * 1e6
    return {
        "frontends": frontends, "selectors": selectors, "rate": rate, **steady,
        "cpu_us_per_request": {role: round(spent, 1) for role, spent in roles.items()},
        "after_kill": killed["ends"] if frontends > 1 else None,
    }  # fmt: skip


def cpu_times_s(processes: ServiceProcesses, names: Sequence[str] | dict[str, Process]) -> dict[str, float]:
    """Return the CPU time of each service. `ip netns exec` becomes the service itself."""
    times = {name: psutil.Process(processes.pid(name)).cpu_times() for name in names}
    return {name: spent.user + spent.system for name, spent in times.items()}


async def generate_load(frontends: int, rate: float, seconds: float) -> None:
    """Send requests from several clients. Print when service has begun, and the result of two periods."""
    endpoints = [clients_endpoint(number) for number in range(frontends)]
    clients = [AsyncClient(",".join(endpoints)) for _ in range(CLIENTS)]
    end_s = time.monotonic() + START_S
    for client in clients:
        in_a_row = 0
        while in_a_row < 5 and time.monotonic() < end_s:
            status, _ = await ask(client, 5_000.0)
            in_a_row = in_a_row + 1 if status == "OK" else 0
            await asyncio.sleep(0.02)
    print("ready", flush=True)
    for _ in range(2):
        ends: list[tuple[str, float]] = []
        tasks = []
        for number, gap_s in enumerate(poisson_gaps(rate, seconds)):
            await asyncio.sleep(gap_s)
            tasks.append(asyncio.create_task(ask(clients[number % CLIENTS])))
        ends = await asyncio.gather(*tasks)
        taken = np.array([took for status, took in ends if status == "OK"]) * 1e3
        quantiles = np.percentile(taken, (50, 99)).round(2).tolist() if taken.size else []
        print(json.dumps({"ends": Counter(status for status, _ in ends), "p50_p99_ms": quantiles}), flush=True)
    for client in clients:
        await client.close()


def poisson_gaps(rate: float, seconds: float) -> Iterator[float]:
    """Yield the seconds between arrivals."""
    yield from np.random.default_rng(1).exponential(1 / rate, int(rate * seconds)).tolist()


async def ask(client: AsyncClient, slo_ms: float = SLO_MS) -> tuple[str, float]:
    begin_s = time.perf_counter()
    try:
        await client.predict(MODEL, np.ones((1, 4), np.float32), slo_ms=slo_ms)
    except HorologeError as error:
        return error.status.name, time.perf_counter() - begin_s
    return "OK", time.perf_counter() - begin_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=200.0, help="requests per second of all clients")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of each of the two periods of a case")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--load", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        asyncio.run(generate_load(*json.loads(options.load)))
        return
    link = create_hosts()
    try:
        rows = [measure(count, min(count, 2), options.rate, options.seconds) for count in (1, 2, 4)]
    finally:
        link.kill()
        remove_hosts()
    for row in rows:
        print(json.dumps(row))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
