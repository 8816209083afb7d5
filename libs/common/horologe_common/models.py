"""Models: signature, sizes and measured times, and checks of tensors against a signature."""

from __future__ import annotations

import math
import re
import zlib
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_common.status import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_common.wire import Tensor

PAGE_BYTES = 16 << 20
"""Size of a page of weights (Clockwork section 5.2)."""
PAGE_PARTS = 8
"""Models whose runtime maps no pages share them in eighths, 2 MiB each. An ONNX Runtime session on the CPU takes 0.1
MiB with a linear model, 2 MiB with a small CNN."""

NEXT_STEP, FIRST_STEP = 1, 2
"""Batch sizes of a model that streams. An action is one step: the first step of a stream, which may take longer, counts
as two rows. So it has a profile and estimates of its own, and never shares an action with another step."""

DTYPES: dict[str, np.dtype[np.generic]] = {
    "BOOL": np.dtype("?"), "UINT8": np.dtype("u1"), "UINT16": np.dtype("<u2"), "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"), "INT8": np.dtype("i1"), "INT16": np.dtype("<i2"), "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"), "FP16": np.dtype("<f2"), "FP32": np.dtype("<f4"), "FP64": np.dtype("<f8"),
}  # fmt: skip
"""Open Inference Protocol datatype -> numpy dtype, little-endian."""

DATATYPES: dict[np.dtype[np.generic], str] = {dtype: name for name, dtype in DTYPES.items()}


MAX_DIMS = 32
"""Limit of numpy before version 2."""
MAX_DIM = 1 << 40


class TensorSpec(msgspec.Struct, array_like=True, frozen=True):
    """A tensor of a model's signature. `shape` includes the batch dimension; -1 is a variable dimension."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class ModelSpec(msgspec.Struct, array_like=True, frozen=True, dict=True):
    """A model version. `batched`: dimension 0 of every tensor counts rows.

    `padded`: inputs of different shapes share a batch; each variable dimension is padded with zeros to the longest.
    `profile_length`: length of every variable dimension when the profile is measured; 0 if all are fixed. `max_length`:
    limit of a variable dimension; 0: none.
    """

    name: str
    version: str
    runtime: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batch_sizes: tuple[int, ...] = (1,)
    batched: bool = True
    slo_ns: int = 0
    weights_bytes: int = 0
    content_hash: str = ""
    cache: bool = False
    cache_ttl_ns: int = 0
    padded: bool = False
    profile_length: int = 0
    max_length: int = 0
    shares_pages: bool = False
    """True if the model takes eighths of pages instead of whole ones."""
    warmup_shapes: tuple[tuple[int, ...], ...] = ()
    """Shape of each input in warm-up and measurement; -1: rows, or `profile_length`. Empty: the shapes of `inputs`."""
    text: bool = False
    """True if every element of a BYTES input must be UTF-8 text."""
    notes: tuple[str, ...] = ()
    """Remarks for operators: what the model's files hold and is not used, and why the model is not batched."""
    weight: float = 1.0
    """What a request counts under overload, as a multiple of other models' requests."""
    guaranteed_rate: float = 0.0
    """Requests per second that are served before others' requests are: a model that gets less counts more."""
    streams: bool = False
    """True if the model yields its outputs as items of a stream. Its batch sizes are `NEXT_STEP` and `FIRST_STEP`."""
    first_ns: int = 0
    """Default time until the first item of a stream; 0: none."""
    gap_ns: int = 0
    """Default time between two items of a stream; 0: none."""
    labels: tuple[tuple[str, ...], ...] = ()
    """Labels of the classes of each output, by index. Empty: no output has any."""
    optional: tuple[str, ...] = ()
    """Inputs that a request may leave out. Only requests with the same inputs share a batch."""
    label_files: tuple[str, ...] = ()
    """Name of the file with the labels of each output. Empty: no output has any."""
    on_gpu: bool = False
    """True if the model computes on the worker's CUDA device."""
    max_rows: int = 0
    """Limit of the rows of a request to a model whose requests run alone, and whose tensors begin with the rows.
    0: they do not, or requests share batches."""

    @property
    def has_signature(self) -> bool:
        """Return whether the model has been read: until then, only its name and version are known."""
        return bool(self.outputs)

    @property
    def loads_beside(self) -> bool:
        """Return whether a LOAD runs beside others: it starts a process, which takes up to minutes of its own."""
        return self.runtime == "python"

    @cached_property
    def key(self) -> str:
        """Return `name/version`, the name of the model in messages behind the selector."""
        return f"{self.name}/{self.version}"

    @cached_property
    def has_string_inputs(self) -> bool:
        """Return whether an input is BYTES."""
        return any(tensor.datatype == "BYTES" for tensor in self.inputs)

    @cached_property
    def variable_dimensions(self) -> dict[str, tuple[int, ...]]:
        """Return the indices of the variable dimensions of each input that has any, without the rows' dimension."""
        places = {
            tensor.name: tuple(at for at in range(self.batched, len(tensor.shape)) if tensor.shape[at] == -1)
            for tensor in self.inputs
        }
        return {name: dimensions for name, dimensions in places.items() if dimensions}

    @cached_property
    def pages(self) -> float:
        """Return the number of pages of the weights, a multiple of an eighth if the model shares pages."""
        parts = PAGE_PARTS if self.shares_pages else 1
        return max(1, math.ceil(self.weights_bytes * parts / PAGE_BYTES)) / parts

    def is_compatible(self, other: ModelSpec) -> bool:
        """Return whether requests and batches that were made for `other` can run on this content of the model."""
        return (self.inputs, self.outputs, self.batch_sizes, self.optional) == (
            other.inputs,
            other.outputs,
            other.batch_sizes,
            other.optional,
        ) and self.has_same_rows(other)

    def has_same_rows(self, other: ModelSpec) -> bool:
        """Return whether both have the same notion of a row: workers that measure one content may differ in it."""
        return (self.batched, self.padded) == (other.batched, other.padded)

    @cached_property
    def max_batch(self) -> int:
        """Return the largest compiled batch size."""
        return self.batch_sizes[-1]

    def compiled_batch_size(self, rows: int) -> int:
        """Return the smallest compiled batch size of at least `rows`, to which batches are padded."""
        for size in self.batch_sizes:
            if size >= rows:
                return size
        raise InvalidInput(f"model {self.name}: {rows} rows, at most {self.max_batch}")


