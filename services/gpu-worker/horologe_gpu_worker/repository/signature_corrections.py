"""Signatures that `model.toml` corrects: its entries override what a graph declares, within what can be true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.models import TensorSpec
from horologe_gpu_worker.repository.manifest import InvalidModel
from horologe_gpu_worker.repository.reshaping import fits_shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_gpu_worker.repository.manifest_fields import TensorEntry


def correct_tensors(
    where: str, kind: str, inferred: Sequence[TensorSpec], entries: Iterable[TensorEntry]
) -> tuple[TensorSpec, ...]:
    """Return the `inferred` tensors of a graph, in their order, with the shapes of the entries of the same name.

    `kind` is `inputs` or `outputs`. Raises `InvalidModel` naming the entry, if the graph has no such tensor or another
    datatype, or for an input that the graph would reject.
    """
    declared = {entry.name: entry for entry in entries}
    names = [tensor.name for tensor in inferred]
    for name in declared:
        if name not in names:
            raise InvalidModel(f"{where}: {kind}: got {name!r}, wanted some of {names}, as in the graph")
    return tuple(
        _correct(f"{where}: {kind}: {tensor.name}", kind, tensor, declared[tensor.name])
        if tensor.name in declared
        else tensor
        for tensor in inferred
    )


def _correct(where: str, kind: str, inferred: TensorSpec, entry: TensorEntry) -> TensorSpec:
    if entry.datatype != inferred.datatype:
        raise InvalidModel(f"{where}: datatype: got {entry.datatype}, wanted {inferred.datatype}, as in the graph")
    if kind == "inputs" and inferred.shape:  # a graph without a shape accepts any
        check_narrower(where, entry.inner_sizes, inferred.shape)
    return TensorSpec(entry.name, entry.datatype, entry.sizes)


def check_narrower(where: str, shape: Sequence[int], inferred: Sequence[int]) -> None:
    """Raise `InvalidModel` unless every shape that fits `shape` fits `inferred`."""
    if not fits_shape(shape, inferred):
        raise InvalidModel(
            f"{where}: shape: got {list(shape)}, wanted {list(inferred)}, as in the graph, or sizes in place of -1"
        )
