"""Snapshots: the state of a core as bytes. A pickle, read with an allow-list.

Three kinds of values are not saved as they are. Bytes of tensors become zeros of the same size. Functions that were
passed to the core, such as the digest, become their names; `restore` takes replacements. Methods of the core's own
objects are saved by name. The records of a store are bytes but not tensors: a class with `whole = True` keeps them.

A pickle can name anything to be imported and called. `restore` imports only classes, not functions, and only those of
`PURE_PACKAGES`, `PURE_MODULES` and `ALLOWED`, which do no input or output. Still, read only recordings that you trust.
"""

from __future__ import annotations

import enum
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
    "horologe_tuner.core.",
    "horologe_planning.",
)
"""Packages that cores consist of."""
PURE_MODULES = frozenset(
    {
        *(f"horologe_common.{data}" for data in ("applications", "clock", "distribution", "models", "status")),
        "horologe_common.pipelines",
        "horologe_common.rollouts",
        *(f"horologe_common.recording.{part}" for part in ("snapshot", "tensor_summary")),
        *(
            f"horologe_{name}.settings"
            for name in ("frontend", "selector", "controller", "gpu_worker", "profiler", "tuner")
        ),
        *(f"horologe_selector.{name}" for name in ("driver", "policy", "store")),
    }
)
"""Modules of data outside these packages. A class of any other module in a core's state is an error when it is read."""
ALLOWED = frozenset(
    {
        *(("builtins", name) for name in ("set", "frozenset", "bytearray")),
        *(("collections", name) for name in ("deque", "Counter", "OrderedDict")),
        ("msgspec._core", "rebuild"),
        ("horologe_common.recording.snapshot", "method"),
        ("random", "Random"),
    }
)
KEPT_BYTES = 256
"""Byte strings of at most this length are keys and hashes, and are saved. Longer ones are tensors."""
BYTES_LIMIT = 1 << 33
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
"""A method of a compiled class is a built-in function."""
ATOMS = (int, float, str, bool, type(None))

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(wire.AnyMessage)
_WIRE = wire.AnyMessage.__args__


class SnapshotError(HorologeError):
    """The bytes are not a snapshot, or name something that a snapshot must not contain."""

    status = Status.INVALID_INPUT


class MissingFunction:
    """Placeholder for a function that is not part of the snapshot. Raises `SnapshotError` when called."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *_: Any) -> Any:
        raise SnapshotError(f"{self.name} is not part of a snapshot")


class Zeros(msgspec.Struct, frozen=True):
    """Placeholder for `size` bytes in a message without its tensors."""

    size: int


def snapshot(core: Core) -> bytes:
    """Return the core's state. Raises what pickle raises for an object that cannot be pickled."""
    file = io.BytesIO()
    _Writer(file, pickle.HIGHEST_PROTOCOL).dump(core)
    return file.getvalue()


def restore(state: bytes, functions: Mapping[str, Callable[..., Any]] | None = None) -> Any:
    """Return the core. `functions` replaces, by name, those passed to it originally. Raises `SnapshotError`."""
    try:
        return _Reader(io.BytesIO(state), functions or {}).load()
    except SnapshotError:
        raise
    except Exception as error:  # the bytes may be anything
        raise SnapshotError(f"snapshot: {type(error).__name__}: {error}") from error


def strip_tensors(message: Any) -> Any:
    """Return the message without the bytes of tensors. Messages of the wire contain none."""
    if isinstance(message, _WIRE):
        return message
    return _strip(message)


def _strip(value: Any) -> Any:
    if isinstance(value, (*ATOMS, wire.Message)) or _is_whole(value):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return Zeros(len(value))
    if isinstance(value, tuple | list):
        return tuple(_strip(item) for item in value)
    if isinstance(value, msgspec.Struct):
        return type(value)(*(_strip(getattr(value, name)) for name in value.__struct_fields__))
    return None  # a device's object between two lanes


