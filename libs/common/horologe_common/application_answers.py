"""Answers of applications: their output tensors, and the ids by which feedback refers to them.

The outputs are, for each row, a prediction, the share of models that agree with it, and whether it is the default. A
prediction id is `[mark][nonce][hash of the inputs]`. The mark identifies the selector, the only one that has logged the
prediction. The nonce distinguishes answers to equal inputs.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

from horologe_common.models import TensorSpec
from horologe_common.wire import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.applications import Application

MARK_BYTES = 4
NONCE_BYTES = 8
HEAD_BYTES = MARK_BYTES + NONCE_BYTES
"""Bytes before the hash."""
PREDICTIONS = {"classes": "INT64", "regression": "FP64"}
"""Datatype of `prediction` by task. An application of task `any` has the outputs of its model instead."""


def output_specs(application: Application) -> tuple[TensorSpec, ...]:
    """Return the specs of `prediction`, `confidence` and `defaulted`, each of shape [rows]; not for task `any`."""
    datatypes = {"prediction": PREDICTIONS[application.task], "confidence": "FP32", "defaulted": "BOOL"}
    return tuple(TensorSpec(name, datatype, (-1,)) for name, datatype in datatypes.items())


def answer_tensors(
    application: Application, values: Sequence[float], confidences: Sequence[float], defaulted: Sequence[bool]
) -> tuple[tuple[Tensor, ...], list[bytes]]:
    """Return headers and bytes of these outputs, from a value for each row."""
    rows = len(values)
    is_integer = application.task == "classes"
    columns = (
        struct.pack(f"<{rows}{'q' if is_integer else 'd'}", *(map(int, values) if is_integer else values)),
        struct.pack(f"<{rows}f", *confidences),
        bytes(map(bool, defaulted)),
    )
    tensors = tuple(
        Tensor(spec.name, spec.datatype, (rows,), len(column))
        for spec, column in zip(output_specs(application), columns, strict=True)
    )
    return tensors, list(columns)


def selector_mark(address: str) -> bytes:
    """Return the mark of a selector incarnation."""
    return hashlib.blake2b(address.encode(), digest_size=MARK_BYTES).digest()
