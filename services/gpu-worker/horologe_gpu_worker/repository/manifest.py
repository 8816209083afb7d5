"""Manifest of a model: `model.toml` with its checks, and the spec built from it."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.interference.coefficients import GpuCoefficients, ModelCoefficients
from horologe_common.models import DTYPES, MAX_DIM, ModelSpec, TensorSpec, check_declared_shape
from horologe_common.service.settings import DURATIONS, SIZES, SettingsError, parse_quantity
from horologe_common.status import HorologeError, InvalidInput, Status
from horologe_gpu_worker.repository.model_signature import zeros

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

MANIFEST = "model.toml"
MODEL_FILES = {"model.onnx": "onnx", "model.pt2": "pytorch", "model.py": "python"}
"""Model file in a version folder -> its runtime, unless `model.toml` names one."""
BATCH_SIZES = (1, 2, 4, 8, 16)
PROFILE_LENGTH = 16
DATATYPES = (*DTYPES, "BYTES")


class InvalidModel(HorologeError):
    """The model cannot be served. The message names file, field, got and wanted."""

    status = Status.UNKNOWN_MODEL


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of `[[inputs]]` or `[[outputs]]`. The first dimension of `shape` is -1 if it counts rows."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    warmup: bool | int | float | str = 0
    """Inputs only: value of every element when the model is warmed up and measured."""


class EmulatedSharing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[emulated.sharing]`: coefficients of the interference between workloads that share a GPU."""

    gpu: str | GpuCoefficients = "v100"
    """A GPU type with built-in coefficients, or a table of coefficients."""
    model: str | ModelCoefficients = ""
    """A model with built-in coefficients, or a table of coefficients."""
    interference: str = "pcie-contention"
    """Interference model."""
    noise: bool = True
    """Draw the prediction error of the model and the jitter of its executions."""
    seed: int = 0
    time_factor: float = 1.0
    """Multiplies all times: a machine too slow for the rates of a plan can emulate it at a tenth of them."""


class EmulatedTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[emulated]`: declared times of an emulated model in milliseconds. `exec_ms` by batch size; transfers per row."""

    exec_ms: dict[int, float] = {}
    load_ms: float = 0.0
    input_ms: float = 0.0
    output_ms: float = 0.0
    weights_mb: float = 0.0
    sharing: EmulatedSharing | None = None
    """Times that depend on the worker's share of a device and on its neighbours, instead of declared ones."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of `model.toml`. Durations are text with a unit ("50ms"), sizes too ("512MiB")."""

    runtime: str = ""
    batch_sizes: tuple[int, ...] = ()
    slo: str = "0"
    cache: bool = False
    cache_ttl: str = "0"
    padded: bool = False
    """Inputs of different shapes share a batch, padded with zeros."""
    max_length: int = 0
    """Maximum size of a variable dimension; 0: no limit."""
    profile_length: int = PROFILE_LENGTH
    """Size of every variable dimension when the model is warmed up and measured. At most `max_length`."""
    threads: int = 1
    timeout: str = "0"
    """python: a call that takes longer is treated as hung; 0: derived from the warm-up runs."""
    load_timeout: str = "0"
    """Time until the model must have been read, loaded and measured; 0: `worker.load_timeout_ns`."""
    memory_limit: str = "0"
    """python: maximum data segment of the model's process; 0: no limit."""
    inputs: tuple[TensorEntry, ...] = ()
    outputs: tuple[TensorEntry, ...] = ()
    emulated: EmulatedTimes | None = None


def manifest_path(folder: Path) -> Path | None:
    """Return the `model.toml` of a version: in its own folder, else in the model's folder; None if there is none."""
    return next((path for path in (folder / MANIFEST, folder.parent / MANIFEST) if path.is_file()), None)


def model_files(folder: Path) -> list[Path]:
    """Return the files of a version, sorted, without the manifest, hidden files and compiled Python."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and path.name != MANIFEST
        and not any(part.startswith((".", "__pycache__")) for part in path.relative_to(folder).parts)
    )


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of `<repository>/<name>/<version>`; defaults if there is no file.

    Raises `InvalidModel` naming file, field, got and wanted.
    """
    path = manifest_path(folder)
    if path is None:
        return Manifest()
    try:
        table = tomllib.loads(path.read_text())
        _check_keys(str(path), table)
        manifest = msgspec.convert(table, Manifest, strict=False)
    # ValueError: not TOML, not UTF-8, or a field of the wrong type; RecursionError: nested too deeply
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidModel(f"{path}: {error}") from error
    _check(path, manifest)
    return manifest


def _check_keys(path: str, table: dict[str, Any]) -> None:
    """Raise `InvalidModel` naming the known keys if the table, or a table in it, has an unknown key."""
    tables: list[tuple[str, Any, type[msgspec.Struct]]] = [(path, table, Manifest)]
    tables.append((f"{path}: [emulated]", table.get("emulated"), EmulatedTimes))
    for kind in ("inputs", "outputs"):
        if isinstance(entries := table.get(kind), list):
            tables += [(f"{path}: [[{kind}]]", entry, TensorEntry) for entry in entries]
    for where, keys, struct in tables:
        known = struct.__struct_fields__
        for key in keys if isinstance(keys, dict) else ():
            if key not in known:
                raise InvalidModel(f"{where}: got the key {key!r}, wanted one of {', '.join(known)}")


def _check(path: Path, manifest: Manifest) -> None:
    for key, least in (("threads", 1), ("profile_length", 1), ("max_length", 0)):
        if not least <= (number := getattr(manifest, key)) <= MAX_DIM:
            raise InvalidModel(f"{path}: {key}: got {number}, wanted at least {least} and at most {MAX_DIM}")
    for key, units in (
        ("slo", DURATIONS),
        ("cache_ttl", DURATIONS),
        ("timeout", DURATIONS),
        ("load_timeout", DURATIONS),
        ("memory_limit", SIZES),
    ):
        _check_quantity(path, key, getattr(manifest, key), units)
    sizes = manifest.batch_sizes
    if not all(1 <= size <= MAX_DIM for size in sizes) or list(sizes) != sorted(set(sizes)):
        raise InvalidModel(f"{path}: batch_sizes: got {list(sizes)}, wanted ascending numbers from 1 to {MAX_DIM}")
    for kind, entries in (("inputs", manifest.inputs), ("outputs", manifest.outputs)):
        _check_tensors(f"{path}: {kind}", entries)


def _check_tensors(where: str, entries: Iterable[TensorEntry]) -> None:
    seen: set[str] = set()
    for entry in entries:
        if not entry.name or entry.name in seen:
            raise InvalidModel(f"{where}: name: got {entry.name!r}, wanted a unique name")
        if entry.datatype not in DATATYPES:
            raise InvalidModel(
                f"{where}: {entry.name}: datatype: got {entry.datatype!r}, wanted one of {', '.join(DATATYPES)}"
            )
        try:
            check_declared_shape(f"{where}: {entry.name}", entry.shape)
        except InvalidInput as error:
            raise InvalidModel(str(error)) from error
        if isinstance(entry.warmup, str) != (entry.datatype == "BYTES") and entry.warmup != 0:
            raise InvalidModel(f"{where}: {entry.name}: warmup: got {entry.warmup!r}, wanted an element of the tensor")
        seen.add(entry.name)


def _check_quantity(path: Path, key: str, text: str, units: dict[str, int]) -> None:
    try:
        amount = parse_quantity(key, text, units)
    except SettingsError as error:
        raise InvalidModel(f"{path}: {key}: got {text!r}, wanted a number with one of {', '.join(units)}") from error
    if amount < 0:
        raise InvalidModel(f"{path}: {key}: got {text!r}, wanted at least 0")


def duration_ns(text: str) -> int:
    """Return a duration of a checked manifest in ns."""
    return parse_quantity("duration", text, DURATIONS)


def size_bytes(text: str) -> int:
    """Return a size of a checked manifest in bytes."""
    return parse_quantity("size", text, SIZES)


def declared_signature(manifest: Manifest, folder: Path) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return the declared inputs and outputs. Raises `InvalidModel` if either is missing."""
    for kind in ("inputs", "outputs"):
        if not getattr(manifest, kind):
            where = manifest_path(folder) or folder / MANIFEST
            raise InvalidModel(f"{where}: {kind}: got none, wanted at least one [[{kind}]] with name, datatype, shape")
    return tensor_specs(manifest.inputs), tensor_specs(manifest.outputs)


def warmup_inputs(spec: ModelSpec, folder: Path, batch_size: int) -> dict[str, NDArray[Any]]:
    """Return inputs that the model accepts: zeros and empty strings, or the `warmup` values of its manifest."""
    arrays = zeros(spec, spec.inputs, batch_size)
    for entry in read_manifest(folder).inputs:
        if entry.warmup and entry.name in arrays:
            arrays[entry.name][...] = entry.warmup.encode() if isinstance(entry.warmup, str) else entry.warmup
    return arrays


def tensor_specs(entries: Iterable[TensorEntry]) -> tuple[TensorSpec, ...]:
    """Return declared tensors as they are in a spec."""
    return tuple(TensorSpec(entry.name, entry.datatype, entry.shape) for entry in entries)


def build_spec(
    folder: Path,
    manifest: Manifest,
    runtime: str,
    signature: tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]],
    weights_bytes: int,
) -> ModelSpec:
    """Build the spec of a model from its signature. A model is batched if every tensor starts with a variable
    dimension.
    """
    batched = all(tensor.shape[:1] == (-1,) for side in signature for tensor in side)
    sizes = manifest.batch_sizes or (BATCH_SIZES if batched else (1,))
    if not batched and sizes != (1,):
        where = manifest_path(folder) or folder
        raise InvalidModel(
            f"{where}: batch_sizes: got {list(sizes)}, wanted [1]: not every tensor begins with a variable dimension"
        )
    if manifest.padded and (fault := _padding_error(signature[1], batched)):
        raise InvalidModel(f"{manifest_path(folder)}: padded: got true, wanted false: {fault}")
    options = {name: getattr(manifest, name) for name in ("cache", "padded", "max_length")}
    options |= {"slo_ns": duration_ns(manifest.slo), "cache_ttl_ns": duration_ns(manifest.cache_ttl)}
    name, version = folder.parent.name, folder.name
    spec = ModelSpec(name, version, runtime, *signature, sizes, batched, weights_bytes=weights_bytes, **options)
    if not spec.variable_dimensions:
        return spec
    length = min(manifest.profile_length, manifest.max_length or manifest.profile_length)
    return msgspec.structs.replace(spec, profile_length=length)


def _padding_error(outputs: Iterable[TensorSpec], batched: bool) -> str:
    """Return why inputs cannot be padded; empty if they can.

    An output that is longer because of padding could not be separated from the padding.
    """
    if not batched:
        return "not every tensor begins with a variable dimension, so requests share no batch"
    for tensor in outputs:
        if -1 in tensor.shape[1:]:
            return f"output {tensor.name!r} has the shape {list(tensor.shape)}, variable in more than the rows"
    return ""
