"""Inputs that say whose they are, and what pretend models answer to them: the same back, or a label.

The label of a row is drawn from its mark, so everybody knows the truth without asking; whether a pretend classifier is
right about it is drawn from the mark too, and from the model's name.
"""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_common.models import TensorSpec, nbytes
from horologe_common.wire import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec

ROWS_A_REQUEST = 1 << 8
CLASSES = 10
LABEL = TensorSpec("label", "INT64", (-1, 1))
"""The output of a pretend classifier."""
MARKED = "UINT64", (-1, 1)
"""Datatype and shape of an input that can carry marks."""
_ZEROS = memoryview(bytes(1 << 20))


class Skill(msgspec.Struct, frozen=True):
    """Of a pretend classifier. `alike`: for this share of inputs it is right or wrong as all others are for which that
    is so too, and errs with the same label: inputs that are hard are hard for many."""

    accuracy: float
    alike: float = 0.0


def truth(mark: int) -> int:
    """The label that is right."""
    return int(_draws("", mark)[0] * CLASSES)


def label(model: str, skill: Skill, mark: int) -> int:
    """What this model says."""
    common, own = _draws("", mark), _draws(model, mark)
    luck, other = common[1:3] if own[0] < skill.alike else own[1:3]
    right = int(common[0] * CLASSES)
    return right if luck < skill.accuracy else (right + 1 + int(other * (CLASSES - 1))) % CLASSES


def labels(model: str, skill: Skill, marks: bytes) -> bytes:
    """INT64 of UINT64, a row each."""
    found = [label(model, skill, int(one)) for one in np.frombuffer(marks, "<u8")]
    return np.array(found, "<i8").tobytes()


def right(request_id: int, predictions: Buffer) -> int:
    """How many of the predictions, INT64 of a request's rows, are true."""
    first = request_id * ROWS_A_REQUEST
    return sum(truth(first + row) == one for row, one in enumerate(np.frombuffer(predictions, "<i8").tolist()))


def mark(request_id: int, rows: int) -> bytes:
    """Rows that say whose they are, and which: as UINT64."""
    return b"".join((request_id * ROWS_A_REQUEST + row).to_bytes(8, "little") for row in range(rows))


def inputs_of(spec: ModelSpec, request_id: int, rows: int) -> tuple[tuple[Tensor, ...], Sequence[Buffer]]:
    """Inputs of the model's signature: zeros, and the request's own mark where the first can carry it."""
    headers, buffers = _blank(spec, rows)
    first = spec.inputs[0]
    return headers, [mark(request_id, rows), *buffers[1:]] if (first.datatype, first.shape) == MARKED else buffers


def zeros(size: int) -> Buffer:
    """So many bytes, of memory that is shared where they are few."""
    return _ZEROS[:size] if size <= len(_ZEROS) else bytes(size)


@functools.lru_cache(1 << 12)
def echoes(spec: ModelSpec) -> int | None:
    """Which output gives the marks back, if there are any."""
    first = spec.inputs[0]
    if (first.datatype, first.shape) != MARKED:
        return None
    alike = [at for at, one in enumerate(spec.outputs) if (one.datatype, one.shape) == MARKED]
    return alike[0] if alike else None


@functools.lru_cache(1 << 12)
def _blank(spec: ModelSpec, rows: int) -> tuple[tuple[Tensor, ...], tuple[Buffer, ...]]:
    headers, buffers = [], []
    for wanted in spec.inputs:
        rest = tuple(1 if dim < 0 else dim for dim in wanted.shape[1 if spec.batched else 0 :])
        shape = (rows, *rest) if spec.batched else rest
        size = nbytes(wanted.datatype, shape)
        headers.append(Tensor(wanted.name, wanted.datatype, shape, size))
        buffers.append(zeros(size))
    return tuple(headers), tuple(buffers)


@functools.lru_cache(1 << 12)
def _draws(who: str, mark: int) -> tuple[float, float, float]:
    """Uniform in [0, 1), by name and mark alone."""
    digest = hashlib.blake2b(mark.to_bytes(8, "little"), digest_size=12, key=who.encode()[:64]).digest()
    one, two, three = (int.from_bytes(digest[at : at + 4], "little") / (1 << 32) for at in (0, 4, 8))
    return one, two, three
