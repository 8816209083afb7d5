"""What an application answers: for each row a prediction, how many agree with it, and whether it is the default."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from horologe_common.models import TensorSpec
from horologe_common.wire import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.applications import Application

PREDICTIONS = {"classes": "INT64", "regression": "FP64"}
"""Task -> datatype of `prediction`. Task `any` has no outputs of its own: those of the model are passed on."""


def output_specs(application: Application) -> tuple[TensorSpec, ...]:
    """`prediction`, `confidence` FP32 and `defaulted` BOOL, each of shape [rows]; the task is not `any`."""
    datatypes = {"prediction": PREDICTIONS[application.task], "confidence": "FP32", "defaulted": "BOOL"}
    return tuple(TensorSpec(name, datatype, (-1,)) for name, datatype in datatypes.items())


def answer_tensors(
    application: Application, values: Sequence[float], confidences: Sequence[float], defaulted: Sequence[bool]
) -> tuple[tuple[Tensor, ...], list[bytes]]:
    """Headers and bytes of these outputs, from a value for each row."""
    rows = len(values)
    whole = application.task == "classes"
    columns = (
        struct.pack(f"<{rows}{'q' if whole else 'd'}", *(map(int, values) if whole else values)),
        struct.pack(f"<{rows}f", *confidences),
        bytes(map(bool, defaulted)),
    )
    tensors = tuple(
        Tensor(spec.name, spec.datatype, (rows,), len(column))
        for spec, column in zip(output_specs(application), columns, strict=True)
    )
    return tensors, list(columns)
