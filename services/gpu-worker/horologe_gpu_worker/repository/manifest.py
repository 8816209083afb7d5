"""What a model's folder says about it: `model.toml`, and the errors that make a model unavailable."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.models import DTYPES, ModelSpec, TensorSpec
from horologe_common.service.settings import DURATIONS, SIZES, SettingsError, parse_quantity
from horologe_common.status import HorologeError, Status
from horologe_gpu_worker.repository.model_signature import zeros

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

MANIFEST = "model.toml"
MODEL_FILES = {"model.onnx": "onnx", "model.pt2": "pytorch", "model.py": "python"}
"""The file a version folder holds -> the runtime that serves it when `model.toml` does not name one."""
BATCH_SIZES = (1, 2, 4, 8, 16)
PROFILE_LENGTH = 16
DATATYPES = (*DTYPES, "BYTES")


class InvalidModel(HorologeError):
    """A model in the repository cannot be served; the message names file, field, got and wanted."""

    status = Status.UNKNOWN_MODEL


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[inputs]]` or `[[outputs]]`; the first dimension of `shape` is -1 where it counts rows."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    warmup: bool | int | float | str = 0
    """Of an input: what every element is when the model is warmed and measured."""


class EmulatedTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[emulated]`: the times of a pretend device, in milliseconds; `exec_ms` by batch size, transfers per row."""

    exec_ms: dict[int, float]
    load_ms: float = 0.0
    input_ms: float = 0.0
    output_ms: float = 0.0
    weights_mb: float = 0.0


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`model.toml`, every key of it. Durations are text with a unit ("50ms"), as are sizes ("512MiB")."""

    runtime: str = ""
    batch_sizes: tuple[int, ...] = ()
    slo: str = "0"
    cache: bool = False
    cache_ttl: str = "0"
    padded: bool = False
    """Inputs of different shapes share a batch, filled up with zeros."""
    max_length: int = 0
    """The most that a variable dimension may have; 0: no limit."""
    profile_length: int = PROFILE_LENGTH
    """Of every variable dimension when the model is warmed and measured; at most `max_length`."""
    threads: int = 1
    timeout: str = "0"
    """python: a call that takes longer is a hang; 0: derived from the warm-up runs."""
    memory_limit: str = "0"
    """python: data a model's process may hold before allocations fail; 0: no limit of its own."""
    inputs: tuple[TensorEntry, ...] = ()
    outputs: tuple[TensorEntry, ...] = ()
    emulated: EmulatedTimes | None = None


def manifest_path(folder: Path) -> Path | None:
    """The `model.toml` that holds for the version `folder`: its own, else the one beside all versions."""
    return next((path for path in (folder / MANIFEST, folder.parent / MANIFEST) if path.is_file()), None)


