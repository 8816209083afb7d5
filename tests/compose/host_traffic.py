"""Requests from the host to the model `twice` of a composed system: single ones, and a steady load."""

from __future__ import annotations

import json
import threading
from collections import Counter
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import numpy as np
import tritonclient.grpc as triton

from horologe import Client
from horologe_common.status import HorologeError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from compose.stack import Stack

CLIENTS, REPLACEMENT_SLO_MS = 4, 30_000
INFER = "/v2/models/twice/infer"


def rows_of(number: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.full((1, 4), number, np.float32)


def bearer(keys: Path, name: str = "client") -> dict[str, str]:
    return {"Authorization": f"Bearer {(keys / 'http' / f'{name}.secret').read_text().strip()}"}


def infer_body(number: int, **parameters: int) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [number] * 4}
    return json.dumps({"inputs": [tensor], "parameters": parameters}).encode()


def infer(stack: Stack, keys: Path, number: int) -> Any:
    url = f"http://127.0.0.1:{stack.http}{INFER}"
    request = Request(url, infer_body(number), bearer(keys))
    with urlopen(request, timeout=10) as answer:
        return json.load(answer)["outputs"][0]["data"]


def infer_over_grpc(address: str, headers: dict[str, str], number: int) -> Any:
    tensor = triton.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(rows_of(number))
    with triton.InferenceServerClient(address) as client:
        result = client.infer("twice", [tensor], headers={name.lower(): headers[name] for name in headers})
        return result.as_numpy(result.get_response().outputs[0].name).ravel().tolist()


@contextmanager
def steady_load(stack: Stack, keys: Path) -> Iterator[Counter[str]]:
    """Send requests over SDK and HTTP while the context is open. Yield the outcomes: OK, HTTP OK, WRONG or the error.

    HTTP requests on new connections are not counted if they fail: the engine's proxy accepts connections for a
    container that does not listen. A 429 or 503 is repeated, as HTTP clients do.
    """
    outcomes: Counter[str] = Counter()
    ended = threading.Event()

    def send() -> None:
        number = 0
        with Client(f"tcp://127.0.0.1:{stack.clients}", keys=keys) as client:
            while not ended.wait(0.02):
                number += 1
                try:
                    answer = client.predict("twice", rows_of(number), slo_ms=REPLACEMENT_SLO_MS)
                    outcomes["OK" if answer[0, 0] == 2 * number else "WRONG"] += 1
                except HorologeError as error:
                    outcomes[f"{error.status.name}: {error.reason}"] += 1

    def send_http() -> None:
        number, connection = 0, HTTPConnection("127.0.0.1", stack.http, timeout=REPLACEMENT_SLO_MS / 1e3)
        while not ended.wait(0.02):
            number += 1
            was_open = connection.sock is not None
            try:
                connection.request("POST", INFER, infer_body(number, slo_ms=REPLACEMENT_SLO_MS), bearer(keys))
                response = connection.getresponse()
                answer = json.loads(response.read())
            except (OSError, HTTPException) as error:
                connection.close()
                if was_open:
                    outcomes[f"HTTP: {error!r}"] += 1
                continue
            if response.status == 200:
                outcomes["HTTP OK" if answer["outputs"][0]["data"] == [2 * number] * 4 else "WRONG"] += 1
            elif response.status not in (429, 503):
                outcomes[f"HTTP {response.status}: {answer}"] += 1
        connection.close()

    threads = [threading.Thread(target=work) for work in (*[send] * CLIENTS, send_http)]
    with ExitStack() as cleanup:
        for thread in threads:
            thread.start()
            cleanup.callback(thread.join)
        cleanup.callback(ended.set)
        yield outcomes
