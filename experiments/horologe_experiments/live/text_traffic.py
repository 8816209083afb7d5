"""Texts of many lengths from several applications: drawn once, sent the same to whichever system, timed alone."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from horologe_common.clock import s
from horologe_common.status import HorologeError, Status
from horologe_load.open_loop import HEAD_START_NS, PATIENCE_S, quiet_collector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from horologe import AsyncClient

TOKENS = 4096
"""Token numbers that texts are made of."""
UNSENT = "UNSENT"
"""In the place of a status: its deadline had passed when the generator came to it."""
OK, LATE = Status.OK.name, Status.LATE.name


class Application(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who sends texts. The logarithm of their length is normal around that of `median`, cut at `least` and `most`."""

    name: str
    share: float
    """Of all requests."""
    median: float
    sigma: float
    least: int
    most: int

    def lengths(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        drawn = np.rint(self.median * np.exp(self.sigma * rng.standard_normal(count)))
        return np.clip(drawn, self.least, self.most).astype(np.int64)


class Text(NamedTuple):
    """A request: when it is to be sent, from the start; its application, by number; its tokens."""

    at_ns: int
    application: int
    length: int


class Ended(NamedTuple):
    """What became of a text. `took_ns` counts from `text.at_ns`; `status`: a `Status` by name, or `UNSENT`.

    OK is only what came in time by our own clock.
    """

    text: Text
    took_ns: int
    status: str
    batch_size: int = 0


def drawn(
    applications: Sequence[Application], count: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Applications, by number, and lengths of so many requests."""
    shares = np.array([one.share for one in applications])
    who = rng.choice(len(applications), count, p=shares / shares.sum())
    lengths = np.choose(who, [one.lengths(count, rng) for one in applications])
    return who.astype(np.int64), lengths


def poisson(applications: Sequence[Application], rate: float, seconds: float, rng: np.random.Generator) -> list[Text]:
    """An open loop of `rate` requests a second of all applications together, in order of time."""
    count = rng.poisson(rate * seconds)
    times = np.sort(rng.integers(0, s(seconds), count))
    who, lengths = drawn(applications, count, rng)
    return [Text(*one) for one in zip(times.tolist(), who.tolist(), lengths.tolist(), strict=True)]


def inputs_of(length: int, seed: int) -> dict[str, NDArray[Any]]:
    """One row of so many tokens, and its mask."""
    tokens = np.random.default_rng(seed).integers(0, TOKENS, (1, length))
    return {"tokens": tokens, "mask": np.ones((1, length), np.float32)}


async def alone_ms(client: AsyncClient, model: str, lengths: Sequence[int], repeats: int) -> dict[int, float]:
    """Milliseconds that a text of each length takes by itself: medians of `repeats`, in turn, after one uncounted."""
    took: dict[int, list[float]] = {length: [] for length in lengths}
    for number in range(repeats + 1):
        for length in lengths:
            reply = await client.predict_full(model, inputs_of(length, number), timeout=PATIENCE_S)
            took[length] += [reply.exec_ns / 1e6] if number else []
    return {length: statistics.median(times) for length, times in took.items()}


def one_at_a_time(texts: Sequence[Text], took_ns: Sequence[float], slo_ns: int) -> float:
    """The share that would finish on a device that runs texts alone, in order, and leaves out what would be late."""
    free_ns, finished = 0.0, 0
    for text, own_ns in zip(texts, took_ns, strict=True):
        end_ns = max(free_ns, text.at_ns) + own_ns
        if end_ns <= text.at_ns + slo_ns:
            free_ns, finished = end_ns, finished + 1
    return finished / max(1, len(texts))


class Replay:
    """Sends texts at their times, each with `slo_ns` from its time on, and notes how they end."""

    def __init__(self, client: AsyncClient, model: str, applications: Sequence[str], slo_ns: int) -> None:
        self._client = client
        self._model = model
        self._applications = applications
        self._slo_ns = slo_ns
        self._ended: list[Ended] = []
        self._open = 0
        self._all_ended = asyncio.Event()

    async def run(self, texts: Sequence[Text]) -> list[Ended]:
        """Returns when all have ended; in the order of the texts."""
        ready = [inputs_of(text.length, number) for number, text in enumerate(texts)]
        start_ns = time.monotonic_ns() + HEAD_START_NS
        with quiet_collector():
            for text, inputs in zip(texts, ready, strict=True):
                wait_ns = start_ns + text.at_ns - time.monotonic_ns()
                await asyncio.sleep(max(0, wait_ns) / 1e9)
                self._send(start_ns, text, inputs)
            if self._open:
                await self._all_ended.wait()
        return sorted(self._ended)

    def _send(self, start_ns: int, text: Text, inputs: dict[str, NDArray[Any]]) -> None:
        behind_ns = time.monotonic_ns() - start_ns - text.at_ns
        if behind_ns >= self._slo_ns:
            self._ended.append(Ended(text, behind_ns, UNSENT))
            return
        self._open += 1
        self._all_ended.clear()
        application, slo_ms = self._applications[text.application], (self._slo_ns - behind_ns) / 1e6
        future = self._client.submit(self._model, inputs, slo_ms=slo_ms, application=application)
        future.add_done_callback(lambda done: self._took(done, start_ns, text))

    def _took(self, future: asyncio.Future[Any], start_ns: int, text: Text) -> None:
        took_ns = time.monotonic_ns() - start_ns - text.at_ns
        error = future.exception()
        if error is not None and not isinstance(error, HorologeError):
            raise error
        if error is not None:
            self._ended.append(Ended(text, took_ns, error.status.name))
        else:
            status = OK if took_ns <= self._slo_ns else LATE
            self._ended.append(Ended(text, took_ns, status, future.result().batch_size))
        self._open -= 1
        if not self._open:
            self._all_ended.set()
