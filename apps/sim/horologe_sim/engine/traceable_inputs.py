"""Inputs with a mark that identifies their request, and outputs of simulated models: the same rows, or a label.

The true label of a row is drawn from its mark, so it needs no storage. Whether a simulated classifier is right is drawn
from the mark and the name of the model.
"""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_common.models import DTYPES, TensorSpec, nbytes
from horologe_common.wire import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec

ROWS_A_REQUEST = 1 << 8
CLASSES = 10
LABEL = TensorSpec("label", "INT64", (-1, 1))
"""Output of a simulated classifier."""
MARKED = "UINT64", (-1, 1)
"""Datatype and shape of an input that can carry marks."""
_ZEROS = memoryview(bytes(1 << 20))


class Skill(msgspec.Struct, frozen=True):
    """Accuracy of a simulated classifier. For a share `alike` of the inputs, models are right or wrong together and
    make the same error, as real classifiers do on hard inputs."""

    accuracy: float
    alike: float = 0.0


def truth(mark: int) -> int:
    """Return the true label of a mark."""
    return int(_draws("", mark)[0] * CLASSES)


def label(model: str, skill: Skill, mark: int) -> int:
    """Return the label that a model predicts."""
    common, own = _draws("", mark), _draws(model, mark)
    luck, other = common[1:3] if own[0] < skill.alike else own[1:3]
    right = int(common[0] * CLASSES)
    return right if luck < skill.accuracy else (right + 1 + int(other * (CLASSES - 1))) % CLASSES


def labels(model: str, skill: Skill, marks: bytes) -> bytes:
    """Return predicted labels (INT64) for marks (UINT64), one per row."""
    predictions = [label(model, skill, int(mark)) for mark in np.frombuffer(marks, "<u8")]
    return np.array(predictions, "<i8").tobytes()


def right(request_id: int, predictions: Buffer) -> int:
    """Return the number of correct predictions (INT64) of a request's rows."""
    first = request_id * ROWS_A_REQUEST
    return sum(truth(first + row) == one for row, one in enumerate(np.frombuffer(predictions, "<i8").tolist()))


def mark(request_id: int, rows: int) -> bytes:
    """Return the marks of a request's rows as UINT64."""
    return b"".join((request_id * ROWS_A_REQUEST + row).to_bytes(8, "little") for row in range(rows))


def inputs_of(spec: ModelSpec, request_id: int, rows: int) -> tuple[tuple[Tensor, ...], Sequence[Buffer]]:
    """Return inputs of the model's signature: marks if the first input can hold them, else zeros."""
    headers, buffers = _blank(spec, rows)
    first = spec.inputs[0]
    return headers, [mark(request_id, rows), *buffers[1:]] if (first.datatype, first.shape) == MARKED else buffers


def zeros(size: int) -> Buffer:
    """Return zero bytes, from shared memory up to 1 MiB."""
    return _ZEROS[:size] if size <= len(_ZEROS) else bytes(size)


def outputs_of(
    spec: ModelSpec, skill: Skill | None, inputs: Sequence[tuple[Tensor, Sequence[Buffer]]], rows: int
) -> list[tuple[Tensor, Buffer]]:
    """Return header and bytes of each output: a label, or an input of equal datatype and shape, else zeros.

    An output that returns the rows of an input lets tests detect swapped answers.
    """
    if skill:
        predicted = labels(spec.name, skill, b"".join(inputs[0][1]))
        return [(Tensor(LABEL.name, LABEL.datatype, inputs[0][0].shape, len(predicted)), predicted)]
    outputs: list[tuple[Tensor, Buffer]] = []
    for output in spec.outputs:
        for spec_input, (tensor, parts) in zip(spec.inputs, inputs, strict=False):
            if (spec_input.datatype, spec_input.shape) == (output.datatype, output.shape):
                joined = parts[0] if len(parts) == 1 else b"".join(parts)
                outputs.append((Tensor(output.name, tensor.datatype, tensor.shape, len(joined)), joined))
                break
        else:
            outputs.append(_zero(output, rows, spec.batched))
    return outputs


@functools.lru_cache(1 << 12)
def echoes(spec: ModelSpec) -> int | None:
    """Return the index of the output that returns the marks, or None."""
    first = spec.inputs[0]
    if (first.datatype, first.shape) != MARKED:
        return None
    alike = [at for at, one in enumerate(spec.outputs) if (one.datatype, one.shape) == MARKED]
    return alike[0] if alike else None


@functools.lru_cache(1 << 12)
def _blank(spec: ModelSpec, rows: int) -> tuple[tuple[Tensor, ...], tuple[Buffer, ...]]:
    headers, buffers = zip(*(_zero(wanted, rows, spec.batched) for wanted in spec.inputs), strict=True)
    return headers, buffers


def _zero(wanted: TensorSpec, rows: int, batched: bool) -> tuple[Tensor, Buffer]:
    """Return header and bytes of a tensor of zeros, or of empty strings."""
    rest = tuple(1 if dim < 0 else dim for dim in wanted.shape[1 if batched else 0 :])
    shape = (rows, *rest) if batched else rest
    size = nbytes(wanted.datatype, shape) if wanted.datatype in DTYPES else 4 * nbytes("UINT8", shape)
    return Tensor(wanted.name, wanted.datatype, shape, size), zeros(size)


@functools.lru_cache(1 << 12)
def _draws(who: str, mark: int) -> tuple[float, float, float]:
    """Return three numbers, uniform in [0, 1), that depend on name and mark only."""
    digest = hashlib.blake2b(mark.to_bytes(8, "little"), digest_size=12, key=who.encode()[:64]).digest()
    one, two, three = (int.from_bytes(digest[at : at + 4], "little") / (1 << 32) for at in (0, 4, 8))
    return one, two, three
