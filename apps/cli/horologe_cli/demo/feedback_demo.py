"""The application of the demo: four models behind one name, one of them inaccurate, before and after feedback."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe import Application

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from horologe import AsyncClient
    from horologe.core.reply import Reply

NAME = "digits"
NOVICE = "novice"
"""The inaccurate model."""
SLO_MS = 10_000.0
"""Deadline of requests that measure accuracy, not latency: all images are sent at once."""
ROUNDS = 3
"""Number of times that every image is sent with feedback."""


class FeedbackEffect(msgspec.Struct):
    """Accuracy on the same images before feedback and after feedback on `observations` answers."""

    policy: str
    images: int
    observations: int
    before: float
    after: float
    weights: dict[str, float]


async def measure_feedback(
    client: AsyncClient, models: Sequence[str], images: NDArray[np.float32], digits: NDArray[np.int64], policy: str
) -> FeedbackEffect:
    """Create the application, measure its accuracy before and after feedback, and delete it."""
    await client.declare(Application(NAME, tuple(models), slo_ms=SLO_MS, policy=policy))
    try:
        before = _accuracy(await _predict(client, images), digits)
        for _ in range(ROUNDS):
            replies = await _predict(client, images)
            await client.feedback(NAME, replies, digits.tolist())
        after = _accuracy(await _predict(client, images), digits)
        statistics = (await client.application(NAME)).statistics
    finally:
        await client.withdraw(NAME)
    weights = {entry.model: entry.weight for entry in statistics}
    return FeedbackEffect(policy, len(images), ROUNDS * len(images), before, after, weights)


async def _predict(client: AsyncClient, images: NDArray[np.float32]) -> list[Reply]:
    return list(await asyncio.gather(*(client.ask(NAME, images[at : at + 1]) for at in range(len(images)))))


def _accuracy(replies: Sequence[Reply], digits: NDArray[np.int64]) -> float:
    return float(np.mean([reply.prediction[0] == digit for reply, digit in zip(replies, digits, strict=True)]))
