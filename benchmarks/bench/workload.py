"""Scenario files, distinct inputs, and the check of answers."""

from __future__ import annotations

import functools
import json
import os
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
    """Name, datatype and shape of a tensor, in the words of the Open Inference Protocol."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model and the load on it. Read from `benchmarks/scenarios/<name>.toml`."""

    model: str
    repository: str
    """Model repository, relative to the root of the checkout."""
    input: Tensor
    output: Tensor
    slo_ms: float
    counter_scale: float = 1.0
    """Factor of the request number before it is added to the first elements."""
    reference: str = ""
    """ONNX file that computes the right answer, relative to the root; empty: the sum of the input."""
    clients: tuple[int, ...] = (1, 16, 64)
    start_rate: float = 500.0
    """First rate of the search for the open-loop capacity, in requests per second."""
    tolerance: float = 1e-3
    """Relative and absolute tolerance of every number of an answer; 0: exact."""
    unchecked: bool = False
    """Skip the check: answers of an emulated model mean nothing."""
    workers: int = 1
    max_batch: int = 16
    """Largest batch of the peers. Horologe chooses its own."""
    batch_wait_ms: float = 2.0


def read_scenario(path: Path, changes: Mapping[str, Any] | None = None) -> Scenario:
    """Read a scenario. `changes` override the file. Raises `msgspec.ValidationError`, which names the field."""
    return msgspec.convert({**tomllib.loads(path.read_text()), **(changes or {})}, Scenario)


def load_scenario(name: str, changes: Mapping[str, Any] | None = None) -> Scenario:
    """Return the scenario of this name, or of this path if it ends in .toml."""
    return read_scenario(Path(name) if name.endswith(".toml") else ROOT / f"benchmarks/scenarios/{name}.toml", changes)


class Inputs:
    """The tensor of request `index`: a fixed pattern whose first two elements hold the index and the number of the run.

    No input is sent to a server twice, not even by two runs, so that a prediction cache never helps.
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

    def start_epoch(self) -> None:
        """Start another run: no earlier input is used again."""
        self._epoch = (self._epoch + 1) % EPOCHS

    def counters(self, index: int) -> tuple[float, float]:
        """Return the first two elements."""
        return index % COUNTER_LIMIT * self.scale, (index // COUNTER_LIMIT + 16 * self._epoch) * self.scale

    @functools.cached_property
    def _json_tail(self) -> str:
        return "".join(f", {number}" for number in self.base.reshape(-1)[2:].tolist())

    def array(self, index: int) -> NDArray[Any]:
        """Return the tensor as an array."""
        array = self.base.copy()
        array.reshape(-1)[:2] = self.counters(index)
        return array

    def raw(self, index: int) -> bytes:
        """Return the tensor as little-endian, row-major bytes."""
        return self._pack(*self.counters(index)) + self._tail

    def text(self, index: int) -> str:
        """Return the tensor as a flat JSON list."""
        first, second = self.counters(index)
        return f"[{first}, {second}{self._json_tail}]"


class AnswerCheck:
    """Compares answers with the reference. Runs after the run, so that it costs the run nothing."""

    def __init__(self, scenario: Scenario, inputs: Inputs) -> None:
        self.scenario, self.inputs = scenario, inputs
        self._session: Any = None
        if scenario.reference:
            os.environ["ORT_DISABLE_TELEMETRY"] = "1"
            import onnxruntime as ort

            self._session = ort.InferenceSession(str(ROOT / scenario.reference), providers=["CPUExecutionProvider"])

    def right_answer(self, index: int) -> NDArray[Any]:
        """Compute the answer to request `index`."""
        x = self.inputs.array(index)
        if self._session is None:
            return np.asarray(x.reshape(-1).sum(dtype=np.float64))
        name = self.scenario.output.name
        outputs = [output.name for output in self._session.get_outputs()]
        chosen = name if name in outputs else outputs[0]
        answer: NDArray[Any] = self._session.run([chosen], {self._session.get_inputs()[0].name: x})[0]
        return answer

    def count_wrong(self, answers: Mapping[int, object], limit: int = 500) -> tuple[int, int]:
        """Check at most about `limit` answers. Return the number of checked and of wrong ones."""
        if self.scenario.unchecked:
            return 0, 0
        chosen = sorted(answers)[:: max(1, len(answers) // limit)]
        return len(chosen), sum(not self._is_right(index, answers[index]) for index in chosen)

    def _is_right(self, index: int, answer: object) -> bool:
        actual = np.asarray(answer, np.float64).reshape(-1)
        expected = self.right_answer(index).astype(np.float64).reshape(-1)
        tolerance = self.scenario.tolerance
        return actual.shape == expected.shape and bool(np.allclose(actual, expected, rtol=tolerance, atol=tolerance))


def parse_numbers(document: bytes) -> Any:
    """Return the numbers in a JSON answer of any server: OIP outputs, `{"y": ...}` or a bare value."""
    value = json.loads(document)
    if isinstance(value, dict) and "outputs" in value:
        return value["outputs"][0]["data"]
    return value["y"] if isinstance(value, dict) else value
