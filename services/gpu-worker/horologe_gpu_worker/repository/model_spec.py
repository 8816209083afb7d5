"""Spec of a model, built from its manifest and the signature that its runtime found, which the manifest may correct."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.models import FIRST_STEP, NEXT_STEP, ModelSpec, TensorSpec
from horologe_common.service.user_files import read_file
from horologe_common.status import InvalidInput
from horologe_gpu_worker.repository.made_up_inputs import check_broadcast, make_up_inputs, warmup_shapes
from horologe_gpu_worker.repository.manifest import MANIFEST, InvalidModel, duration_ns, read_manifest, settings_path
from horologe_gpu_worker.repository.manifest_fields import Manifest
from horologe_gpu_worker.repository.reshaping import fits_shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from horologe_gpu_worker.repository.manifest_fields import TensorEntry

BATCH_SIZES = (1, 2, 4, 8, 16)
RESHAPING = ("onnx", "torchscript", "python")
"""Runtimes that reshape tensors (`python`: for a `TritonPythonModel`)."""
STREAMING = ("python", "emulated")
OF_RUNTIMES = {
    "declared_outputs_only": ("onnx",),
    "providers": ("onnx",),
    "gpu_memory": ("onnx", "python"),
    "python": ("python",),
    "requirements": ("python",),
}
"""Keys of some runtimes only."""
SAME_NAMES = ("cache", "padded", "max_length", "max_rows", "weight", "guaranteed_rate")
"""Keys that are fields of the spec."""
MAX_ROWS_RULE = "it is for models that are not batched, whose tensors all begin with -1"
NO_LENGTHS: Mapping[str, tuple[int, ...]] = {}


def build_spec(
    folder: Path,
    manifest: Manifest,
    runtime: str,
    signature: tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]],
    weights_bytes: int,
    lengths: Mapping[str, tuple[int, ...]] = NO_LENGTHS,
    *,
    has_rows: bool = True,
) -> ModelSpec:
    """Build the spec of a model from its signature. A model is batched unless `unbatched_reason` returns a reason, or
    `has_rows` is False: the runtime knows that first dimensions do not all count rows.

    `lengths`: shapes of inputs that the runtime knows to fit together, for `ModelSpec.warmup_shapes`.
    """
    check_supported(folder, manifest, runtime)
    reason = unbatched_reason(manifest, signature)
    if not reason and not has_rows:
        reason = "the first dimensions do not all count rows"
    where = settings_path(folder) or folder
    if manifest.stream is not None:
        _check_stream(where, manifest, runtime)
        reason = "it streams"
    batched = not reason
    sizes = manifest.batch_sizes or (BATCH_SIZES if batched else (1,))
    if manifest.batching == "on" and not batched:
        raise InvalidModel(f"{where}: batching: got 'on', wanted 'auto' or 'off': {reason}")
    if not batched and sizes != (1,):
        raise InvalidModel(f"{where}: batch_sizes: got {list(sizes)}, wanted [1]: {reason}")
    if manifest.max_rows and (batched or not _begin_with_rows(signature)):
        raise InvalidModel(f"{where}: max_rows: got {manifest.max_rows}, wanted none: {MAX_ROWS_RULE}")
    if manifest.padded and (fault := _padding_error(signature[1], reason)):
        raise InvalidModel(f"{where}: padded: got true, wanted false: {fault}")
    options = {name: getattr(manifest, name) for name in SAME_NAMES}
    if (stream := manifest.stream) is not None:
        sizes = NEXT_STEP, FIRST_STEP
        options |= {"streams": True, "first_ns": duration_ns(stream.first_item), "gap_ns": duration_ns(stream.gap)}
    options["optional"] = tuple(entry.name for entry in manifest.inputs if entry.optional)
    options |= {"slo_ns": duration_ns(manifest.slo), "cache_ttl_ns": duration_ns(manifest.cache_ttl)}
    name, version = folder.parent.name, folder.name
    spec = ModelSpec(name, version, runtime, *signature, sizes, batched, weights_bytes=weights_bytes, **options)
    if spec.variable_dimensions:
        spec = msgspec.structs.replace(spec, profile_length=default_length(manifest))
    declared = {entry.name: entry.warmup_shape for entry in manifest.inputs if entry.warmup_shape}
    if files := {entry.name: entry.labels for entry in manifest.outputs if entry.labels}:
        label_files = tuple(files.get(tensor.name, "") for tensor in spec.outputs)
        labels = tuple(read_labels(folder, file) for file in label_files)
        spec = msgspec.structs.replace(spec, labels=labels, label_files=label_files)
    try:
        spec = msgspec.structs.replace(spec, warmup_shapes=warmup_shapes(spec, declared, lengths))
        check_broadcast(spec, _warmup_values(manifest))
    except InvalidInput as error:
        raise InvalidModel(f"{where}: inputs: {error.reason}") from error
    return spec


def _check_stream(where: Path, manifest: Manifest, runtime: str) -> None:
    """Raise `InvalidModel` for a model that cannot stream, and for keys that would have no effect on a stream."""
    if runtime not in STREAMING:
        raise InvalidModel(f"{where}: stream: got one, wanted none for {runtime!r}: only {', '.join(STREAMING)} stream")
    for key, got in (("batch_sizes", manifest.batch_sizes), ("cache", manifest.cache), ("padded", manifest.padded)):
        if got:
            raise InvalidModel(f"{where}: {key}: got {got!r}, wanted none for a model with [stream]")


def read_labels(folder: Path, name: str) -> tuple[str, ...]:
    """Return the lines of a file in a version's folder, else beside it; none if it has no name.

    Raises `InvalidModel` if it cannot be read.
    """
    if not name:
        return ()
    path = next((path for path in (folder / name, folder.parent / name) if path.is_file()), folder.parent / name)
    try:
        lines = read_file(path).decode("utf-8-sig").removesuffix("\n").split("\n")
    except (OSError, ValueError) as error:  # ValueError: too large, or not UTF-8
        raise InvalidModel(f"{path}: labels: {error}") from error
    return tuple(line.removesuffix("\r") for line in lines)


def check_supported(folder: Path, manifest: Manifest, runtime: str) -> None:
    """Raise `InvalidModel` for keys that the runtime would ignore."""
    reshaped = [entry.name for entry in (*manifest.inputs, *manifest.outputs) if entry.reshape is not None]
    if reshaped and runtime not in RESHAPING:
        raise InvalidModel(f"{settings_path(folder)}: {reshaped[0]}: reshape: got one, wanted none for {runtime!r}")
    if optional := [entry.name for entry in manifest.inputs if entry.optional and runtime != "python"]:
        raise InvalidModel(f"{settings_path(folder)}: {optional[0]}: optional: got true, wanted false for {runtime!r}")
    for key, runtimes in OF_RUNTIMES.items():
        if (got := getattr(manifest, key)) != getattr(Manifest(), key) and runtime not in runtimes:
            raise InvalidModel(f"{settings_path(folder)}: {key}: got {got!r}, wanted none for {runtime!r}")


def default_length(manifest: Manifest) -> int:
    """Return the size of a variable dimension when the model is warmed up and measured, unless its shape is given."""
    return min(manifest.profile_length, manifest.max_length or manifest.profile_length)


def unbatched_reason(manifest: Manifest, signature: tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]) -> str:
    """Return why first dimensions do not count rows, so that each request runs alone; empty if they do."""
    if manifest.batching == "off":
        return "batching is 'off'"
    for entry in (*manifest.inputs, *manifest.outputs):
        if isinstance(own := next(iter(entry.shape), -1), str):
            return f"the first dimension of {entry.name!r} is its own: {own!r}"
    if not _begin_with_rows(signature):
        return "not every tensor begins with a variable dimension"
    return ""


def _begin_with_rows(signature: tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]) -> bool:
    """Return whether every tensor begins with a variable dimension."""
    return all(tensor.shape[:1] == (-1,) for side in signature for tensor in side)


def _padding_error(outputs: Iterable[TensorSpec], unbatched: str) -> str:
    """Return why inputs cannot be padded; empty if they can.

    An output that is longer because of padding could not be separated from the padding.
    """
    if unbatched:
        return f"{unbatched}, so requests share no batch"
    for tensor in outputs:
        if -1 in tensor.shape[1:]:
            return f"output {tensor.name!r} has the shape {list(tensor.shape)}, variable in more than the rows"
    return ""


def declared_signature(manifest: Manifest, folder: Path) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return the declared inputs and outputs. Raises `InvalidModel` if either is missing."""
    for kind in ("inputs", "outputs"):
        if not getattr(manifest, kind):
            where = settings_path(folder) or folder / MANIFEST
            raise InvalidModel(f"{where}: {kind}: got none, wanted at least one [[{kind}]] with name, datatype, shape")
    return tensor_specs(manifest.inputs), tensor_specs(manifest.outputs)


def tensor_specs(entries: Iterable[TensorEntry]) -> tuple[TensorSpec, ...]:
    """Return declared tensors as they are in a spec."""
    return tuple(TensorSpec(entry.name, entry.datatype, entry.sizes) for entry in entries)


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


def warmup_inputs(spec: ModelSpec, folder: Path, batch_size: int) -> dict[str, NDArray[Any]]:
    """Return inputs that the model accepts: zeros and empty strings, or the `warmup` values of its manifest."""
    return make_up_inputs(spec, _warmup_values(read_manifest(folder)), batch_size)


def _warmup_values(manifest: Manifest) -> dict[str, Any]:
    """Return the `warmup` values by input name. A missing one is 0, the default."""
    return {entry.name: entry.warmup for entry in manifest.inputs if entry.warmup != 0}
