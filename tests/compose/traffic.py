"""Traffic beside a test: requests over the SDK and HTTP at a steady rate, and the outcome of each."""

from __future__ import annotations

import json
import threading
from collections import Counter
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import numpy as np

from horologe import Client
from horologe_common.status import HorologeError, Status

PAUSE_S = 0.05
SLO_MS = 8_000


class Traffic:
    """Asks the model `twice` for twice a number that no other request has, until the block ends.

    `outcomes` counts OK, WRONG, statuses, and BROKEN: an HTTP connection that ended without an answer.
    """

    def __init__(self, clients: str, http: int, keys: Path) -> None:
        self._clients, self._http, self._keys = clients, http, keys
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send_sdk), threading.Thread(target=self._send_http)]
        self.outcomes: Counter[str] = Counter()
        self.reasons: list[str] = []

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def count(self) -> int:
        """Return the number of answered requests."""
        return sum(self.outcomes.values())

    def _send_sdk(self) -> None:
        number = 0
        with Client(self._clients, keys=self._keys) as client:
            while not self._stop.wait(PAUSE_S):
                number += 1
                try:
                    answer = client.predict("twice", np.full((1, 4), number, np.float32), slo_ms=SLO_MS)
                    self._note("OK" if answer[0, 0] == 2 * number else "WRONG", f"{number}: {answer}")
                except HorologeError as error:
                    self._note(Status(error.status).name, f"SDK: {error}")

    def _send_http(self) -> None:
        key = (self._keys / "http" / "clients.txt").read_text().strip()
        number = 0
        while not self._stop.wait(PAUSE_S):
            number -= 1
            tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [number] * 4}
            body = json.dumps({"inputs": [tensor], "parameters": {"slo_ms": SLO_MS}})
            connection = HTTPConnection("127.0.0.1", self._http, timeout=2 * SLO_MS / 1e3)
            try:
                connection.request("POST", "/v2/models/twice/infer", body, {"Authorization": f"Bearer {key}"})
                response = connection.getresponse()
                answer: Any = json.loads(response.read())
                if response.status == 200:
                    right = answer["outputs"][0]["data"] == [2 * number] * 4
                    self._note("OK" if right else "WRONG", f"{number}: {answer}")
                else:
                    self._note(answer["status"], f"HTTP: {answer['error']}")
            except (OSError, HTTPException) as error:
                self._note("BROKEN", repr(error))
            finally:
                connection.close()

    def _note(self, outcome: str, reason: str) -> None:
        self.outcomes[outcome] += 1
        if outcome != "OK" and len(self.reasons) < 20:
            self.reasons.append(reason)
