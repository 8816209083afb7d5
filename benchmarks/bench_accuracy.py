"""What `horologe bench` reports about a server whose delay and capacity are known, beside the truth.

    python benchmarks/bench_accuracy.py                 # HTTP and gRPC, about 5 minutes
    python benchmarks/bench_accuracy.py --seconds 2 --protocols http

The truth of Poisson arrivals is what the same search finds at a simulation of the server, with the same arrivals. The
exit code is 0 only if every figure is within 2%.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bench import report
from bench.known_server import MODEL, SimulatedProcesses
from bench.server_process import Server, free_port, listens
from horologe_cli.measuring.bench_run import Bench, BenchLoad

if TYPE_CHECKING:
    from horologe_load.load_processes import LoadProcesses

SLOTS, DELAY_MS = 32, 100.0
SLO_MS = 200.0
WANTED = 0.99
CAPACITY = SLOTS / DELAY_MS * 1e3
LOW_RATE = 0.3 * CAPACITY
TOLERANCE = 0.02


def simulated_capacity(seconds: float) -> float:
    """Return what the search finds at the simulated server, with the same Poisson arrivals."""
    load = BenchLoad(seconds=seconds, slo_ms=SLO_MS, wanted=WANTED)
    processes = cast("LoadProcesses", SimulatedProcesses(SLOTS, round(DELAY_MS * 1e6)))
    return Bench(processes, load, lambda text, share: None).search().capacity or 0.0


def run_bench(endpoint: str, *options: str) -> dict[str, Any]:
    """Run `horologe bench` and return its document."""
    command = [sys.executable, "-m", "horologe_cli.main", "bench", MODEL, "-e", endpoint, "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(done.stderr)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def measure(endpoint: str, seconds: float) -> list[tuple[str, float, float, list[str]]]:
    """Return name, truth, reported value, and limits of the generator, of every figure."""
    slo = ("--slo-ms", f"{SLO_MS:g}", "--no-deadline", "--seconds", f"{seconds:g}")
    low = run_bench(endpoint, "--rate", f"{LOW_RATE:g}", "--arrivals", "constant", *slo)
    closed = run_bench(endpoint, "--clients", str(2 * SLOTS), *slo)
    even = run_bench(endpoint, "--capacity", "--arrivals", "constant", *slo)
    poisson = run_bench(endpoint, "--capacity", *slo)
    limits = [document["generator_limits"] for document in (low, closed, even, poisson)]
    return [
        ("latency p50, ms", DELAY_MS, low["run"]["latency_ms"]["p50"]["value"], limits[0]),
        ("throughput of a closed loop, /s", CAPACITY, closed["run"]["summary"]["throughput"], limits[1]),
        ("latency p50 of a closed loop, ms", 2 * DELAY_MS, closed["run"]["latency_ms"]["p50"]["value"], limits[1]),
        ("capacity, constant arrivals, /s", CAPACITY, even["capacity"] or 0.0, limits[2]),
        ("capacity, Poisson arrivals, /s", simulated_capacity(seconds), poisson["capacity"] or 0.0, limits[3]),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of every run and trial")
    parser.add_argument("--protocols", default="http,grpc")
    options = parser.parse_args()
    report.print_machine(report.describe_machine())
    script, ports = Path(__file__).parent / "bench/known_server.py", (free_port(), free_port())
    arguments = [*map(str, ports), str(SLOTS), f"{DELAY_MS:g}"]
    rows, worst = [], 0.0
    with (
        tempfile.TemporaryDirectory() as folder,
        Server([sys.executable, str(script), *arguments], Path(folder) / "known") as server,
    ):
        server.wait(listens(ports[1]), 20)
        for protocol, port in zip(("http", "grpc"), ports, strict=True):
            if protocol not in options.protocols.split(","):
                continue
            for name, truth, value, limits in measure(f"{protocol}://127.0.0.1:{port}", options.seconds):
                worst = max(worst, abs(value / truth - 1))
                rows.append([protocol, name, f"{truth:.2f}", f"{value:.2f}", f"{value / truth - 1:+.2%}", *limits])
                print(*rows[-1], file=sys.stderr)
    rows = [[*row, ""][:6] for row in rows]
    print(report.markdown(("protocol", "figure", "truth", "reported", "error", "the generator was the limit"), rows))
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