def fill_tensors(value: Any) -> Any:
    """Replace the placeholders of `strip_tensors` by zeros."""
    if isinstance(value, Zeros):
        return bytes(value.size)
    if isinstance(value, tuple):
        return tuple(fill_tensors(item) for item in value)
    if isinstance(value, msgspec.Struct) and not isinstance(value, wire.Message):
        return type(value)(*(fill_tensors(getattr(value, name)) for name in value.__struct_fields__))
    return value


def dump_message(message: Any) -> tuple[str, bytes]:
    """Return a message of the wire in its encoding, another message as a pickle."""
    if isinstance(message, _WIRE):
        return "wire", _encoder.encode(message)
    return "local", snapshot(message)


def load_message(dumped: Any) -> Any:
    """Return the message that `dump_message` has encoded."""
    form, body = dumped
    return _decoder.decode(body) if form == "wire" else restore(body)


def method(owner: Any, name: str) -> Any:
    """Return a method of a core's object by name. Raises `SnapshotError` for any other object or name."""
    cls = type(owner)
    found = getattr(cls, name, None)
    if (
        not _is_pure(cls.__module__)
        or name.startswith("__")
        or not isinstance(found, types.FunctionType | types.MethodDescriptorType)
        or not _is_pure(getattr(found, "__objclass__", cls).__module__)  # not what a class inherits from Python's own
    ):
        raise SnapshotError(f"snapshot: {cls.__qualname__}.{name} is not a method of a core")
    return getattr(owner, name)


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self._whole: set[int] = set()
        """Identities of the bytes to save as they are. The pickler keeps references, so ids are not reused."""

    def persistent_id(self, value: Any) -> Any:
        """Return the placeholder of a value that is not saved, or None."""
        if isinstance(value, memoryview | bytearray):
            return "zeros", len(value)
        if isinstance(value, bytes) and len(value) > KEPT_BYTES and id(value) not in self._whole:
            return "zeros", len(value)
        if isinstance(value, FUNCTIONS) and value is not method and not _is_method_of_core(value):
            return "function", value.__name__
        if isinstance(value, MissingFunction):
            return "function", value.name
        return None

    def reducer_override(self, value: Any) -> Any:
        """Save methods by name, and mark the bytes of whole structs before their fields are written."""
        if _is_method_of_core(value):
            return method, (value.__self__, value.__name__)
        if isinstance(value, enum.Enum):  # Python 3.11.0 to 3.11.3 save a call of `getattr`, which is not allowed
            return type(value), (value.value,)
        if _is_whole(value):
            self._whole.update(map(id, _bytes_of(value)))
        return NotImplemented


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, functions: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__(file)
        self._functions = functions

    def persistent_load(self, pid: Any) -> Any:
        """Return the value for a placeholder of `_Writer.persistent_id`."""
        kind, value = pid
        if kind == "zeros" and isinstance(value, int) and 0 <= value < BYTES_LIMIT:
            return memoryview(bytes(value))
        if kind == "function" and isinstance(value, str):
            return self._functions.get(value) or MissingFunction(value)
        raise SnapshotError(f"snapshot: {kind!r} is not a kind of placeholder")

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed class or function. Raises `SnapshotError` for any other."""
        if (module, name) in ALLOWED:
            return getattr(importlib.import_module(module), name)
        if _is_pure(module) and "." not in name:
            value = getattr(importlib.import_module(module), name, None)
            if isinstance(value, type) and value.__module__ == module:
                return value
        raise SnapshotError(f"snapshot: {module}.{name} is not allowed (not a class of a pure module)")


def _is_method_of_core(value: Any) -> bool:
    if not isinstance(value, types.MethodType | types.BuiltinFunctionType):
        return False
    return _is_pure(type(value.__self__).__module__)


def _is_whole(value: Any) -> bool:
    return isinstance(value, msgspec.Struct) and getattr(type(value), "whole", False)


def _bytes_of(value: msgspec.Struct) -> Iterator[bytes]:
    for name in value.__struct_fields__:
        field = getattr(value, name)
        yield from (item for item in (field if isinstance(field, tuple) else (field,)) if isinstance(item, bytes))


def _is_pure(module: str) -> bool:
    return module in PURE_MODULES or module.startswith(PURE_PACKAGES)
