"""The state of a core as bytes, and back: pickle, written by us and read by a reader that knows what may be in it.

Three things do not travel. Tensor bytes become zeros of their size. Functions that a core was given (a digest, what
the executors know) become their names: whoever restores the core puts others in their place. Methods of the core
itself are found again by name.

Records of a store are bytes too, and no tensors: a class that says `whole = True` keeps what its fields hold.

A pickle can name anything to be imported and called. `restore` imports nothing but classes (no functions) defined in
the modules of `PURE`, none of which does any input or output, and the few containers of `ALLOWED`. Read recordings
of people you trust nevertheless.
"""

from __future__ import annotations

import importlib
import io
import pickle
import types
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common import wire
from horologe_common.status import HorologeError, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from horologe_common.core.protocol import Core

PURE = frozenset(
    {
        *(
            f"horologe_common.{name}"
            for name in (
                "applications",
                "clock",
                "distribution",
                "latency",
                "models",
                "recording.snapshot",
                "recording.tensor_summary",
                "service.metrics",
                "status",
            )
        ),
        *(
            f"horologe_{service}.settings"
            for service in ("frontend", "selector", "controller", "gpu_worker", "profiler")
        ),
        "horologe_selector.policy",
        "horologe_selector.store",
    }
)
"""Modules outside the cores that a core's state is made of."""
PURE_PACKAGES = (
    "horologe_common.core.",
    "horologe_common.wire.",
    "horologe_frontend.core.",
    "horologe_selector.core.",
    "horologe_selector.policies.",
    "horologe_controller.core.",
    "horologe_controller.schedulers.",
    "horologe_gpu_worker.core.",
    "horologe_profiler.core.",
)
"""Packages that a core is made of. A class of another one in a core's state is an error when it is read, not when
written."""
ALLOWED = frozenset(
    {
        ("builtins", "set"),
        ("builtins", "frozenset"),
        ("builtins", "bytearray"),
        ("collections", "deque"),
        ("collections", "Counter"),
        ("collections", "OrderedDict"),
        ("msgspec._core", "rebuild"),
        ("horologe_common.recording.snapshot", "method"),
        ("random", "Random"),
    }
)
KEEP_BYTES = 256
"""Byte strings up to this are keys and hashes, and are kept; longer ones are tensors."""
BYTES_LIMIT = 1 << 33
ATOMS = (int, float, str, bool, type(None))

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(wire.AnyMessage)
_WIRE = wire.AnyMessage.__args__


class SnapshotError(HorologeError):
    """These bytes are not the state of a core, or name what may not be in one."""

    status = Status.INVALID_INPUT


class Absent:
    """In the place of a function that did not travel."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *_: Any) -> Any:
        raise SnapshotError(f"{self.name} is not part of a snapshot")


class Zeros(msgspec.Struct, frozen=True):
    """So many bytes, in a message that was made light."""

    size: int


def snapshot(core: Core) -> bytes:
    """The core's state. Raises what pickle raises for an object that it cannot take apart."""
    file = io.BytesIO()
    _Writer(file, pickle.HIGHEST_PROTOCOL).dump(core)
    return file.getvalue()


def restore(state: bytes, functions: Mapping[str, Callable[..., Any]] | None = None) -> Any:
    """The core again. `functions`: what replaces those it was given, by name. Raises `SnapshotError`."""
    try:
        return _Reader(io.BytesIO(state), functions or {}).load()
    except SnapshotError:
        raise
    except Exception as error:  # any bytes may come
        raise SnapshotError(f"snapshot: {type(error).__name__}: {error}") from error


def strip_tensors(message: Any) -> Any:
    """The message without tensor bytes. Those of the wire have none."""
    if isinstance(message, _WIRE):
        return message
    return _light(message)