class Profile(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Measured times of a model on a kind of device: `exec_ns` by batch size, and `load_ns`."""

    exec_ns: dict[int, int]
    load_ns: int
    measured: bool = True
    """False: a first estimate, because the model failed on made-up inputs and has not run on enough requests yet."""


@lru_cache(4096)
def nbytes(datatype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of a fixed-width tensor. Raises `InvalidInput` for an unknown datatype or invalid shape."""
    dtype = DTYPES.get(datatype)
    if dtype is None:
        raise InvalidInput(f"datatype: got {datatype!r}, wanted one of {', '.join(DTYPES)}")
    return element_count(shape) * dtype.itemsize


def element_count(shape: Sequence[int]) -> int:
    """Return the elements of a tensor of this shape. Raises `InvalidInput` for a shape that no array can have."""
    if len(shape) > MAX_DIMS:
        raise InvalidInput(f"shape: got {len(shape)} dimensions, at most {MAX_DIMS}")
    elements = 1
    for dim in shape:  # called for every tensor: a loop is three times as fast as any() and prod()
        if not 0 <= dim <= MAX_DIM:
            raise InvalidInput(f"shape: got {list(shape)}, wanted no negative dimension and none over {MAX_DIM}")
        elements *= dim
    return elements


def check_declared_shape(where: str, shape: Sequence[int]) -> None:
    """Raise `InvalidInput` unless a signature can have the shape."""
    if len(shape) > MAX_DIMS or not all(-1 <= dim <= MAX_DIM for dim in shape):
        wanted = f"wanted sizes, or -1: at most {MAX_DIMS} sizes, none over {MAX_DIM}"
        raise InvalidInput(f"{where}: shape: got {list(shape)}, {wanted}")


def check_tensor(spec: TensorSpec, datatype: str, shape: Sequence[int]) -> None:
    """Raise `InvalidInput`, with the field and the expected value, unless the tensor matches the signature."""
    if datatype != spec.datatype:
        raise InvalidInput(f"input {spec.name!r}: datatype: got {datatype}, wanted {spec.datatype}")
    if len(shape) != len(spec.shape) or any(
        want not in (-1, got) or got < 0 for got, want in zip(shape, spec.shape, strict=True)
    ):
        raise InvalidInput(f"input {spec.name!r}: shape: got {list(shape)}, wanted {list(spec.shape)}")


def input_length(spec: ModelSpec, shapes: Mapping[str, Sequence[int]]) -> int:
    """Return the length of inputs of these shapes: the product of their variable dimensions, 0 if all are fixed.

    If several inputs have variable dimensions, the input with the most of them counts, then the largest. Execution time
    mostly depends on this length: the tokens of a text, the pixels of an image.
    """
    sizes = (
        (len(places), math.prod(shapes[name][at] for at in places))
        for name, places in spec.variable_dimensions.items()
        if name in shapes
    )
    return max(sizes, default=(0, 0))[1]


def check_variable_dimensions(spec: ModelSpec, shapes: Mapping[str, Sequence[int]]) -> None:
    """Raise `InvalidInput` if a variable dimension is too long, or differs between the inputs of a padded model.

    Also raise it for more than `max_rows` rows, and for inputs with different numbers of them.

    Inputs are padded separately. A request whose mask is shorter than its tokens would make its whole batch fail.
    """
    if spec.max_rows:
        rows = sorted({shape[0] for shape in shapes.values()})
        if len(rows) != 1 or not 1 <= rows[0] <= spec.max_rows:
            raise InvalidInput(f"inputs: got {rows} rows, wanted 1 to {spec.max_rows}, the same for all")
    firsts: dict[int, str] = {}
    for name, places in spec.variable_dimensions.items():
        for at in places if name in shapes else ():
            got, first = shapes[name][at], firsts.setdefault(at, name)
            text = f"input {name!r}: shape: got {list(shapes[name])}, wanted"
            if spec.max_length and got > spec.max_length:
                raise InvalidInput(f"{text} at most {spec.max_length} in dimension {at}")
            if spec.padded and got != (wanted := shapes[first][at]):
                raise InvalidInput(f"{text} {wanted} in dimension {at}, as in input {first!r}")


def check_request(spec: ModelSpec, inputs: tuple[Tensor, ...], outputs: tuple[str, ...] = ()) -> tuple[int, int, int]:
    """Return (rows, shape key, length). Raise `InvalidInput` unless inputs and output names fit the signature."""
    rows = _check_tensors(spec, inputs, outputs)
    if not spec.variable_dimensions and len(inputs) == len(spec.inputs):
        return rows, 0, 0
    shapes = {tensor.name: tensor.shape for tensor in inputs}
    check_variable_dimensions(spec, shapes)
    return rows, shape_key(spec, inputs), input_length(spec, shapes)


def check_input_names(spec: ModelSpec, names: Sequence[str]) -> None:
    """Raise `InvalidInput` unless these are the inputs of the model, each once, perhaps without optional ones."""
    wanted = [tensor.name for tensor in spec.inputs]
    if sorted(names) != sorted(wanted):
        received, optional = set(names), set(spec.optional)
        if not names or len(received) != len(names) or received | optional != optional.union(wanted):
            without = f", perhaps without {list(spec.optional)}" if optional else ""
            raise InvalidInput(f"inputs: got {list(names)}, wanted {wanted}{without}")


def _check_tensors(spec: ModelSpec, inputs: tuple[Tensor, ...], outputs: tuple[str, ...]) -> int:
    """Return the number of rows."""
    wanted = {tensor.name: tensor for tensor in spec.inputs}
    check_input_names(spec, [tensor.name for tensor in inputs])
    for tensor in inputs:
        check_tensor(wanted[tensor.name], tensor.datatype, tensor.shape)
    output_names = [tensor.name for tensor in spec.outputs]
    for name in outputs:
        if name not in output_names:
            raise InvalidInput(f"outputs: got {name!r}, wanted some of {output_names}")
    if len(outputs) != len(set(outputs)):
        raise InvalidInput(f"outputs: got {list(outputs)[: len(output_names) + 1]}, wanted each once")
    if not spec.batched:
        return 1
    rows = {tensor.shape[0] for tensor in inputs}
    if len(rows) != 1 or not 1 <= min(rows) <= spec.max_batch:
        raise InvalidInput(f"inputs: got {sorted(rows)} rows, wanted 1 to {spec.max_batch}, the same for all")
    return rows.pop()


def shape_key(spec: ModelSpec, inputs: Sequence[Tensor]) -> int:
    """Return a number that is equal for requests that can share a batch.

    It is 0 for padded models and for models without batches, else a checksum of the shapes without rows. For a padded
    model it is a checksum of the names if an optional input is left out.
    """
    if not spec.batched or (spec.padded and len(inputs) == len(spec.inputs)):
        return 0
    shapes = [(tensor.name, () if spec.padded else tensor.shape[1:]) for tensor in inputs]
    return zlib.crc32(repr(shapes).encode()) | 1 << 32


def natural_sort_key(version: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key by which numbers inside a version compare as numbers: `v9` before `v10`."""
    parts = re.findall(r"\d+|\D+", version)
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts)
