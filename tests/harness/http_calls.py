"""HTTP requests to running services."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROW = [1, 2, 3, 4]


def send_http(
    method: str, url: str, body: bytes = b"", headers: Mapping[str, str] | None = None, timeout_s: float = 5
) -> tuple[int, bytes]:
    """Return status and body of a response. Raises OSError if nothing listens."""
    host, _, path = url.removeprefix("http://").partition("/")
    connection = HTTPConnection(host, timeout=timeout_s)
    try:
        connection.request(method, f"/{path}", body, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def infer(
    http: str,
    model: str,
    rows: Sequence[Sequence[float]] = (ROW,),
    datatype: str = "FP32",
    headers: Mapping[str, str] | None = None,
    **parameters: Any,
) -> tuple[int, Any]:
    """Send `rows` as the input `x`. Return the status, and the data of the first output or the error."""
    tensor = {"name": "x", "datatype": datatype, "shape": [len(rows), len(rows[0])], "data": rows}
    body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    status, content = send_http("POST", f"{http}/v2/models/{model}/infer", body, headers, 30)
    answer = json.loads(content)
    return status, answer["outputs"][0]["data"] if status == 200 else answer["error"]
