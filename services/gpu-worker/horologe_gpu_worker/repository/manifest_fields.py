"""Keys of `model.toml`, as structs. `manifest.py` reads and checks them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from horologe_common.interference.coefficients import GpuCoefficients, ModelCoefficients

ALL_VERSIONS = "all"
PROFILE_LENGTH = 16


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of `[[inputs]]` or `[[outputs]]`. The first dimension of `shape` is -1 if it counts rows.

    A name instead of a size is a variable dimension of the tensor's own: if it is the first one, it is no rows.
    """

    name: str
    datatype: str
    shape: tuple[int | str, ...]
    warmup: bool | int | float | str | list[Any] = 0
    """Inputs only: value when the model is warmed up and measured. A list is broadcast to the shape, as in numpy."""
    warmup_shape: tuple[int, ...] = ()
    """Inputs only: shape when the model is warmed up and measured; -1: rows, or `profile_length`."""
    reshape: tuple[int, ...] | None = None
    """Shape in the model, if it differs from that of the requests. Its -1 are those of `shape`, in their order."""
    optional: bool = False
    """Inputs of `python` only: requests may leave the input out."""
    labels: str = ""
    """Outputs only: file with the label of a class in each line, in the version's folder or beside it."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the shape with -1 for each name."""
        return tuple(-1 if isinstance(dim, str) else dim for dim in self.shape)

    @property
    def inner_sizes(self) -> tuple[int, ...]:
        """Return the shape in the model."""
        return self.sizes if self.reshape is None else self.reshape


class LatestVersions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`versions = { latest = n }`: the n newest versions are served."""

    latest: Annotated[int, msgspec.Meta(ge=1)]


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of `[files]`: a file of the version that is fetched, or whose hash is compared."""

    url: str = ""
    """Where the file is fetched from. Empty: it is in the version's folder."""
    sha256: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64})?$")] = ""
    """Hexadecimal digest that the file must have. Empty: that of the store is compared, if it has one."""


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
    items: Annotated[int, msgspec.Meta(ge=1)] = 16
    """Items of a stream, if the model streams."""
    sharing: EmulatedSharing | None = None
    """Times that depend on the worker's share of a device and on its neighbours, instead of declared ones."""


class StreamSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[stream]`: the model yields its outputs as items. The deadlines are those of requests without own ones."""

    first_item: str = "0"
    """Time until the first item; 0: none."""
    gap: str = "0"
    """Time between two items; 0: none."""
    max_open: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 256
    """Streams that a copy of the model keeps open. The first step of a further one goes elsewhere, or is refused."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of `model.toml`. Durations are text with a unit ("50ms"), sizes too ("512MiB")."""

    runtime: str = ""
    file: str = ""
    """Path of the model's file in the version's folder; empty: the default of its runtime."""
    versions: str | LatestVersions | tuple[str, ...] = ALL_VERSIONS
    """In the model's folder only: which versions are served: all, the newest, or these."""
    batch_sizes: tuple[int, ...] = ()
    batching: Literal["auto", "on", "off"] = "auto"
    """`off`: each request runs alone, in its own shape. `on`: first dimensions count rows, which is not compared."""
    max_rows: int = 0
    """With `batching = "off"`: tensors begin with the rows of a request, at most this many; 0: they do not."""
    slo: str = "0"
    cache: bool = False
    cache_ttl: str = "0"
    padded: bool = False
    """Inputs of different shapes share a batch, padded with zeros."""
    max_length: int = 0
    """Maximum size of a variable dimension; 0: no limit."""
    profile_length: int = PROFILE_LENGTH
    """Size of every variable dimension when the model is warmed up and measured. At most `max_length`."""
    weight: float = 1.0
    """What a request counts under overload, as a multiple of other models' requests."""
    guaranteed_rate: float = 0.0
    """Requests per second that are served before others' requests are; 0: none."""
    threads: int = 1
    timeout: str = "0"
    """python: a call that takes longer is treated as hung; 0: derived from the warm-up runs."""
    load_timeout: str = "0"
    """Time until the model must have been read, loaded and measured; 0: `worker.load_timeout_ns`."""
    python: str = ""
    """python: absolute path of the interpreter that runs the model's process; empty: the worker's."""
    requirements: str = ""
    """python: file of the packages in the model's own environment, in the version's folder or beside it."""
    memory_limit: str = "0"
    """python: maximum data segment of the model's process; 0: no limit."""
    gpu_memory: str = "0"
    """python, onnx: memory that the model may take on a CUDA device. 0: a python model gets no device, an onnx one has
    no limit.
    """
    providers: tuple[str, ...] = ()
    """onnx: ONNX Runtime's execution providers, in their order; empty: the default of the worker's device."""
    files: dict[str, FileEntry] = {}
    """Path in the version's folder -> its URL and hash."""
    inputs: tuple[TensorEntry, ...] = ()
    outputs: tuple[TensorEntry, ...] = ()
    declared_outputs_only: bool = False
    """onnx: leave out the outputs that `[[outputs]]` does not name."""
    emulated: EmulatedTimes | None = None
    stream: StreamSettings | None = None


msgspec.convert({}, Manifest)  # what msgspec builds for a type at its first use, two threads must not build at once
