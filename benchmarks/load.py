"""Load generator: one scenario against one address, closed or open loop.

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

from bench import table
from bench.capacity import find
from bench.dialect import DIALECTS
from bench.loops import Run
from bench.process import Server, free_port, listens
from bench.target import target
from bench.workload import named

if TYPE_CHECKING:
    from bench.samples import Figures


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="?", default="noop", help="name in benchmarks/scenarios, or a .toml file")
    parser.add_argument("url", nargs="?", default="", help="http://... or, through the SDK, tcp://... or ipc://...")
    parser.add_argument("--dialect", default="oip-binary-slo", choices=DIALECTS, help="over HTTP: what is sent")
    parser.add_argument("--clients", default="", help="closed loop with so many in flight, e.g. 1,16,64")
    parser.add_argument("--rate", default="", help="open loop at these rates per second, e.g. 100,200")
    parser.add_argument("--capacity", action="store_true", help="find the highest rate with 99%% inside the SLO")
    parser.add_argument("--seconds", type=float, default=5.0, help="of every measurement")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="", help="instead of the scenario's")
    parser.add_argument("--slo-ms", type=float, default=None, help="instead of the scenario's")
    parser.add_argument("--calibrate", action="store_true", help="measure the generator itself, and end")
    parser.add_argument("--json", type=Path, default=None, help="write the figures here too")
    return parser.parse_args(argv)


def calibrate(seconds: float, clients: tuple[int, ...] = (1, 16, 64)) -> dict[str, Figures]:
    """The generator against a server that does nothing: the limit below which its figures are the server's."""
    port = free_port()
    scenario = named("noop")
    script = str(Path(__file__).parent / "bench/echo.py")
    with Server([sys.executable, script, str(port)], Path(tempfile.gettempdir()) / "horologe-echo.log") as server:
        server.wait(listens(port), 10)
        run = Run(scenario, lambda inputs: target(f"http://127.0.0.1:{port}/", "raw", scenario, inputs))
        return {f"limit, {count} clients": run.closed(count, seconds) for count in clients}


def measure(options: argparse.Namespace) -> dict[str, Figures]:
    changes = {"model": options.model or None, "slo_ms": options.slo_ms}
    scenario = named(options.scenario, {key: value for key, value in changes.items() if value is not None})
    run = Run(scenario, lambda inputs: target(options.url, options.dialect, scenario, inputs))
    results = {}
    rates = [float(rate) for rate in options.rate.split(",") if rate]
    clients = [int(count) for count in options.clients.split(",") if count]
    for count in clients or ([] if rates or options.capacity else scenario.clients):
        results[f"{count} clients"] = run.closed(count, options.seconds)
    for rate in rates:
        results[f"{rate:g}/s offered"] = run.open(rate, options.seconds, options.seed)
    if options.capacity:
        found = find(run, options.seconds)
        results[f"capacity {found.rate:.1f}/s"] = run.open(found.rate or 1.0, options.seconds, options.seed)
        for factor in (2, 3, 4):
            rate = found.rate * factor or 1.0
            results[f"{factor}x: {rate:.1f}/s offered"] = run.open(rate, options.seconds, options.seed)
    return results


def main() -> None:
    options = arguments()
    if not options.calibrate and not options.url:
        sys.exit("url: nothing came, wanted http://..., tcp://... or ipc://... (or --calibrate)")
    results = calibrate(options.seconds) if options.calibrate else measure(options)
    print(table.text(("run", *table.COLUMNS), [[name, *table.row(run)] for name, run in results.items()]))
    for name, run in results.items():
        for reason, count in run.reasons.items():
            print(f"{name}: {count} x {reason}")
    if options.json:
        table.save(options.json, {"machine": table.machine(), "runs": results})


if __name__ == "__main__":
    main()
