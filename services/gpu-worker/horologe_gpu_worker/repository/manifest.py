"""Manifest of a model: reads and checks its `model.toml`, or what Triton's `config.pbtxt` says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.clock import NS_PER_MS
from horologe_common.model_limits import (
    BATCH_MAX,
    DURATION_MAX_NS,
    MEMORY_MAX_BYTES,
    RATE_MAX,
    WEIGHT_RANGE,
    check_batch_sizes,
    check_number,
)
from horologe_common.models import DTYPES, MAX_DIM, check_declared_shape
from horologe_common.service.settings import DURATIONS, MAX_QUANTITY, SIZES, SettingsError, parse_quantity
from horologe_common.service.user_files import describe_mismatch, read_toml
from horologe_common.status import HorologeError, InvalidInput, Status
from horologe_gpu_worker.fetching.source import check_url
from horologe_gpu_worker.repository.made_up_inputs import check_warmup
from horologe_gpu_worker.repository.manifest_fields import (
    ALL_VERSIONS,
    EmulatedTimes,
    FileEntry,
    Manifest,
    StreamSettings,
    TensorEntry,
)
from horologe_gpu_worker.repository.reshaping import check_reshape

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


MANIFEST = "model.toml"
TRITON_CONFIG = "config.pbtxt"
MODEL_FILES = {"model.onnx": "onnx", "model.pt2": "pytorch", "model.pt": "torchscript", "model.py": "python"}
"""Model file in a version folder -> its runtime, unless `model.toml` names one."""
DATATYPES = (*DTYPES, "BYTES")
RANGES = (
    ("threads", 1, 1024),
    ("profile_length", 1, MAX_DIM),
    ("max_length", 0, MAX_DIM),
    ("max_rows", 0, BATCH_MAX),
    ("weight", *WEIGHT_RANGE),
    ("guaranteed_rate", 0, RATE_MAX),
)
QUANTITIES = (
    ("slo", DURATIONS, DURATION_MAX_NS),
    ("cache_ttl", DURATIONS, MAX_QUANTITY),
    ("timeout", DURATIONS, DURATION_MAX_NS),
    ("load_timeout", DURATIONS, DURATION_MAX_NS),
    ("memory_limit", SIZES, MEMORY_MAX_BYTES),
    ("gpu_memory", SIZES, MEMORY_MAX_BYTES),
)
MAX_SEED = 1 << 32


class InvalidModel(HorologeError):
    """The model cannot be served. The message names file, field, got and wanted."""

    status = Status.UNKNOWN_MODEL


def manifest_path(folder: Path) -> Path | None:
    """Return the `model.toml` of a version: in its own folder, else in the model's folder; None if there is none."""
    return next((path for path in (folder / MANIFEST, folder.parent / MANIFEST) if path.is_file()), None)


def settings_path(folder: Path) -> Path | None:
    """Return the file that describes a version: `model.toml`, else Triton's `config.pbtxt`; None if there is none."""
    config = folder.parent / TRITON_CONFIG
    return manifest_path(folder) or (config if config.is_file() else None)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of `<repository>/<name>/<version>`: its `model.toml`, else Triton's `config.pbtxt`; defaults if
    there is neither.

    Raises `InvalidModel` naming file, field, got and wanted.
    """
    path = settings_path(folder)
    if path is None:
        return Manifest()
    if path.name == TRITON_CONFIG:
        from horologe_gpu_worker.repository.triton.triton_manifest import read_triton_manifest  # imports protobuf

        return read_triton_manifest(folder)
    manifest = read_manifest_file(path)
    if path.parent == folder and manifest.versions != ALL_VERSIONS:
        raise InvalidModel(f"{path}: versions: got {manifest.versions}, wanted it in {folder.parent / MANIFEST} only")
    return manifest


def read_manifest_file(path: Path) -> Manifest:
    """Read a `model.toml`. Raises `InvalidModel` naming file, field, got and wanted."""
    try:
        table = read_toml(path)
    except (OSError, ValueError) as error:  # ValueError: not TOML, or too large
        raise InvalidModel(f"{path}: {error}") from error
    return convert_manifest(path, table)


def convert_manifest(path: Path, table: dict[str, Any]) -> Manifest:
    """Return the manifest with these keys, which come from the file at `path`. Raises `InvalidModel` as it names it."""
    _check_keys(str(path), table)
    try:
        manifest = msgspec.convert(table, Manifest, str_keys=True)
    except msgspec.ValidationError as error:
        raise InvalidModel(f"{path}: {describe_mismatch(error, table)}") from error
    _check(path, manifest)
    return manifest


def model_path(folder: Path, manifest: Manifest, default: str) -> Path:
    """Return the path of a version's model file."""
    return folder / (manifest.file or default)


