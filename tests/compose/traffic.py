"""Requests over the SDK and HTTP at a steady rate, until standard input ends. Prints the outcomes every half second.

Runs in a container of the image `horologe-edge`: traffic.py HOST KEYS. A request asks the model `twice` for twice a
number that no other request of its protocol has. Outcomes are OK, WRONG, a status, or BROKEN: an HTTP connection that
ended without an answer.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import numpy as np

from horologe import Client
from horologe_common.status import HorologeError, Status

PAUSE_S = 0.05
SLO_MS = 15_000
REASONS = 20

outcomes: Counter[str] = Counter()
reasons: list[str] = []


def note(outcome: str, reason: str) -> None:
    outcomes[outcome] += 1
    if outcome != "OK" and len(reasons) < REASONS:
        reasons.append(f"{time.time():.1f} {outcome} {reason}")


def send_sdk(host: str, keys: Path) -> None:
    number = 0
    with Client(f"tcp://{host}:8003", keys=keys) as client:
        while True:
            time.sleep(PAUSE_S)
            number += 1
            try:
                answer = client.predict("twice", np.full((1, 4), number, np.float32), slo_ms=SLO_MS)
                note("OK" if answer[0, 0] == 2 * number else "WRONG", f"{number}: {answer}")
            except HorologeError as error:
                note(Status(error.status).name, f"SDK: {error}")


def send_http(host: str, keys: Path) -> None:
    key = (keys / "http" / "client.secret").read_text().strip()
    number = 0
    while True:
        time.sleep(PAUSE_S)
        number += 1
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [number] * 4}
        body = json.dumps({"inputs": [tensor], "parameters": {"slo_ms": SLO_MS}})
        connection = HTTPConnection(host, 8000, timeout=2 * SLO_MS / 1e3)
        try:
            connection.request("POST", "/v2/models/twice/infer", body, {"Authorization": f"Bearer {key}"})
            response = connection.getresponse()
            answer: Any = json.loads(response.read())
            if response.status == 200:
                note("OK" if answer["outputs"][0]["data"] == [2 * number] * 4 else "WRONG", f"{number}: {answer}")
            else:
                note(answer["status"], f"HTTP: {answer['error']}")
        except (OSError, HTTPException, ValueError) as error:
            note("BROKEN", repr(error))
        finally:
            connection.close()


def report() -> None:
    while True:
        print(json.dumps({"outcomes": outcomes, "reasons": reasons}), flush=True)  # noqa: T201
        time.sleep(0.5)


if __name__ == "__main__":
    arguments = sys.argv[1], Path(sys.argv[2])
    for target in (send_sdk, send_http):
        threading.Thread(target=target, args=arguments, daemon=True).start()
    threading.Thread(target=report, daemon=True).start()
    sys.stdin.read()
