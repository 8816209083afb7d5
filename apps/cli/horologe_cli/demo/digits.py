"""The data set of the demo, and the accuracy of the demo's models on its held-out images, before and after feedback.

The data set is in digits.npz: 1,797 real images of 8x8 pixels with values from 0 to 16 (E. Alpaydin and C. Kaynak,
Optical Recognition of Handwritten Digits, UCI Machine Learning Repository 1998, test part, CC BY 4.0).
`models/export.py` copies it from scikit-learn. Every fourth image is held out: the split needs no random numbers.
"""

from __future__ import annotations

import asyncio
import json
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe import Application

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from horologe import AsyncClient
    from horologe.core.reply import Reply
    from horologe_common.models import ModelSpec

DATA = Path(__file__).with_name("digits.npz")
"""`images` [1797, 64] and `digits` [1797], as bytes."""
ROWS_PER_REQUEST = 16
"""Images per HTTP request. HTTP headers make requests of one image expensive."""
TIMEOUT_S = 30.0
"""Timeout of requests that measure accuracy, not latency."""
HTTP_OK = 200
ANSWER_BYTES = 16 << 20
HELD_OUT_EVERY = 4
APPLICATION = "digits"
"""Four models behind one name, one of them inaccurate."""
NOVICE = "novice"
"""The inaccurate model."""
FEEDBACK_SLO_MS = 10_000.0
"""Deadline of requests that measure accuracy, not latency: all images are sent at once."""
ROUNDS = 3
"""Number of times that every image is sent with feedback."""


def training() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return images [1347, 64] and digits [1347] to fit models to."""
    images, digits, held = _split()
    return images[~held], digits[~held]


def held_out() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return images [450, 64] and digits [450] that no model was fitted to."""
    images, digits, held = _split()
    return images[held], digits[held]


class Accuracy(msgspec.Struct):
    """Accuracy of a model on the held-out images."""

    model: str
    via: str
    """SDK or HTTP."""
    images: int
    correct: int
    seconds: float
    exec_ms: float = 0.0
    """EXEC time per image, of the most efficient batch (SDK only)."""

    @property
    def share(self) -> float:
        return self.correct / self.images if self.images else 0.0


async def measure_over_sdk(
    client: AsyncClient, spec: ModelSpec, images: NDArray[np.float32], digits: NDArray[np.int64]
) -> Accuracy:
    """Send one request for each image, all at once; the server forms the batches."""
    start = time.monotonic()
    requests = [
        client.submit(spec.name, _shaped(images[at : at + 1], spec), timeout=TIMEOUT_S) for at in range(len(images))
    ]
    replies = await asyncio.gather(*requests)
    predicted = np.array([int(_digits(np.asarray(reply.value))[0]) for reply in replies])
    cost = min(reply.exec_ns / max(1, reply.batch_size) for reply in replies) / 1e6
    seconds = time.monotonic() - start
    return Accuracy(spec.name, "SDK", len(images), int((predicted == digits).sum()), seconds, cost)


def measure_over_http(
    url: str, headers: Mapping[str, str], spec: ModelSpec, images: NDArray[np.float32], digits: NDArray[np.int64]
) -> Accuracy:
    """Send the images as Open Inference Protocol requests in JSON. Raises OSError and ValueError."""
    start = time.monotonic()
    rows = min(ROWS_PER_REQUEST, spec.max_batch)
    connection = HTTPConnection(url.removeprefix("http://"), timeout=TIMEOUT_S)
    predicted: list[int] = []
    try:
        for at in range(0, len(images), rows):
            predicted += _infer(connection, headers, spec, _shaped(images[at : at + rows], spec))
    finally:
        connection.close()
    correct = int((np.array(predicted) == digits).sum())
    return Accuracy(spec.name, "HTTP", len(images), correct, time.monotonic() - start)


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
    await client.declare(Application(APPLICATION, tuple(models), slo_ms=FEEDBACK_SLO_MS, policy=policy))
    try:
        before = _accuracy(await _predict(client, images), digits)
        for _ in range(ROUNDS):
            replies = await _predict(client, images)
            await client.feedback(APPLICATION, replies, digits.tolist())
        after = _accuracy(await _predict(client, images), digits)
        statistics = (await client.application(APPLICATION)).statistics
    finally:
        await client.withdraw(APPLICATION)
    weights = {entry.model: entry.weight for entry in statistics}
    return FeedbackEffect(policy, len(images), ROUNDS * len(images), before, after, weights)


def _infer(
    connection: HTTPConnection, headers: Mapping[str, str], spec: ModelSpec, rows: NDArray[np.float32]
) -> list[int]:
    tensor = spec.inputs[0]
    data = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(rows.shape), "data": rows.ravel().tolist()}
    request = {"inputs": [data], "parameters": {"timeout": round(TIMEOUT_S * 1e6)}}
    connection.request("POST", f"/v2/models/{spec.name}/infer", json.dumps(request), dict(headers))
    answer = connection.getresponse()
    body: Any = json.loads(answer.read(ANSWER_BYTES))
    if answer.status != HTTP_OK:
        raise ValueError(f"{spec.name} over HTTP: {answer.status}: {body.get('error')}")
    output = body["outputs"][0]
    return [int(digit) for digit in _digits(np.array(output["data"]).reshape(output["shape"]))]


def _shaped(images: NDArray[np.float32], spec: ModelSpec) -> NDArray[np.float32]:
    """Return the pixels in the shape that the model declares."""
    return images.reshape(len(images), *spec.inputs[0].shape[1:])


def _digits(scores: NDArray[Any]) -> NDArray[np.int64]:
    """Return the most likely digit of each row. A model without scores returns the digit itself."""
    digits: NDArray[np.int64] = scores.argmax(axis=-1) if scores.ndim > 1 else scores.astype(np.int64)
    return digits


def _split() -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_]]:
    with np.load(DATA) as data:
        images, digits = data["images"].astype(np.float32), data["digits"].astype(np.int64)
    return images, digits, np.arange(len(images)) % HELD_OUT_EVERY == 0


async def _predict(client: AsyncClient, images: NDArray[np.float32]) -> list[Reply]:
    return list(await asyncio.gather(*(client.ask(APPLICATION, images[at : at + 1]) for at in range(len(images)))))


def _accuracy(replies: Sequence[Reply], digits: NDArray[np.int64]) -> float:
    return float(np.mean([reply.prediction[0] == digit for reply, digit in zip(replies, digits, strict=True)]))
