"""What each rule of `horologe` gains: goodput with all rules, less goodput without it, on workloads of the tournament.

    python benchmarks/scheduling_rules.py
    python benchmarks/scheduling_rules.py --only price,waits --workloads fixed,1-60 --json rules.json

Prints a table for experiments/results/schedulers.md: the mean gain on random workloads and the gain on each fixed one.
`held` is the part of the workloads below 1.2 of the capacity in which the worst model gets half of the mean.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from horologe_common.clock import NEVER_NS
from horologe_controller.core import traffic
from horologe_controller.core.cluster import estimates, message_latency, model_profiles
from horologe_controller.core.scheduling import admission, batch_value, planner, queues
from horologe_controller.core.scheduling.device_price import DevicePrice
from horologe_controller.core.scheduling.loading import eviction
from horologe_controller.core.scheduling.strategy import Rank
from horologe_controller.schedulers import horologe
from horologe_experiments.tournament.match import play
from horologe_experiments.tournament.traits import FIXED, find_traits
from horologe_experiments.tournament.workload import build_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_controller.core.cluster.message_latency import LookAhead
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.scheduling.batch_value import QueuedRequests
    from horologe_controller.core.scheduling.queues import ModelQueue
    from horologe_controller.core.scheduling.strategy import Strategy

ALL = "all rules"
HEAVY, FAIR = 1.2, 0.5
"""Load from which on no model is counted as held; least part of the mean that a held worst model gets."""


class Change(NamedTuple):
    """A replaced attribute of a module or class."""

    owner: Any
    name: str
    value: Any


def returns(value: Any) -> Callable[..., Any]:
    return lambda *_args, **_named: value


def decline_as_if_busy(
    price: DevicePrice, start_ns: int, share: Share, strategy: Strategy, weight: float, _busy: float, batch_ns: float
) -> int:
    return DECLINE(price, start_ns, share, strategy, weight, 1.0, batch_ns)


def update_without_losses(advance: horologe.Advance, batch_ns: float, _served: float) -> bool:
    return UPDATE(advance, batch_ns, 1.0)


def any_size(_policy: object, _now_ns: int, _share: Share, queue: ModelQueue) -> int:
    return queue.spec.max_batch


def no_overruns(*turn: Any) -> LookAhead:
    return message_latency.look_ahead(*turn)._replace(overrun_ns=0)


def as_profiled(estimate: estimates.Estimate, _now_ns: int, size: int) -> int:
    return model_profiles.profiled_ns(estimate.seed_ns, size)


def never_shrunken(_missed: int, order_ns: int, first_id: int) -> Rank:
    return Rank(0, order_ns, first_id)


def no_urgency(_begin_ns: int, queued: QueuedRequests, _batches: object) -> dict[int, float]:
    return dict.fromkeys(queued.kinds, 1.0)


DECLINE, UPDATE = DevicePrice.decline, horologe.Advance.update
RULES: dict[str, tuple[Change, ...]] = {
    "fairness": (Change(traffic.Traffic, "weight", returns(1.0)),),
    "fairness: short budgets": (Change(horologe, "LEAST_BUDGET", 0),),
    "order: value": (Change(horologe.Advance, "ns", returns(0)),),
    "order: losses": (Change(horologe.Advance, "update", update_without_losses),),
    "order: shrunken batches": (Change(horologe, "Rank", never_shrunken),),
    "price": (Change(DevicePrice, "decline", returns(0)),),
    "price: utilisation": (Change(DevicePrice, "decline", decline_as_if_busy),),
    "largest safe batch": (Change(queues.ModelQueue, "is_losing", returns(False)),),
    "idle devices divide a queue": (Change(horologe.Horologe, "_largest_size", any_size),),
    "efficient sizes": (Change(model_profiles, "BATCH_SAVING", -9.0),),
    "dynamic: what may be in time": (Change(batch_value, "_latest", returns([])),),
    "dynamic: urgency": (Change(batch_value, "_urgency", no_urgency),),
    "ahead: more batches": (Change(message_latency, "MORE_IN_FLIGHT", 1),),
    "ahead: overruns": (Change(planner, "look_ahead", no_overruns),),
    "admission": (Change(admission, "_least_lateness_ns", returns((0, 0, 0))),),
    "admission: reserve": (Change(admission, "RESERVED_PART", 0.0),),
    "return: margin": (Change(message_latency, "MARGIN_PART", 1 << 60),),
    "best effort: limit": (Change(admission.ShortestWait, "at", returns(NEVER_NS)),),
    "loads: only copies": (Change(eviction.Eviction, "keeps", returns(False)),),
    "loads: value of only copies": (Change(eviction.Eviction, "_costs_more", returns(False)),),
    "pace of a share": (Change(estimates.Estimate, "_profiled", as_profiled),),
    "trials": (Change(estimates.Estimate, "allow_trial", returns(False)),),
}
"""Rule -> what takes it away. A rule after a colon is a part of one."""


def workload_names(part: str) -> list[str]:
    """Return the names of the fixed workloads, or those of a range of seeds: 1-120."""
    first, _, last = part.partition("-")
    return list(FIXED) if part == "fixed" else [str(seed) for seed in range(int(first), int(last or first) + 1)]


class Played(NamedTuple):
    """Goodput and share of the worst model, by rule that was taken away."""

    name: str
    load: float
    values: dict[str, float]
    worst: dict[str, float]


def play_workload(name: str, requests: int, rules: Sequence[str]) -> Played:
    """Play a workload with all rules, and without each of them."""
    traits = find_traits(name)
    workload = build_workload(traits, requests)
    scores = {}
    for rule in (ALL, *rules):
        with contextlib.ExitStack() as changed:
            for change in RULES.get(rule, ()):
                changed.enter_context(patch.object(*change))
            scores[rule] = play(workload, "horologe", {})
    worst = {rule: score.worst_model for rule, score in scores.items()}
    return Played(name, traits.load, {rule: score.value for rule, score in scores.items()}, worst)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rules, or beginnings of their names; default all")
    parser.add_argument("--workloads", default="fixed,1-120", help="fixed, and ranges of seeds")
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    chosen = tuple(options.only.split(",")) if options.only else ("",)
    rules = [rule for rule in RULES if rule.startswith(chosen)]
    names = [name for part in options.workloads.split(",") for name in workload_names(part)]
    played = []
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
        for one in pool.map(partial(play_workload, requests=options.requests, rules=rules), names):
            played.append(one)
            print(f"{one.name}: {one.values[ALL]:.3f}", file=sys.stderr, flush=True)
    print(table(played, rules))
    if options.json:
        options.json.write_text(json.dumps([one._asdict() for one in played], indent=1))


def table(played: Sequence[Played], rules: Sequence[str]) -> str:
    """Return the gains as Markdown."""
    drawn, fixed = ([one for one in played if (one.name in FIXED) == is_fixed] for is_fixed in (False, True))
    light = [one for one in played if one.load < HEAVY]
    lines = [
        f"| without | mean gain | held | {' | '.join(one.name for one in fixed)} |",
        "|" + " --- |" * (3 + len(fixed)),
    ]
    for rule in (ALL, *rules):
        gains = {one.name: one.values[ALL] - one.values[rule] for one in played}
        mean = sum([gains[one.name] for one in drawn]) / max(1, len(drawn))
        held = sum([one.worst[rule] >= FAIR for one in light]) / max(1, len(light))
        cells = [f"{gains[one.name]:+.4f}" for one in fixed]
        lines.append(f"| {rule} | {mean:+.4f} | {held:.3f} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
