"""The pipelines of a folder: `<name>.py` with the driver function, and `pipeline.toml` with a table per pipeline.

[video]
slo = "150ms"
inputs = [{name = "image", datatype = "FP32", shape = [1, 64]}]
outputs = [{name = "label", datatype = "INT64", shape = [1]}]
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.applications import check_name
from horologe_common.clock import s
from horologe_common.model_limits import BATCH_MAX, DURATION_MAX_NS, check_number, check_size, check_spec
from horologe_common.models import DTYPES, ModelSpec, TensorSpec, check_declared_shape
from horologe_common.pipelines import PIPELINE_RUNTIME
from horologe_common.service.settings import DURATIONS, SettingsError, parse_quantity
from horologe_common.service.user_files import describe_mismatch, read_file, read_toml
from horologe_common.status import HorologeError, InvalidInput, encodable
from horologe_selector.driver import PipelineDefinition

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MANIFEST = "pipeline.toml"
VERSION = "1"
MAX_ROWS = 16


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input or output. The first dimension of `shape` is -1 if it counts rows."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class StreamEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Deadlines of the items of a query that has none of its own. "0": none but that of the query."""

    first_item: str = "0"
    gap: str = "0"


class PipelineEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of `pipeline.toml`."""

    inputs: tuple[TensorEntry, ...]
    outputs: tuple[TensorEntry, ...]
    slo: str
    """End-to-end deadline of queries without one of their own, such as "150ms"."""
    max_rows: int = MAX_ROWS
    """Maximum rows of a query, if the first dimension of every tensor is -1."""
    cache: bool = False
    """Answer equal inputs from the prediction cache. It does not see that a model of the pipeline has changed."""
    cache_ttl: str = "0"
    stream: StreamEntry | None = None
    """The driver function yields its outputs as items."""


def read_pipelines(folder: Path) -> tuple[PipelineDefinition, ...]:
    """Return the definitions, by name. A pipeline that is not servable has a reason, and does not affect the others.

    Raises `InvalidInput` if the manifest cannot be read.
    """
    manifest = folder / MANIFEST
    try:
        tables = read_toml(manifest)
    except FileNotFoundError:
        tables = {}
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{manifest}: {error}") from error
    files = {path.stem: path for path in sorted(folder.glob("*.py"))}
    return tuple(_read_pipeline(folder, name, tables.get(name)) for name in sorted({*tables, *files}))


def folder_state(folder: Path) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return a value that changes when a file of the folder changes."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix in (".py", ".toml"))
        return tuple((path.name, _file_state(path)) for path in paths)
    except OSError:
        return ()


def _file_state(path: Path) -> tuple[int, ...]:
    """Return identity, size and times. Copies keep size and modification time, but not the time of the change."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _read_pipeline(folder: Path, name: str, table: Any) -> PipelineDefinition:
    path, where = folder / f"{name}.py", f"{folder / MANIFEST}: [{name}]"
    try:
        _check_pipeline_name(where, name)
        if table is None:
            raise InvalidInput(f"{where}: got no table, wanted one with inputs, outputs and slo")
        entry = msgspec.convert(table, PipelineEntry, strict=True)
        state = _file_state(path)
        spec = _build_spec(where, name, entry, read_file(path))
    except FileNotFoundError:
        return _unavailable(name, path, f"{path}: got no file, wanted one with `async def run(call, inputs)`")
    except HorologeError as error:
        return _unavailable(name, path, error.reason)
    except msgspec.ValidationError as error:
        return _unavailable(name, path, f"{where}: {describe_mismatch(error, table)}")
    except (OSError, ValueError) as error:
        return _unavailable(name, path, f"{path}: {error}")
    return PipelineDefinition(spec, str(path.resolve()), file_state=state)


def _unavailable(name: str, path: Path, reason: str) -> PipelineDefinition:
    spec = ModelSpec(encodable(name), VERSION, PIPELINE_RUNTIME, (), ())
    return PipelineDefinition(spec, str(path), encodable(reason))


