"""Attack a system at full speed, beside a client that sends 50 requests per second.

python benchmarks/attacks.py --json attacks.json               # every attack, 30 s each: 20 minutes
python benchmarks/attacks.py --only admit,parts --seconds 10
python benchmarks/attacks.py --only two-programs-sdk,two-programs-http   # what the machine does without any attack

The 99th percentile without an attack is that of all measurements before the attacks on the same door. The exit code is
0 if every bound holds. The bounds: docs/security.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import msgspec

from bench_attacks import ATTACKS, CONTROLS
from bench_attacks.trials import Trial, Trials

COLUMNS = (
    "attack",
    "sent",
    "p99 without (ms)",
    "p99 with",
    "ratio",
    "longest",
    "failed",
    "peak / bound (MB)",
    "bounds",
)


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = ", ".join((*ATTACKS, *CONTROLS))
    parser.add_argument("--only", default=",".join(ATTACKS), help=f"names of attacks: {known}")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of each attack")
    parser.add_argument("--json", type=Path, default=None, help="also write the results to this file")
    return parser.parse_args(argv)


def format_row(trial: Trial) -> str:
    """Return the row of a trial in the table."""
    memory = ", ".join(f"{part.process} {part.peak:.0f} / {part.bound:.0f}" for part in trial.memory)
    times = f"{trial.p99_without:.1f} | {trial.p99_with:.1f} | {trial.ratio:.2f} | {trial.longest_with:.1f}"
    verdict = "hold" if not trial.failures else "FAIL: " + "; ".join(trial.failures)
    return f"| {trial.attack} | {trial.sent} | {times} | {trial.failed} | {memory} | {verdict} |"


def main() -> int:
    """Run the attacks. Return the exit code."""
    options = parse_arguments()
    names, known = options.only.split(","), {**ATTACKS, **CONTROLS}
    for name in names:
        if name not in known:
            raise SystemExit(f"--only: got {name!r}, wanted some of {', '.join(known)}")
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    trials: list[Trial] = []
    begin_s = time.monotonic()
    for trial in Trials().run([known[name] for name in names], options.seconds):
        trials.append(trial)
        print(format_row(trial), flush=True)
        print(f"{len(trials)} of {len(names)} after {time.monotonic() - begin_s:.0f} s", file=sys.stderr, flush=True)
        if options.json:
            options.json.write_bytes(msgspec.json.format(msgspec.json.encode(trials)))
    failed = [trial.attack for trial in trials if trial.failures]
    print(f"\n{len(trials) - len(failed)} of {len(trials)} attacks within all bounds", *failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
