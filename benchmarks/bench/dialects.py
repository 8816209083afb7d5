"""HTTP formats of the servers: the bytes of a request, and the numbers of its answer."""

from __future__ import annotations

import base64
import functools
import json
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bench.workload import DTYPES, Inputs, Scenario, parse_numbers

if TYPE_CHECKING:
    from collections.abc import Callable


class Dialect(Protocol):
    """The format of one kind of server."""

    def request(self, index: int) -> bytes:
        """Return all bytes of request `index`."""

    def answer(self, head: bytes, body: bytes) -> Any:
        """Return the numbers of an answer. Called after the run."""


def post_head(path: str, host: str, headers: str, size: int | str) -> bytes:
    """Return the head of a POST request whose body has `size` bytes."""
    return f"POST {path} HTTP/1.1\r\nHost: {host}\r\n{headers}Content-Length: {size}\r\n\r\n".encode()


class Raw:
    """The tensor's bytes and nothing else, in both directions."""

    def __init__(self, scenario: Scenario, inputs: Inputs, host: str, path: str) -> None:
        self._raw = inputs.raw
        self._head = post_head(path, host, "Content-Type: application/octet-stream\r\n", len(inputs.raw(0)))
        self._dtype = DTYPES[scenario.output.datatype]

    def request(self, index: int) -> bytes:
        return self._head + self._raw(index)

    def answer(self, head: bytes, body: bytes) -> Any:
        return np.frombuffer(body, self._dtype)


class Json:
    """`{"x": [numbers]}` -> `{"y": numbers}`."""

    def __init__(self, scenario: Scenario, inputs: Inputs, host: str, path: str) -> None:
        self._inputs = inputs
        self._path, self._host = path, host

    def body(self, index: int) -> str:
        return f'{{"x": {self._inputs.text(index)}}}'

    def request(self, index: int) -> bytes:
        body = self.body(index).encode()
        return post_head(self._path, self._host, "Content-Type: application/json\r\n", len(body)) + body

    def answer(self, head: bytes, body: bytes) -> Any:
        return parse_numbers(body)


class Base64(Json):
    """`{"x": "<base64 of the bytes>"}` -> `{"y": numbers}`: large tensors for servers that accept only JSON."""

    def body(self, index: int) -> str:
        return f'{{"x": "{base64.b64encode(self._inputs.raw(index)).decode()}"}}'


class JsonRows(Json):
    """`{"x": [[numbers]]}` -> `[[numbers]]`: for servers whose inputs are batches."""

    def body(self, index: int) -> str:
        return f'{{"x": [{self._inputs.text(index)}]}}'


class Base64Rows(Json):
    """`{"x": ["<base64 of the bytes>"]}` -> `[[numbers]]`."""

    def body(self, index: int) -> str:
        return f'{{"x": ["{base64.b64encode(self._inputs.raw(index)).decode()}"]}}'


class OipJson(Json):
    """Open Inference Protocol v2 with the data as JSON numbers. With `slo`, sends the scenario's SLO as `timeout`."""

    def __init__(self, scenario: Scenario, inputs: Inputs, host: str, path: str, slo: bool = False) -> None:
        super().__init__(scenario, inputs, host, path or f"/v2/models/{scenario.model}/infer")
        spec = scenario.input
        parameters = {"timeout": round(scenario.slo_ms * 1e3)} if slo else {}
        tensor = {"name": spec.name, "shape": list(spec.shape), "datatype": spec.datatype, "data": [0]}
        self._start, self._end = json.dumps({"parameters": parameters, "inputs": [tensor]}).split("[0]")

    def body(self, index: int) -> str:
        return f"{self._start}{self._inputs.text(index)}{self._end}"


class OipBinary:
    """Open Inference Protocol v2 with the binary tensor extension in both directions."""

    def __init__(self, scenario: Scenario, inputs: Inputs, host: str, path: str, slo: bool = False) -> None:
        spec, size = scenario.input, len(inputs.raw(0))
        described = {"name": spec.name, "shape": list(spec.shape), "datatype": spec.datatype}
        tensor = {**described, "parameters": {"binary_data_size": size}}
        parameters = {"binary_data_output": True, **({"timeout": round(scenario.slo_ms * 1e3)} if slo else {})}
        text = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
        headers = f"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: {len(text)}\r\n"
        self._head = post_head(path or f"/v2/models/{scenario.model}/infer", host, headers, len(text) + size) + text
        self._raw = inputs.raw
        self._dtype = DTYPES[scenario.output.datatype]

    def request(self, index: int) -> bytes:
        return self._head + self._raw(index)

    def answer(self, head: bytes, body: bytes) -> Any:
        key = b"inference-header-content-length:"
        lower = head.lower()
        at = lower.find(key)
        if at < 0:
            return parse_numbers(body)
        length = int(lower[at + len(key) :].split(b"\r\n", 1)[0])
        return np.frombuffer(body[length:], self._dtype)


DIALECTS: dict[str, Callable[..., Dialect]] = {
    "raw": Raw,
    "json": Json,
    "base64": Base64,
    "json-rows": JsonRows,
    "base64-rows": Base64Rows,
    "oip-json": OipJson,
    "oip-binary": OipBinary,
    "oip-json-slo": functools.partial(OipJson, slo=True),
    "oip-binary-slo": functools.partial(OipBinary, slo=True),
}
"""Dialects by the name that `--dialect` accepts. `-slo` sends the SLO, which only Horologe uses."""