def _check_keys(path: str, table: dict[str, Any]) -> None:
    """Raise `InvalidModel` naming the known keys if the table, or a table in it, has an unknown key."""
    tables: list[tuple[str, Any, type[msgspec.Struct]]] = [(path, table, Manifest)]
    tables.append((f"{path}: [emulated]", table.get("emulated"), EmulatedTimes))
    tables.append((f"{path}: [stream]", table.get("stream"), StreamSettings))
    if isinstance(files := table.get("files"), dict):
        tables += [(f"{path}: [files.{name}]", entry, FileEntry) for name, entry in files.items()]
    for kind in ("inputs", "outputs"):
        if isinstance(entries := table.get(kind), list):
            tables += [(f"{path}: [[{kind}]]", entry, TensorEntry) for entry in entries]
    for where, keys, struct in tables:
        known = struct.__struct_fields__
        for key in keys if isinstance(keys, dict) else ():
            if key not in known:
                raise InvalidModel(f"{where}: got the key {key!r}, wanted one of {', '.join(known)}")


def _check(path: Path, manifest: Manifest) -> None:
    try:
        for key, least, most in RANGES:
            check_number(f"{path}: {key}", getattr(manifest, key), least, most)
        check_batch_sizes(f"{path}: batch_sizes", manifest.batch_sizes)
        if manifest.emulated is not None:
            _check_emulated(f"{path}: emulated", manifest.emulated)
    except InvalidInput as error:
        raise InvalidModel(error.reason) from error
    _check_paths(path, manifest)
    if isinstance(manifest.versions, str) and manifest.versions != ALL_VERSIONS:
        wanted = "'all', { latest = 1 } or names of versions"
        raise InvalidModel(f"{path}: versions: got {manifest.versions!r}, wanted {wanted}")
    for key, units, most in QUANTITIES:
        _check_quantity(path, key, getattr(manifest, key), units, most)
    if (stream := manifest.stream) is not None:
        for key in ("first_item", "gap"):
            _check_quantity(path, f"stream.{key}", getattr(stream, key), DURATIONS, DURATION_MAX_NS)
    _check_sides(path, manifest)


def _check_sides(path: Path, manifest: Manifest) -> None:
    """Raise `InvalidModel` for tensors that no model can have, and for keys of the other side."""
    for kind, entries in (("inputs", manifest.inputs), ("outputs", manifest.outputs)):
        _check_tensors(f"{path}: {kind}", entries)
    for entry in manifest.inputs:
        if entry.labels:
            raise InvalidModel(f"{path}: inputs: {entry.name}: got labels, wanted them in [[outputs]] only")
    for entry in manifest.outputs:
        if entry.warmup != 0 or entry.warmup_shape or entry.optional:
            raise InvalidModel(
                f"{path}: outputs: {entry.name}: got warmup, warmup_shape or optional, wanted them in [[inputs]] only"
            )