def _check_pipeline_name(where: str, name: str) -> None:
    check_name(where, name)
    if any(mark.isspace() or mark in "/#" for mark in name):
        raise InvalidInput(f"{where}: got the name {name!r}, wanted one without '/', '#' and white space")


def _build_spec(where: str, name: str, entry: PipelineEntry, source: bytes) -> ModelSpec:
    """Return the signature. It is batched if every tensor starts with a variable dimension."""
    for field in ("inputs", "outputs"):
        _check_tensors(f"{where} {field}", getattr(entry, field))
    check_number(f"{where} max_rows", entry.max_rows, 1, BATCH_MAX)
    slo_ns, ttl_ns = _duration_ns(where, "slo", entry.slo), _duration_ns(where, "cache_ttl", entry.cache_ttl)
    if not 0 < slo_ns <= DURATION_MAX_NS:
        raise InvalidInput(f"{where} slo: got {entry.slo!r}, wanted more than 0, at most {DURATION_MAX_NS // s(1)}s")
    if ttl_ns < 0:
        raise InvalidInput(f"{where} cache_ttl: got {entry.cache_ttl!r}, wanted at least 0")
    stream_options = {} if entry.stream is None else _stream_options(where, entry.stream)
    if stream_options and entry.cache:
        raise InvalidInput(f"{where} cache: got true, wanted false for a pipeline with a stream")
    batched = not stream_options and all(tensor.shape[:1] == (-1,) for tensor in (*entry.inputs, *entry.outputs))
    sizes = (1, entry.max_rows) if batched and entry.max_rows > 1 else (1,)
    content = hashlib.blake2b(source + msgspec.msgpack.encode(entry), digest_size=16).hexdigest()
    spec = ModelSpec(
        name,
        VERSION,
        PIPELINE_RUNTIME,
        _specs(entry.inputs),
        _specs(entry.outputs),
        sizes,
        batched,
        slo_ns,
        content_hash=content,
        cache=entry.cache,
        cache_ttl_ns=ttl_ns,
        **stream_options,
    )
    try:
        check_spec(spec)
        check_size(spec)
    except InvalidInput as error:
        raise InvalidInput(f"{where} {error.reason}") from error
    return spec


def _stream_options(where: str, entry: StreamEntry) -> dict[str, Any]:
    """Return the fields of the signature of a pipeline that streams."""
    options: dict[str, Any] = {"streams": True}
    for field, name in (("first_item", "first_ns"), ("gap", "gap_ns")):
        options[name] = limit_ns = _duration_ns(where, f"stream.{field}", getattr(entry, field))
        if not 0 <= limit_ns <= DURATION_MAX_NS:
            raise InvalidInput(f"{where} stream.{field}: got {limit_ns} ns, wanted 0 to {DURATION_MAX_NS // s(1)}s")
    return options


def _specs(entries: Iterable[TensorEntry]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(entry.name, entry.datatype, entry.shape) for entry in entries)


def _check_tensors(where: str, entries: tuple[TensorEntry, ...]) -> None:
    if not entries:
        raise InvalidInput(f"{where}: got none, wanted at least one tensor")
    seen: dict[str, bool] = {}
    for entry in entries:
        if not entry.name or entry.name in seen:
            raise InvalidInput(f"{where}: name: got {entry.name!r}, wanted a unique name")
        if entry.datatype not in (*DTYPES, "BYTES"):
            wanted = ", ".join((*DTYPES, "BYTES"))
            raise InvalidInput(f"{where}: {entry.name}: datatype: got {entry.datatype!r}, wanted one of {wanted}")
        check_declared_shape(f"{where}: {entry.name}", entry.shape)
        seen[entry.name] = True


def _duration_ns(where: str, field: str, text: str) -> int:
    try:
        return parse_quantity(field, text, DURATIONS)
    except SettingsError as error:
        units = ", ".join(DURATIONS)
        raise InvalidInput(f"{where} {field}: got {text!r}, wanted a number with one of {units}") from error
