"""Mixed traffic to every model of a server: a low rate, a high rate and bursts, over the SDK and over HTTP.

A server learns execution times from its first minutes of traffic. A benchmark sends this traffic before it measures.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from horologe_load.arrivals import poisson
from horologe_load.load_loops import closed_loop, open_loop
from horologe_load.model_inputs import encode_oip, make_pool
from horologe_load.samples import ClientOutcome, Samples
from horologe_load.targets import ModelInput, SdkTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from horologe import AsyncClient
    from horologe_common.models import ModelSpec
    from horologe_load.model_inputs import ModelPool

    OnPhase = Callable[[str, float], None]

CYCLE_S = 20.0
"""Longest cycle of a low rate, a high rate to each model in turn, and bursts."""
LOW_RATE = 40.0
"""Requests per second to all models together."""
IN_FLIGHT = 32
BURST, BURST_EVERY_NS = 64, 500_000_000
SLO_NS = 200_000_000
"""Deadline of requests at the low rate and in bursts. Requests at the high rate have none."""
JSON_ELEMENTS = 10_000
"""Larger inputs are not sent as JSON."""
HTTP_PAUSE_S = 0.005
ANSWER_BYTES = 64 << 20
"""Longer answers are not read to their end."""
HTTP_OK = 200
_DYNAMIC = re.compile(r'^horologe_model_dynamic\{model="([^"]*)",version="([^"]*)"\} (\S+)$', re.MULTILINE)


def dynamic_models(pages: Iterable[str]) -> dict[str, bool] | None:
    """Return whether each model `name/version` is dynamic, from texts of /metrics; None if no text says so."""
    found = {f"{name}/{version}": float(value) > 0 for page in pages for name, version, value in _DYNAMIC.findall(page)}
    return found or None


async def send_mixed_traffic(
    client: AsyncClient,
    http: str,
    specs: Sequence[ModelSpec],
    seconds: float,
    on_phase: OnPhase,
    headers: Mapping[str, str] | None = None,
) -> Counter[str]:
    """Send mixed traffic for about `seconds` over `client` and to the URL `http`. Return requests by outcome.

    Calls `on_phase(text, share)` before each phase with the share of the time that has passed. `headers`: of each HTTP
    request.
    """
    rng = np.random.default_rng(1)
    pools = [make_pool(spec, rng) for spec in specs]
    stop = threading.Event()
    counts: list[Counter[str]] = [Counter(), Counter(), Counter()]
    senders = [
        threading.Thread(target=_send_http, args=(http, headers or {}, pools, binary, stop, counts[1 + binary]))
        for binary in (False, True)
    ]
    for sender in senders:
        sender.start()
    cycles = max(1, round(seconds / CYCLE_S))
    try:
        for cycle in range(cycles):
            await _send_cycle(client, pools, seconds / cycles, counts[0], _within(on_phase, cycle, cycles))
    finally:
        stop.set()
        for sender in senders:
            sender.join()
    return sum(counts, Counter())


def _within(on_phase: OnPhase, cycle: int, cycles: int) -> OnPhase:
    return lambda text, share: on_phase(text, (cycle + share) / cycles)


async def _send_cycle(
    client: AsyncClient,
    pools: Sequence[ModelPool],
    seconds: float,
    outcomes: Counter[str],
    on_phase: OnPhase,
) -> None:
    on_phase("low rate", 0.0)
    low = poisson(LOW_RATE, 0.3 * seconds, round(time.monotonic()))
    outcomes += await _send_open(client, pools, low)
    for number, pool in enumerate(pools):
        on_phase(f"high rate: {pool.spec.name}", 0.3 + 0.4 * number / len(pools))
        samples = Samples()
        await closed_loop(_target(client, [pool], 0), samples, IN_FLIGHT, 0.4 * seconds / len(pools))
        outcomes += _by_outcome(samples)
    on_phase("bursts", 0.7)
    bursts = range(0, round(0.3e9 * seconds), BURST_EVERY_NS)
    outcomes += await _send_open(client, pools, [at_ns for at_ns in bursts for _ in range(BURST)])


async def _send_open(client: AsyncClient, pools: Sequence[ModelPool], arrivals: Sequence[int]) -> Counter[str]:
    samples = Samples()
    await open_loop(_target(client, pools, SLO_NS), samples, arrivals)
    return _by_outcome(samples)


def _target(client: AsyncClient, pools: Sequence[ModelPool], slo_ns: int) -> SdkTarget:
    def input_at(index: int) -> ModelInput:
        turn, at = divmod(index, len(pools))
        spec, inputs = pools[at]
        return ModelInput(spec.name, inputs[turn % len(inputs)])

    return SdkTarget(client, input_at, slo_ns)


def _by_outcome(samples: Samples) -> Counter[str]:
    return Counter(ClientOutcome(outcome).name for outcome in samples.outcomes)


def _send_http(
    url: str,
    headers: Mapping[str, str],
    pools: Sequence[ModelPool],
    binary: bool,
    stop: threading.Event,
    outcomes: Counter[str],
) -> None:
    """Send one request after the other to all models in turn until `stop` is set."""
    connection = HTTPConnection(url.removeprefix("http://"), timeout=10)
    for index in count():
        if stop.wait(HTTP_PAUSE_S):
            break
        turn, at = divmod(index, len(pools))
        spec, inputs = pools[at]
        arrays = inputs[turn % len(inputs)]
        if not binary and sum(array.size for array in arrays.values()) > JSON_ELEMENTS:
            continue
        head, body = encode_oip(arrays, {tensor.name: tensor.datatype for tensor in spec.inputs}, binary)
        try:
            connection.request("POST", f"/v2/models/{spec.name}/infer", body, {**head, **headers})
            answer = connection.getresponse()
            if len(answer.read(ANSWER_BYTES)) == ANSWER_BYTES:
                connection.close()
            outcomes["OK" if answer.status == HTTP_OK else f"HTTP {answer.status}"] += 1
        except (HTTPException, OSError):
            connection.close()
            outcomes["HTTP FAILED"] += 1
    with suppress(OSError):
        connection.close()
