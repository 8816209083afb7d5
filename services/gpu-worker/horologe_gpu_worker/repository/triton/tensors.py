"""Inputs and outputs of a `config.pbtxt` as entries of `[[inputs]]` and `[[outputs]]`."""

from __future__ import annotations

from typing import Any

DATATYPES = {
    **{
        f"TYPE_{kind}": kind
        for kind in (
            "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64",
        )
    },
    "TYPE_STRING": "BYTES",
}  # fmt: skip
"""Data type of Triton -> datatype of the protocol."""


def tensor_entries(config: Any, side: str, *, one_by_one: bool = False, optional: bool = False) -> list[dict[str, Any]]:
    """Return the entries of a side (`input`, `output`). With `max_batch_size`, shapes begin with the rows.

    `one_by_one`: rows of several requests share no batch, so the model is measured on one row. `optional`: requests may
    leave out the inputs that say so.
    """
    rows = [-1] if config.max_batch_size > 0 else []
    warm = _warmup_dimensions(config) if side == "input" else {}
    entries = []
    for tensor in getattr(config, side):
        entry: dict[str, Any] = {
            "name": tensor.name,
            "datatype": DATATYPES.get(_kind(tensor), _kind(tensor)),
            "shape": [*rows, *tensor.dims],
        }
        if tensor.HasField("reshape"):
            entry["reshape"] = [*rows, *tensor.reshape.shape]
        if side == "input" and tensor.optional and optional:
            entry["optional"] = True
        if side == "output" and tensor.label_filename:
            entry["labels"] = tensor.label_filename
        dims = warm.get(tensor.name)
        first = [1] if rows and one_by_one else rows
        if dims is not None or (first != rows and side == "input"):
            entry["warmup_shape"] = [*first, *(dims if dims is not None else tensor.dims)]
        entries.append(entry)
    return entries


def _kind(tensor: Any) -> str:
    values = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    return str(values[tensor.data_type].name)


def _warmup_dimensions(config: Any) -> dict[str, list[int]]:
    """Return the dimensions of the first warm-up sample, by input. They have no rows."""
    for sample in config.model_warmup:
        return {name: list(data.dims) for name, data in sample.inputs.items()}
    return {}