def _check_paths(path: Path, manifest: Manifest) -> None:
    paths = {"file": [manifest.file], "requirements": [manifest.requirements], "files": manifest.files}
    paths["labels"] = [entry.labels for entry in manifest.outputs]
    for key, names in paths.items():
        for name in names:
            if name.startswith("/") or ".." in name.split("/"):
                raise InvalidModel(f"{path}: {key}: got {name!r}, wanted a path in the folder of the version")
    for name, file in manifest.files.items():
        _check_file(f"{path}: files: {name}", file)
    if manifest.python and not manifest.python.startswith("/"):
        raise InvalidModel(f"{path}: python: got {manifest.python!r}, wanted the absolute path of an interpreter")


def _check_file(where: str, file: FileEntry) -> None:
    if not (file.url or file.sha256):
        raise InvalidModel(f"{where}: got neither url nor sha256, wanted one of them")
    if file.url:
        try:
            check_url(file.url)
        except ValueError as error:
            raise InvalidModel(f"{where}: url: {error}") from error


def _check_emulated(where: str, times: EmulatedTimes) -> None:
    """Raise `InvalidInput` unless batch sizes, times and memory are in their ranges."""
    check_batch_sizes(f"{where}.exec_ms", sorted(times.exec_ms))
    for size, time_ms in times.exec_ms.items():
        check_number(f"{where}.exec_ms: {size}", time_ms, 0, DURATION_MAX_NS / NS_PER_MS)
    for key in ("load_ms", "input_ms", "output_ms"):
        check_number(f"{where}.{key}", getattr(times, key), 0, DURATION_MAX_NS / NS_PER_MS)
    check_number(f"{where}.weights_mb", times.weights_mb, 0, MEMORY_MAX_BYTES >> 20)
    if times.sharing is not None:
        check_number(f"{where}.sharing.seed", times.sharing.seed, -MAX_SEED, MAX_SEED)
        check_number(f"{where}.sharing.time_factor", times.sharing.time_factor, 1e-6, 1e6)


def _check_tensors(where: str, entries: Iterable[TensorEntry]) -> None:
    seen: set[str] = set()
    for entry in entries:
        if not entry.name or entry.name in seen:
            raise InvalidModel(f"{where}: name: got {entry.name!r}, wanted a unique name")
        if entry.datatype not in DATATYPES:
            raise InvalidModel(
                f"{where}: {entry.name}: datatype: got {entry.datatype!r}, wanted one of {', '.join(DATATYPES)}"
            )
        for dim in entry.shape:
            if isinstance(dim, str) and not dim.isidentifier():
                raise InvalidModel(f"{where}: {entry.name}: shape: got {dim!r}, wanted a size, -1 or a name")
        try:
            check_declared_shape(f"{where}: {entry.name}", entry.sizes)
            check_reshape(f"{where}: {entry.name}", entry.sizes, entry.inner_sizes)
            check_warmup(f"{where}: {entry.name}", entry.datatype, entry.sizes, entry.warmup, entry.warmup_shape)
        except InvalidInput as error:
            raise InvalidModel(str(error)) from error
        seen.add(entry.name)


def _check_quantity(path: Path, key: str, text: str, units: dict[str, int], most: int) -> None:
    try:
        amount = parse_quantity(key, text, units)
    except SettingsError as error:
        raise InvalidModel(f"{path}: {key}: got {text!r}, wanted a number with one of {', '.join(units)}") from error
    if amount < 0:
        raise InvalidModel(f"{path}: {key}: got {text!r}, wanted at least 0")
    if amount > most:
        unit, size = max(((unit, size) for unit, size in units.items() if size <= most), key=lambda pair: pair[1])
        raise InvalidModel(f"{path}: {key}: got {text!r}, wanted at most {most // size}{unit}")


def duration_ns(text: str) -> int:
    """Return a duration of a checked manifest in ns."""
    return parse_quantity("duration", text, DURATIONS)


def size_bytes(text: str) -> int:
    """Return a size of a checked manifest in bytes."""
    return parse_quantity("size", text, SIZES)
