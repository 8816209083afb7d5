"""Requests with images of digits, over the SDK and HTTP, whose right answers are known from before the first fault."""

from __future__ import annotations

import json
import time
from collections import Counter
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from horologe_cli.demo.digits import held_out

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from horologe import AsyncClient

PAUSE_S = 0.1
TIMEOUT_S = 60.0
REFERENCE_SLO_MS = 10_000
HTTP_OK, HTTP_ERRORS = 200, range(400, 600)
TOLERANCE = 1e-3
"""Batches of different sizes sum in different orders."""


class References(NamedTuple):
    """Images [n, 1, ...], and the answers that a model gave to them before the first fault."""

    model: str
    images: NDArray[np.float32]
    answers: NDArray[np.float32]

    def is_right(self, at: int, answer: Any) -> bool:
        """Return True if `answer` is the answer to image `at`."""
        got = np.asarray(answer, np.float32).reshape(-1)
        return got.shape == self.answers[at].shape and bool(np.allclose(got, self.answers[at], atol=TOLERANCE))


async def ask_references(client: AsyncClient, model: str) -> References:
    """Ask for the answer to each held-out image, with a long deadline."""
    images = held_out()[0][:, None]
    answers = [np.asarray(await client.predict(model, image, slo_ms=REFERENCE_SLO_MS)).reshape(-1) for image in images]
    return References(model, images, np.array(answers, np.float32))


class HttpRequests:
    """One request after the other over HTTP, with a new connection after each failure, until `ended` is set."""

    def __init__(self, address: str, keys: Path, references: References, slo_ms: float) -> None:
        self.statuses: Counter[str] = Counter()
        """`unanswered`: no answer in `TIMEOUT_S`. `no connection`: the frontend has gone, and the client sees it."""
        self.wrong: list[str] = []
        self.ended = False
        self._address = address
        self._headers = {"Authorization": f"Bearer {(keys / 'http' / 'client.secret').read_text().strip()}"}
        self._references = references
        self._parameters = {"timeout": round(slo_ms * 1e3)}

    def run(self) -> None:
        """Send requests until `ended`."""
        connection, number = HTTPConnection(self._address, timeout=TIMEOUT_S), 0
        path = f"/v2/models/{self._references.model}/infer"
        while not self.ended:
            time.sleep(PAUSE_S)
            at, number = number % len(self._references.images), number + 1
            try:
                connection.request("POST", path, self._body(at), self._headers)
                answer = connection.getresponse()
                self._check(at, answer.status, answer.read())
            except (HTTPException, OSError) as error:
                self.statuses["unanswered" if isinstance(error, TimeoutError) else "no connection"] += 1
                connection.close()
        connection.close()

    def _body(self, at: int) -> str:
        image = self._references.images[at]
        tensor = {"name": "image", "datatype": "FP32", "shape": image.shape, "data": image.ravel().tolist()}
        return json.dumps({"inputs": [tensor], "parameters": self._parameters})

    def _check(self, at: int, status: int, body: bytes) -> None:
        self.statuses[str(status)] += 1
        if status == HTTP_OK:
            outputs = json.loads(body)["outputs"]
            if not self._references.is_right(at, outputs[0]["data"]):
                self.wrong.append(f"HTTP: image {at}: got {outputs}")
        elif status not in HTTP_ERRORS or b"error" not in body:
            self.wrong.append(f"HTTP: status {status}: {body[:200]!r}")
