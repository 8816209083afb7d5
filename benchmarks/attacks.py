"""Attack a system at full speed, beside a client that sends 50 requests per second.

python benchmarks/attacks.py                                   # every attack, 30 s each
python benchmarks/attacks.py --only admit,parts --seconds 10 --json attacks.json

Exit code 0: every bound holds. The bounds: docs/security.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from bench_attacks import ATTACKS
from bench_attacks.trials import Trial, run_trial


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(ATTACKS), help=f"names of attacks: {', '.join(ATTACKS)}")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of each attack")
    parser.add_argument("--json", type=Path, default=None, help="also write the results to this file")
    return parser.parse_args(argv)


def format_row(trial: Trial) -> str:
    """Return the row of a trial in the table: p99 without, with, longest, failed, memory of each process."""
    memory = ", ".join(
        f"{name} {before:.0f} -> {trial.rss_peak[name]:.0f}" for name, before in trial.rss_before.items()
    )
    times = f"{trial.p99_without:.1f} | {trial.p99_with:.1f} | {trial.longest_with:.1f} | {trial.failed}"
    verdict = "holds" if trial.holds else "FAILS"
    return f"| {trial.attack} | {trial.sent} | {times} | {memory} | {verdict} | {trial.reason[:80]} |"


def main() -> int:
    """Run the attacks. Return the exit code."""
    options = parse_arguments()
    names = options.only.split(",")
    for name in names:
        if name not in ATTACKS:
            raise SystemExit(f"--only: got {name!r}, wanted some of {', '.join(ATTACKS)}")
    print("| attack | sent | p99 without (ms) | p99 with | longest | failed | RSS (MB) | bounds | last failure |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    trials = []
    for name in names:
        trials.append(run_trial(ATTACKS[name], options.seconds))
        print(format_row(trials[-1]), flush=True)
        if options.json:
            options.json.write_bytes(msgspec.json.encode(trials))
    return 0 if all(trial.holds for trial in trials) else 1


if __name__ == "__main__":
    sys.exit(main())
