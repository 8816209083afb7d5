"""Inputs of a model that are drawn at random, and their encoding for the Open Inference Protocol over HTTP."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from horologe_common.models import DTYPES
from horologe_common.string_tensors import encode_strings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from horologe_common.models import ModelSpec

    Inputs = dict[str, NDArray[Any]]

POOL, POOL_BYTES = 256, 16 << 20
"""Distinct inputs per model: at most `POOL` of at most `POOL_BYTES` together."""
WORDS = ("a", "tree", "stands", "beside", "the", "older", "house")
"""Elements of string inputs."""
DEFAULT_LENGTH = 128
"""Longest variable dimension of models without a `max_length`."""


def random_inputs(spec: ModelSpec, rng: np.random.Generator) -> Inputs:
    """Draw one row of inputs. Variable dimensions of all inputs have one length, short ones being as likely as long."""
    length = max(1, round(float(np.exp(rng.uniform(np.log(4), np.log(spec.max_length or DEFAULT_LENGTH))))))
    inputs = {}
    for tensor in spec.inputs:
        shape = [length if size == -1 else size for size in tensor.shape]
        if spec.batched:
            shape[0] = 1
        inputs[tensor.name] = _draw(tensor.datatype, shape, rng)
    return inputs


def _draw(datatype: str, shape: list[int], rng: np.random.Generator) -> NDArray[Any]:
    if datatype == "BYTES":
        return np.array(WORDS, object)[rng.integers(0, len(WORDS), shape)]
    dtype = DTYPES[datatype]
    drawn = rng.random(shape) if dtype.kind == "f" else rng.integers(0, 2 if dtype.kind == "b" else 10, shape)
    return drawn.astype(dtype)


class ModelPool(NamedTuple):
    """A model and distinct inputs for it."""

    spec: ModelSpec
    inputs: list[Inputs]


def make_pool(spec: ModelSpec, rng: np.random.Generator) -> ModelPool:
    """Draw the inputs of a model."""
    first = random_inputs(spec, rng)
    size = sum(array.nbytes for array in first.values())
    return ModelPool(spec, [first, *(random_inputs(spec, rng) for _ in range(min(POOL, POOL_BYTES // size) - 1))])


def encode_oip(
    arrays: Inputs, datatypes: Mapping[str, str], binary: bool, parameters: Mapping[str, Any] | None = None
) -> tuple[dict[str, str], bytes]:
    """Return headers and body of a request of the Open Inference Protocol v2, with binary tensors or JSON numbers.

    `parameters`: of the request. Default: `binary_data_output`.
    """
    tensors: list[dict[str, Any]] = []
    contents: list[bytes] = []
    for name, array in arrays.items():
        tensor = {"name": name, "datatype": datatypes[name], "shape": array.shape}
        if binary:
            contents.append(encode_strings(name, array) if array.dtype.kind == "O" else array.tobytes())
            tensors.append(tensor | {"parameters": {"binary_data_size": len(contents[-1])}})
        else:
            tensors.append(tensor | {"data": [_to_json(element) for element in array.ravel().tolist()]})
    chosen = {"binary_data_output": binary} if parameters is None else parameters
    text = json.dumps({"inputs": tensors, "parameters": chosen}).encode()
    if not binary:
        return {"Content-Type": "application/json"}, text
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(text))}
    return headers, text + b"".join(contents)


def _to_json(element: Any) -> Any:
    return element.decode() if isinstance(element, bytes) else element
