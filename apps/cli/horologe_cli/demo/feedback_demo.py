"""The demo's application: four models behind one name, one of them poor, and what feedback makes of that."""

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
"""The poor one."""
SLO_MS = 10_000.0
"""Of all images at once; accuracy is asked for here, not speed."""
ROUNDS = 3
"""How often every image is asked about with feedback."""


class FeedbackEffect(msgspec.Struct):
    """Shares of right answers to the same images before any feedback and after so many `observations`."""

    policy: str
    images: int
    observations: int
    before: float
    after: float
    weights: dict[str, float]


async def measure_feedback(
    client: AsyncClient, models: Sequence[str], images: NDArray[np.float32], digits: NDArray[np.int64], policy: str
) -> FeedbackEffect:
    """Declare the application, ask, tell it the truth, ask again, and leave nothing behind."""
    await client.declare(Application(NAME, tuple(models), slo_ms=SLO_MS, policy=policy))
    try:
        before = _right(await _ask(client, images), digits)
        for _ in range(ROUNDS):
            replies = await _ask(client, images)
            await client.feedback(NAME, replies, digits.tolist())
        after = _right(await _ask(client, images), digits)
        standings = (await client.application(NAME)).statistics
    finally:
        await client.withdraw(NAME)
    weights = {standing.model: standing.weight for standing in standings}
    return FeedbackEffect(policy, len(images), ROUNDS * len(images), before, after, weights)


async def _ask(client: AsyncClient, images: NDArray[np.float32]) -> list[Reply]:
    return list(await asyncio.gather(*(client.ask(NAME, images[at : at + 1]) for at in range(len(images)))))


def _right(replies: Sequence[Reply], digits: NDArray[np.int64]) -> float:
    return float(np.mean([reply.prediction[0] == digit for reply, digit in zip(replies, digits, strict=True)]))
