"""What a scenario file says, the distinct inputs made of it, and the check of the answers."""

from __future__ import annotations

import functools
import json
import random
import struct
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
PACKED = {"FP32": "<2f", "FP64": "<2d"}
DTYPES = {"FP32": "<f4", "FP64": "<f8"}
COUNTER_LIMIT, EPOCHS = 1 << 20, 1 << 16
"""The request number goes into the tensor in two parts that float32 holds exactly, and so does their sum."""


class Tensor(msgspec.Struct, frozen=True):
    name: str
    datatype: str
    shape: tuple[int, ...]


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model, what to send it, and how hard. Read from `benchmarks/scenarios/<name>.toml`."""

    model: str
    repository: str
    """Model repository that has it, relative to the root of the checkout."""
    input: Tensor
    output: Tensor
    slo_ms: float
    counter_scale: float = 1.0
    """What the request number is multiplied by before it is added to the first elements."""
    reference: str = ""
    """ONNX file that says what is right, relative to the root; empty: the sum of the input."""
    clients: tuple[int, ...] = (1, 16, 64)
    start_rate: float = 500.0
    """Where the search for the open-loop capacity begins, requests per second."""
    tolerance: float = 1e-3
    """Relative and absolute, of every number of an answer; 0: exact."""
    unchecked: bool = False
    """Answers mean nothing (an emulated model's)."""
    workers: int = 1
    max_batch: int = 16
    """Of the peers; ours decides itself."""
    batch_wait_ms: float = 2.0


def read(path: Path, changes: Mapping[str, Any] | None = None) -> Scenario:
    """Raises `msgspec.ValidationError` naming the field. `changes` override the file."""
    return msgspec.convert({**tomllib.loads(path.read_text()), **(changes or {})}, Scenario)


def named(name: str, changes: Mapping[str, Any] | None = None) -> Scenario:
    """The scenario of this name, or of this path if it ends in .toml."""
    return read(Path(name) if name.endswith(".toml") else ROOT / f"benchmarks/scenarios/{name}.toml", changes)


class Inputs:
    """Request `index` -> its tensor: a fixed pattern with the index, and which run it is, in its first two elements.

    No input is sent twice to a server, not by another run either: a prediction cache never helps.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.spec = scenario.input
        self.scale = scenario.counter_scale
        self._epoch = random.randrange(EPOCHS)
        rng = np.random.default_rng(7)
        base = rng.integers(0, 8, self.spec.shape).astype(DTYPES[self.spec.datatype])
        flat = base.reshape(-1)
        flat[:2] = 0
        self.base = base
        self._tail = flat[2:].tobytes()
        self._pack = struct.Struct(PACKED[self.spec.datatype]).pack

    def renew(self) -> None:
        """Another run: none of the inputs so far comes again."""
        self._epoch = (self._epoch + 1) % EPOCHS

    def head(self, index: int) -> tuple[float, float]:
        return index % COUNTER_LIMIT * self.scale, (index // COUNTER_LIMIT + 16 * self._epoch) * self.scale

    @functools.cached_property
    def _json_tail(self) -> str:
        return "".join(f", {number}" for number in self.base.reshape(-1)[2:].tolist())

    def array(self, index: int) -> NDArray[Any]:
        array = self.base.copy()
        array.reshape(-1)[:2] = self.head(index)
        return array

    def raw(self, index: int) -> bytes:
        """Little-endian, row-major bytes."""
        return self._pack(*self.head(index)) + self._tail

    def text(self, index: int) -> str:
        """The flat JSON list."""
        first, second = self.head(index)
        return f"[{first}, {second}{self._json_tail}]"


class Check:
    """Compares kept answers with what they should be, after the run, so that it costs the run nothing."""

    def __init__(self, scenario: Scenario, inputs: Inputs) -> None:
        self.scenario, self.inputs = scenario, inputs
        self._session: Any = None
        if scenario.reference:
            import onnxruntime as ort

            self._session = ort.InferenceSession(str(ROOT / scenario.reference), providers=["CPUExecutionProvider"])

    def wanted(self, index: int) -> NDArray[Any]:
        x = self.inputs.array(index)
        if self._session is None:
            return np.asarray(x.reshape(-1).sum(dtype=np.float64))
        name = self.scenario.output.name
        outputs = [output.name for output in self._session.get_outputs()]
        chosen = name if name in outputs else outputs[0]
        answer: NDArray[Any] = self._session.run([chosen], {self._session.get_inputs()[0].name: x})[0]
        return answer

    def wrong(self, kept: Mapping[int, object], most: int = 500) -> tuple[int, int]:
        """How many were checked, and how many of them were wrong."""
        if self.scenario.unchecked:
            return 0, 0
        chosen = sorted(kept)[:: max(1, len(kept) // most)]
        return len(chosen), sum(not self._right(index, kept[index]) for index in chosen)

    def _right(self, index: int, answer: object) -> bool:
        got = np.asarray(answer, np.float64).reshape(-1)
        want = self.wanted(index).astype(np.float64).reshape(-1)
        near = self.scenario.tolerance
        return got.shape == want.shape and bool(np.allclose(got, want, rtol=near, atol=near))


def numbers(document: bytes) -> Any:
    """The numbers in a JSON answer of any of the servers: OIP outputs, `{"y": ...}` or a bare value."""
    value = json.loads(document)
    if isinstance(value, dict) and "outputs" in value:
        return value["outputs"][0]["data"]
    return value["y"] if isinstance(value, dict) else value
