"""Texts of many lengths from several applications. The same texts are sent to every system under comparison."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from horologe_load.arrivals import poisson
from horologe_load.load_loops import open_loop
from horologe_load.samples import ClientOutcome, Samples, no_garbage_collection
from horologe_load.targets import TIMEOUT_S, ModelInput, SdkTarget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from horologe import AsyncClient

TOKENS = 4096
"""Size of the vocabulary that tokens are drawn from."""


class TextSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An application that sends texts. Lengths are log-normal around `median`, clipped to [least, most] tokens."""

    name: str
    share: float
    """Share of all requests."""
    median: float
    sigma: float
    least: int
    most: int

    def draw_lengths(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw the lengths of `count` texts."""
        drawn = np.rint(self.median * np.exp(self.sigma * rng.standard_normal(count)))
        return np.clip(drawn, self.least, self.most).astype(np.int64)


class Text(NamedTuple):
    """A request: arrival time from the start of the run, index of its application, number of tokens."""

    at_ns: int
    application: int
    length: int


class TextResult(NamedTuple):
    """The result of a text. `took_ns` counts from its arrival time. `outcome` is OK only within the SLO."""

    text: Text
    took_ns: int
    outcome: int
    batch_size: int = 0


def draw_texts(
    sources: Sequence[TextSource], count: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw the applications, as indices, and the lengths of `count` requests."""
    shares = np.array([source.share for source in sources])
    applications = rng.choice(len(sources), count, p=shares / shares.sum())
    lengths = np.choose(applications, [source.draw_lengths(count, rng) for source in sources])
    return applications.astype(np.int64), lengths


def poisson_texts(sources: Sequence[TextSource], rate: float, seconds: float, rng: np.random.Generator) -> list[Text]:
    """Draw Poisson arrivals at `rate` texts per second over all applications, in order of time."""
    times = poisson(rate, seconds, rng)
    applications, lengths = draw_texts(sources, len(times), rng)
    return [Text(*fields) for fields in zip(times, applications.tolist(), lengths.tolist(), strict=True)]


def inputs_of(length: int, seed: int) -> dict[str, NDArray[Any]]:
    """Return one row of `length` tokens and its mask."""
    tokens = np.random.default_rng(seed).integers(0, TOKENS, (1, length))
    return {"tokens": tokens, "mask": np.ones((1, length), np.float32)}


async def measure_alone_ms(client: AsyncClient, model: str, lengths: Sequence[int], repeats: int) -> dict[int, float]:
    """Return the median milliseconds of a text of each length that is alone on the worker, over `repeats` rounds."""
    took: dict[int, list[float]] = {length: [] for length in lengths}
    for number in range(repeats + 1):
        for length in lengths:
            reply = await client.predict_full(model, inputs_of(length, number), timeout=TIMEOUT_S)
            took[length] += [reply.exec_ns / 1e6] if number else []
    return {length: statistics.median(times) for length, times in took.items()}


def share_one_at_a_time(texts: Sequence[Text], took_ns: Sequence[float], slo_ns: int) -> float:
    """Return the share that finishes if a device runs texts alone, in order, and skips those that would be late."""
    free_ns, finished = 0.0, 0
    for text, own_ns in zip(texts, took_ns, strict=True):
        end_ns = max(free_ns, text.at_ns) + own_ns
        if end_ns <= text.at_ns + slo_ns:
            free_ns, finished = end_ns, finished + 1
    return finished / max(1, len(texts))


class TextTraffic:
    """Sends texts at their arrival times. The SLO of a text counts from its arrival time."""

    def __init__(self, client: AsyncClient, model: str, applications: Sequence[str], slo_ns: int) -> None:
        self._client = client
        self._model = model
        self._applications = applications
        self._slo_ns = slo_ns

    async def run(self, texts: Sequence[Text]) -> list[TextResult]:
        """Send all texts and wait for the last answer. Return the results in the order of the texts."""
        inputs = [
            ModelInput(self._model, inputs_of(text.length, number), self._applications[text.application])
            for number, text in enumerate(texts)
        ]
        target, samples = SdkTarget(self._client, inputs.__getitem__, self._slo_ns), Samples(keep_every=1)
        with no_garbage_collection():
            await open_loop(target, samples, [text.at_ns for text in texts], drain_s=TIMEOUT_S)
        return [self._result(samples, index, text) for index, text in enumerate(texts)]

    def _result(self, samples: Samples, index: int, text: Text) -> TextResult:
        took_ns = samples.done_ns[index] - samples.due_ns[index]
        outcome = samples.outcomes[index]
        if outcome == ClientOutcome.OK and took_ns > self._slo_ns:
            outcome = ClientOutcome.LATE
        reply: Any = samples.kept.get(index)
        return TextResult(text, took_ns, outcome, reply.batch_size if reply else 0)
