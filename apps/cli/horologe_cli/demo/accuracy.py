"""Accuracy of the demo's models on images that none of them has seen, asked one image at a time."""

from __future__ import annotations

import asyncio
import json
import time
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe import AsyncClient
    from horologe_common.models import ModelSpec

ROWS_A_REQUEST = 16
"""Over HTTP, where a request has a head: several images each."""
PATIENCE_S = 30.0
"""Accuracy is asked for here, not speed."""
HTTP_OK = 200


class Accuracy(msgspec.Struct):
    model: str
    via: str
    """SDK or HTTP."""
    images: int
    correct: int
    seconds: float
    exec_ms: float = 0.0
    """Of one image, at the batch size that was most efficient (SDK only)."""

    @property
    def share(self) -> float:
        return self.correct / self.images if self.images else 0.0


async def over_sdk(
    client: AsyncClient, spec: ModelSpec, images: NDArray[np.float32], digits: NDArray[np.int64]
) -> Accuracy:
    """One request an image, all at once: the server makes the batches."""
    start = time.monotonic()
    requests = [
        client.submit(spec.name, _shaped(images[at : at + 1], spec), timeout=PATIENCE_S) for at in range(len(images))
    ]
    replies = await asyncio.gather(*requests)
    answers = np.array([int(_digits(np.asarray(reply.value))[0]) for reply in replies])
    cost = min(reply.exec_ns / max(1, reply.batch_size) for reply in replies) / 1e6
    seconds = time.monotonic() - start
    return Accuracy(spec.name, "SDK", len(images), int((answers == digits).sum()), seconds, cost)


def over_http(url: str, spec: ModelSpec, images: NDArray[np.float32], digits: NDArray[np.int64]) -> Accuracy:
    """The same question as Open Inference Protocol requests in JSON. Raises `OSError` and `ValueError`."""
    start = time.monotonic()
    rows = min(ROWS_A_REQUEST, spec.max_batch)
    connection = HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE_S)
    answers: list[int] = []
    try:
        for at in range(0, len(images), rows):
            answers += _infer(connection, spec, _shaped(images[at : at + rows], spec))
    finally:
        connection.close()
    correct = int((np.array(answers) == digits).sum())
    return Accuracy(spec.name, "HTTP", len(images), correct, time.monotonic() - start)


def _infer(connection: HTTPConnection, spec: ModelSpec, rows: NDArray[np.float32]) -> list[int]:
    tensor = spec.inputs[0]
    data = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(rows.shape), "data": rows.ravel().tolist()}
    question = {"inputs": [data], "parameters": {"timeout": round(PATIENCE_S * 1e6)}}
    connection.request("POST", f"/v2/models/{spec.name}/infer", json.dumps(question))
    answer = connection.getresponse()
    body: Any = json.loads(answer.read())
    if answer.status != HTTP_OK:
        raise ValueError(f"{spec.name} over HTTP: {answer.status}: {body.get('error')}")
    output = body["outputs"][0]
    return [int(digit) for digit in _digits(np.array(output["data"]).reshape(output["shape"]))]


def _shaped(images: NDArray[np.float32], spec: ModelSpec) -> NDArray[np.float32]:
    """The pixels in the shape that the model declares."""
    return images.reshape(len(images), *spec.inputs[0].shape[1:])


def _digits(scores: NDArray[Any]) -> NDArray[np.int64]:
    """The likeliest digit of each row; a model may also answer with the digit itself."""
    digits: NDArray[np.int64] = scores.argmax(axis=-1) if scores.ndim > 1 else scores.astype(np.int64)
    return digits
