"""Load generator: run a scenario against an address, in a closed or an open loop.

python benchmarks/load.py noop http://127.0.0.1:8000 --dialect oip-binary-slo --clients 1,64
python benchmarks/load.py cnn tcp://127.0.0.1:8003 --rate 120,240 --seconds 10
python benchmarks/load.py cnn tcp://127.0.0.1:8003 --capacity
python benchmarks/load.py --calibrate
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench import report
from bench.dialects import DIALECTS
from bench.runs import FACTORS, ScenarioRuns, find_capacity
from bench.server_process import Server, free_port, listens
from bench.targets import make_target
from bench.workload import load_scenario

if TYPE_CHECKING:
    from horologe_load.samples import LoadSummary


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="?", default="noop", help="name in benchmarks/scenarios, or a .toml file")
    parser.add_argument("url", nargs="?", default="", help="http://... or, for the SDK, tcp://... or ipc://...")
    parser.add_argument("--dialect", default="oip-binary-slo", choices=DIALECTS, help="request format over HTTP")
    parser.add_argument(
        "--clients", default="", help="closed loop with these numbers of requests in flight, e.g. 1,16,64"
    )
    parser.add_argument("--rate", default="", help="open loop at these rates, in requests per second, e.g. 100,200")
    parser.add_argument("--capacity", action="store_true", help="find the highest rate with 99%% within the SLO")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of every measurement")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="", help="model instead of the scenario's")
    parser.add_argument("--slo-ms", type=float, default=None, help="SLO instead of the scenario's")
    parser.add_argument("--calibrate", action="store_true", help="measure the load generator itself")
    parser.add_argument("--json", type=Path, default=None, help="also write the results to this file")
    return parser.parse_args(argv)


def calibrate(seconds: float, clients: tuple[int, ...] = (1, 16, 64)) -> dict[str, LoadSummary]:
    """Measure the generator against a minimal server. Figures near this limit say more about the generator."""
    port = free_port()
    scenario = load_scenario("noop")
    script = str(Path(__file__).parent / "bench/echo.py")
    with Server([sys.executable, script, str(port)], Path(tempfile.gettempdir()) / "horologe-echo.log") as server:
        server.wait(listens(port), 10)
        runs = ScenarioRuns(scenario, lambda inputs: make_target(f"http://127.0.0.1:{port}/", "raw", scenario, inputs))
        return {f"limit, {count} clients": runs.closed(count, seconds) for count in clients}


def measure(options: argparse.Namespace) -> dict[str, LoadSummary]:
    """Run the loads that the options name. Return their summaries by name."""
    changes = {"model": options.model or None, "slo_ms": options.slo_ms}
    scenario = load_scenario(options.scenario, {key: value for key, value in changes.items() if value is not None})
    runs = ScenarioRuns(scenario, lambda inputs: make_target(options.url, options.dialect, scenario, inputs))
    results = {}
    rates = [float(rate) for rate in options.rate.split(",") if rate]
    clients = [int(count) for count in options.clients.split(",") if count]
    for count in clients or ([] if rates or options.capacity else scenario.clients):
        results[f"{count} clients"] = runs.closed(count, options.seconds)
    for rate in rates:
        results[f"{rate:g}/s offered"] = runs.open(rate, options.seconds, options.seed)
    if options.capacity:
        capacity = find_capacity(runs, options.seconds)
        results[f"capacity {capacity:.1f}/s"] = runs.open(capacity or 1.0, options.seconds, options.seed)
        for factor in FACTORS:
            rate = capacity * factor or 1.0
            results[f"{factor}x: {rate:.1f}/s offered"] = runs.open(rate, options.seconds, options.seed)
    return results


def main() -> None:
    options = parse_arguments()
    if not options.calibrate and not options.url:
        sys.exit("url: got nothing, wanted http://..., tcp://... or ipc://... (or --calibrate)")
    results = calibrate(options.seconds) if options.calibrate else measure(options)
    rows = [[name, *report.run_row(run)] for name, run in results.items()]
    print(report.markdown(("run", *report.RUN_COLUMNS), rows))
    for name, run in results.items():
        for reason, count in run.reasons.items():
            print(f"{name}: {count} x {reason}")
    if options.json:
        report.save_json(
            options.json,
            {
                "machine": report.describe_machine(),
                "runs": {name: report.run_document(run) for name, run in results.items()},
            },
        )


if __name__ == "__main__":
    main()