def _light(value: Any) -> Any:
    if isinstance(value, (*ATOMS, wire.Message)) or _is_whole(value):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return Zeros(len(value))
    if isinstance(value, tuple | list):
        return tuple(_light(one) for one in value)
    if isinstance(value, msgspec.Struct):
        return type(value)(*(_light(getattr(value, name)) for name in value.__struct_fields__))
    return None  # what a device left for the next lane


def fill_tensors(value: Any) -> Any:
    """The opposite of `light`: zeros of the right size."""
    if isinstance(value, Zeros):
        return bytes(value.size)
    if isinstance(value, tuple):
        return tuple(fill_tensors(one) for one in value)
    if isinstance(value, msgspec.Struct) and not isinstance(value, wire.Message):
        return type(value)(*(fill_tensors(getattr(value, name)) for name in value.__struct_fields__))
    return value


def dump_message(message: Any) -> tuple[str, bytes]:
    """A message of the wire as it would travel, a local one as a pickle."""
    if isinstance(message, _WIRE):
        return "wire", _encoder.encode(message)
    return "local", snapshot(message)


def load_message(dumped: Any) -> Any:
    """The opposite of `dump_message`."""
    form, body = dumped
    return _decoder.decode(body) if form == "wire" else restore(body)


def method(owner: Any, name: str) -> Any:
    """A method of an object of ours, found again by name."""
    cls = type(owner)
    if (
        not _is_pure(cls.__module__)
        or name.startswith("__")
        or not isinstance(getattr(cls, name, None), types.FunctionType)
    ):
        raise SnapshotError(f"snapshot: {cls.__qualname__}.{name} is no method of a core")
    return getattr(owner, name)


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self._whole: set[int] = set()
        """Bytes to keep, by identity: the pickler holds on to what it has written."""

    def persistent_id(self, value: Any) -> Any:
        """What does not travel, as what stands for it."""
        if isinstance(value, memoryview | bytearray):
            return "zeros", len(value)
        if isinstance(value, bytes) and len(value) > KEEP_BYTES and id(value) not in self._whole:
            return "zeros", len(value)
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType) and value is not method:
            return "function", value.__name__
        if isinstance(value, types.MethodType) and not _is_pure(type(value.__self__).__module__):
            return "function", value.__name__
        if isinstance(value, Absent):
            return "function", value.name
        return None

    def reducer_override(self, value: Any) -> Any:
        """Methods of the core itself; and what to keep of those that are whole, before their fields are written."""
        if isinstance(value, types.MethodType):
            return method, (value.__self__, value.__name__)
        if _is_whole(value):
            self._whole.update(map(id, _bytes_of(value)))
        return NotImplemented


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, functions: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__(file)
        self._functions = functions

    def persistent_load(self, pid: Any) -> Any:
        """See `_Writer.persistent_id`."""
        kind, value = pid
        if kind == "zeros" and isinstance(value, int) and 0 <= value < BYTES_LIMIT:
            return memoryview(bytes(value))
        if kind == "function" and isinstance(value, str):
            return self._functions.get(value) or Absent(value)
        raise SnapshotError(f"snapshot: {kind!r} is not known")

    def find_class(self, module: str, name: str) -> Any:
        """Only classes of `PURE`, and what is `ALLOWED`."""
        if (module, name) in ALLOWED:
            return getattr(importlib.import_module(module), name)
        if _is_pure(module) and "." not in name:
            found = getattr(importlib.import_module(module), name, None)
            if isinstance(found, type) and found.__module__ == module:
                return found
        raise SnapshotError(f"snapshot: {module}.{name} may not be in one (it is no class of a core's modules)")


def _is_whole(value: Any) -> bool:
    return isinstance(value, msgspec.Struct) and getattr(type(value), "whole", False)


def _bytes_of(value: msgspec.Struct) -> Iterator[bytes]:
    for name in value.__struct_fields__:
        field = getattr(value, name)
        yield from (one for one in (field if isinstance(field, tuple) else (field,)) if isinstance(one, bytes))


def _is_pure(module: str) -> bool:
    return module in PURE or module.startswith(PURE_PACKAGES)
