"""Measure the cost of ORLOJ's queue with 100 to 100,000 pending requests.

    python benchmarks/orloj_queue.py --json benchmarks/results/orloj_queue.json

The load: four applications of one model with log-normal times (median 10 to 80 ms), histograms
of about 64 bins, batch sizes 1 to 16, budgets of 0.5 to 1.5 times 3 s, b = 1e-4 per ms. The cost of a batch includes
drops, milestones, the choice of the size and of the members, and their removal. After each batch, as many requests are
inserted as have left. Time advances so that a request waits half its SLO (Little's law). Costs are the thread's CPU
time. The bar at 10,000 pending requests: on average 50 us for an insertion and 500 us for a batch.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench import report
from horologe_common.clock import ms, s
from horologe_common.distribution import Distribution, mixture
from horologe_controller.schedulers.orloj.score_queue import ScoreQueue
from horologe_controller.schedulers.orloj.scores import Scores

SIZES = (1, 2, 4, 8, 16)
MEDIANS_MS = (10, 20, 40, 80)
BASE_NS, SLO_NS, START_NS = ms(5), s(3), s(1_000_000)
PENDING = (100, 1_000, 10_000, 100_000)
BAR_AT, INSERT_BAR_US, CHOOSE_BAR_US = 10_000, 50, 500


class QueueRow(NamedTuple):
    """A row of the result; the field names are the columns."""

    order: str
    pending: int
    insert_us: float
    insert_p99_us: float
    choose_us: float
    choose_p99_us: float
    batch: float
    dropped: float


class QueueBench:
    """A queue that is refilled to `pending` requests after each batch."""

    def __init__(self, queue: ScoreQueue[int], pending: int) -> None:
        self.queue = queue
        self.pending = pending
        self.now_ns = START_NS
        self.rng = np.random.default_rng(1)
        self.key = 0
        self.insert_ns: list[float] = []
        self.choose_ns: list[int] = []
        self.batches: list[int] = []
        self.drops: list[int] = []

    def fill(self) -> None:
        """Insert the missing requests and record the cost per insertion."""
        count = self.pending - len(self.queue)
        if not count:
            return
        deadlines = (self.now_ns + SLO_NS * self.rng.uniform(0.5, 1.5, count)).astype(int).tolist()
        insert, first = self.queue.insert, self.key
        begin_ns = time.thread_time_ns()
        for key, deadline_ns in enumerate(deadlines, first):
            insert(key, key % len(MEDIANS_MS), deadline_ns)
        self.insert_ns.append((time.thread_time_ns() - begin_ns) / count)
        self.key += count

    def step(self) -> None:
        """Drop late requests, remove one batch, refill, advance the time."""
        begin_ns = time.thread_time_ns()
        late = self.queue.timed_out_keys(self.now_ns)
        for key in late:
            self.queue.remove(key)
        _, keys = self.queue.choose_batch(self.now_ns) or (0, [])
        for key in keys:
            self.queue.remove(key)
        self.choose_ns.append(time.thread_time_ns() - begin_ns)
        self.batches.append(len(keys))
        self.drops.append(len(late))
        self.fill()
        self.now_ns += max(1, SLO_NS // 2 * max(1, len(keys) + len(late)) // self.pending)

    def run(self, warmup: int, steps: int) -> None:
        """Fill the queue, run `warmup` steps without recording them, then `steps`."""
        self.fill()
        for _ in range(warmup):
            self.step()
        for record in (self.insert_ns, self.choose_ns, self.batches, self.drops):
            record.clear()
        for _ in range(steps):
            self.step()


def measure(scores: Scores, order: str, pending: int, steps: int) -> QueueRow:
    """Measure the queue in the order `earliest` or `latest`."""
    bench = QueueBench(ScoreQueue(scores, earliest=order == "earliest"), pending)
    gc.collect()
    gc.freeze()
    bench.run(max(50, min(1_000, pending // 8)), steps)
    gc.unfreeze()
    insert_us, choose_us = np.array(bench.insert_ns) / 1e3, np.array(bench.choose_ns) / 1e3
    figures = insert_us.mean(), np.quantile(insert_us, 0.99), choose_us.mean(), np.quantile(choose_us, 0.99)
    sizes = float(np.mean(bench.batches)), float(np.mean(bench.drops))
    return QueueRow(order, pending, *(round(float(value), 1) for value in (*figures, *sizes)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="batches per row")
    parser.add_argument("--pending", type=int, nargs="*", default=PENDING, help="numbers of pending requests")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    machine = report.describe_machine()
    rng = np.random.default_rng(1)
    groups = [Distribution.from_samples(rng.lognormal(np.log(ms(median)), 0.5, 1000)) for median in MEDIANS_MS]
    scores = Scores(SIZES, groups, mixture(groups), BASE_NS, 1e-4)
    rows = [
        measure(scores, order, pending, options.steps)
        for pending in options.pending
        for order in ("earliest", "latest")
    ]
    print(report.markdown(QueueRow._fields, rows))
    bar = [row for row in rows if row.pending == BAR_AT]
    holds = all(row.insert_us <= INSERT_BAR_US and row.choose_us <= CHOOSE_BAR_US for row in bar)
    bars = f"insertion <= {INSERT_BAR_US} us, a batch <= {CHOOSE_BAR_US} us"
    print(f"\n{BAR_AT} pending: {bars}: {'yes' if holds else 'NO'}")
    if options.json:
        report.save_json(options.json, {"machine": machine, "rows": [row._asdict() for row in rows]})
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