def model_files(folder: Path) -> list[Path]:
    """The files of a version, without its manifest and what is hidden or compiled, in a fixed order."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and path.name != MANIFEST
        and not any(part.startswith((".", "__pycache__")) for part in path.relative_to(folder).parts)
    )


def read_manifest(folder: Path) -> Manifest:
    """The manifest of `<repository>/<name>/<version>`; all defaults where there is none.

    Raises `InvalidModel` naming file, field, got and wanted.
    """
    path = manifest_path(folder)
    if path is None:
        return Manifest()
    try:
        table = tomllib.loads(path.read_text())
        manifest = msgspec.convert(table, Manifest, strict=False)
    except (OSError, ValueError) as error:  # ValueError: not TOML, not UTF-8, or a field of the wrong kind
        raise InvalidModel(f"{path}: {error}") from error
    _check(path, manifest)
    return manifest


def _check(path: Path, manifest: Manifest) -> None:
    for key, number, least in (
        ("threads", manifest.threads, 1),
        ("profile_length", manifest.profile_length, 1),
        ("max_length", manifest.max_length, 0),
    ):
        if number < least:
            raise InvalidModel(f"{path}: {key}: got {number}, wanted at least {least}")
    for key, text in (("slo", manifest.slo), ("cache_ttl", manifest.cache_ttl), ("timeout", manifest.timeout)):
        _quantity(path, key, text, DURATIONS)
    _quantity(path, "memory_limit", manifest.memory_limit, SIZES)
    sizes = manifest.batch_sizes
    if any(size < 1 for size in sizes) or list(sizes) != sorted(set(sizes)):
        raise InvalidModel(f"{path}: batch_sizes: got {list(sizes)}, wanted ascending numbers from 1")
    for kind, entries in (("inputs", manifest.inputs), ("outputs", manifest.outputs)):
        _check_tensors(f"{path}: {kind}", entries)


def _check_tensors(where: str, entries: Iterable[TensorEntry]) -> None:
    seen: set[str] = set()
    for entry in entries:
        if not entry.name or entry.name in seen:
            raise InvalidModel(f"{where}: name: got {entry.name!r}, wanted a name of its own")
        if entry.datatype not in DATATYPES:
            raise InvalidModel(
                f"{where}: {entry.name}: datatype: got {entry.datatype!r}, wanted one of {', '.join(DATATYPES)}"
            )
        if any(dim < -1 for dim in entry.shape):
            raise InvalidModel(f"{where}: {entry.name}: shape: got {list(entry.shape)}, wanted sizes, or -1")
        if isinstance(entry.warmup, str) != (entry.datatype == "BYTES") and entry.warmup != 0:
            raise InvalidModel(f"{where}: {entry.name}: warmup: got {entry.warmup!r}, wanted an element of the tensor")
        seen.add(entry.name)


def _quantity(path: Path, key: str, text: str, units: dict[str, int]) -> int:
    try:
        amount = parse_quantity(key, text, units)
    except SettingsError as error:
        raise InvalidModel(f"{path}: {key}: got {text!r}, wanted a number with one of {', '.join(units)}") from error
    if amount < 0:
        raise InvalidModel(f"{path}: {key}: got {text!r}, wanted nothing negative")
    return amount


def duration_ns(text: str) -> int:
    """A duration of a manifest that `read_manifest` has accepted."""
    return parse_quantity("duration", text, DURATIONS)


def size_bytes(text: str) -> int:
    """A size of a manifest that `read_manifest` has accepted."""
    return parse_quantity("size", text, SIZES)


def declared_signature(manifest: Manifest, folder: Path) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs as written. Raises `InvalidModel` where they are missing."""
    for kind in ("inputs", "outputs"):
        if not getattr(manifest, kind):
            where = manifest_path(folder) or folder / MANIFEST
            raise InvalidModel(f"{where}: {kind}: got none, wanted at least one [[{kind}]] with name, datatype, shape")
    return _tensors(manifest.inputs), _tensors(manifest.outputs)


def warmup_inputs(spec: ModelSpec, folder: Path, batch_size: int) -> dict[str, NDArray[Any]]:
    """Inputs that the model is known to take: zeros and empty strings, or what its manifest says."""
    arrays = zeros(spec, spec.inputs, batch_size)
    for entry in read_manifest(folder).inputs:
        if entry.warmup and entry.name in arrays:
            arrays[entry.name][...] = entry.warmup.encode() if isinstance(entry.warmup, str) else entry.warmup
    return arrays


def _tensors(entries: Iterable[TensorEntry]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(entry.name, entry.datatype, entry.shape) for entry in entries)


def build_spec(
    folder: Path,
    manifest: Manifest,
    runtime: str,
    signature: tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]],
    weights_bytes: int,
) -> ModelSpec:
    """The spec of a model whose signature is known. Batched: every tensor begins with a variable dimension."""
    batched = all(tensor.shape[:1] == (-1,) for side in signature for tensor in side)
    sizes = manifest.batch_sizes or (BATCH_SIZES if batched else (1,))
    if not batched and sizes != (1,):
        where = manifest_path(folder) or folder
        raise InvalidModel(
            f"{where}: batch_sizes: got {list(sizes)}, wanted [1]: not every tensor begins with a variable dimension"
        )
    if manifest.padded and (fault := _unfit_for_padding(signature[1], batched)):
        raise InvalidModel(f"{manifest_path(folder)}: padded: got true, wanted false: {fault}")
    facts: dict[str, Any] = {
        "slo_ns": duration_ns(manifest.slo),
        "cache": manifest.cache,
        "cache_ttl_ns": duration_ns(manifest.cache_ttl),
        "padded": manifest.padded,
        "max_length": manifest.max_length,
    }
    spec = ModelSpec(
        folder.parent.name, folder.name, runtime, *signature, sizes, batched, weights_bytes=weights_bytes, **facts
    )
    if not spec.variable_dimensions:
        return spec
    length = min(manifest.profile_length, manifest.max_length or manifest.profile_length)
    return msgspec.structs.replace(spec, profile_length=length)


def _unfit_for_padding(outputs: Iterable[TensorSpec], batched: bool) -> str:
    """Why inputs cannot be padded; empty if they can. What comes out longer for it could not be told from padding."""
    if not batched:
        return "not every tensor begins with a variable dimension, so requests share no batch"
    for tensor in outputs:
        if -1 in tensor.shape[1:]:
            return f"output {tensor.name!r} has the shape {list(tensor.shape)}, variable in more than the rows"
    return ""
