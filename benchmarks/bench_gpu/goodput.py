"""Goodput of one device: an in-process loop of the batching policy, against the raw model loop.

Requests arrive at random (Poisson, seeded) at `OVERLOAD` times the device's capacity. Before each EXEC the loop drops
the requests that cannot meet their deadline, then takes the largest batch that its oldest request can wait for. If that
batch is `SPARE` times smaller than the largest possible one, the loop drops the oldest request instead, as Horologe's
scheduler does. The bound is the raw loop's: the largest b / exec(b) with exec(b) inside the deadline.
"""

from __future__ import annotations

import random
from collections import deque
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from bench_gpu.figures import Row, row, sampled
from bench_gpu.rig import BATCH_SIZES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench_gpu.rig import Rig

SLOS_MS = (5, 10, 25, 50, 100)
OVERLOAD, SPARE, SECONDS = 1.5, 4, 3.0
RAW_SAMPLES = 300
ESTIMATE = 0.99
"""Quantile of measured times that the loop plans with, as the controller does."""


def goodput(rig: Rig) -> Iterator[Row]:
    """Measure rows per second answered inside the deadline. Latency is from arrival to the end of EXEC."""
    for name in rig.nets:
        runners = {size: rig.runner(name, size) for size in BATCH_SIZES}
        host = {size: sampled(_host_timed(runners[size]), rig.samples(RAW_SAMPLES), 5) for size in BATCH_SIZES}
        median_ns = {size: sorted(times)[len(times) // 2] for size, times in host.items()}
        planned_ns = {size: sorted(times)[int(ESTIMATE * len(times))] for size, times in host.items()}
        for slo_ms in SLOS_MS:
            slo_ns = round(slo_ms * 1e6 * (40 if rig.pretend else 1))
            raw = max((size / time_ns for size, time_ns in median_ns.items() if time_ns <= slo_ns), default=0.0) * 1e9
            if not raw:
                yield row("goodput", f"{name} SLO {slo_ms} ms", (), **{"raw rows/s": 0.0})
                continue
            served = _serve(runners, planned_ns, slo_ns, OVERLOAD * raw, 0.1 if rig.pretend else SECONDS)
            notes = {"rows/s": served.pop("rows/s"), "raw rows/s": raw, **served}
            notes["of raw"] = notes["rows/s"] / raw
            yield row("goodput", f"{name} SLO {slo_ms} ms", served.pop("latencies"), **_without(notes, "latencies"))


def _serve(
    runners: dict[int, Callable[[], int]], planned_ns: dict[int, int], slo_ns: int, rate: float, seconds: float
) -> dict[str, Any]:
    rng = random.Random(1)
    queue: deque[int] = deque()
    latencies: list[int] = []
    late = dropped = 0
    batches: list[int] = []
    start_ns = perf_counter_ns()
    next_ns, stop_ns = float(start_ns), start_ns + seconds * 1e9
    while (now_ns := perf_counter_ns()) < stop_ns:
        while next_ns <= now_ns:
            queue.append(int(next_ns))
            next_ns += rng.expovariate(rate) * 1e9
        while queue and queue[0] + slo_ns < now_ns + planned_ns[1]:
            queue.popleft()
            dropped += 1
        size = _batch(queue, planned_ns, slo_ns, now_ns)
        if not queue:
            continue
        if not size:
            queue.popleft()
            dropped += 1
            continue
        batch_requests = [queue.popleft() for _ in range(min(size, len(queue)))]
        runners[size]()
        end_ns = perf_counter_ns()
        batches.append(len(batch_requests))
        for arrived_ns in batch_requests:
            late += end_ns > arrived_ns + slo_ns
            latencies.append(end_ns - arrived_ns)
    elapsed_s = (perf_counter_ns() - start_ns) / 1e9
    mean = sum(batches) / max(1, len(batches))
    figures = {"rows/s": (len(latencies) - late) / elapsed_s, "late": late, "dropped": dropped, "mean batch": mean}
    return {**figures, "latencies": latencies}


def _batch(queue: deque[int], planned_ns: dict[int, int], slo_ns: int, now_ns: int) -> int:
    """Return the compiled size to run; 0 if the oldest request should be dropped."""
    if not queue:
        return 0
    wanted = next((size for size in BATCH_SIZES if size >= len(queue)), BATCH_SIZES[-1])
    fitting = [size for size in BATCH_SIZES if size <= wanted and now_ns + planned_ns[size] <= queue[0] + slo_ns]
    if not fitting:
        return 0
    possible = [size for size in BATCH_SIZES if size <= wanted and planned_ns[size] <= slo_ns]
    return 0 if possible and fitting[-1] * SPARE <= possible[-1] else fitting[-1]


def _host_timed(run: Callable[[], int]) -> Callable[[], int]:
    """Return a function that times `run` by the host's clock."""

    def timed_run() -> int:
        begin_ns = perf_counter_ns()
        run()
        return perf_counter_ns() - begin_ns

    return timed_run


def _without(notes: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in notes.items() if key != name}
