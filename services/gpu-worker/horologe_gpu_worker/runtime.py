"""The interface of whatever computes: a runtime opens models, an opened model runs batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from horologe_common.models import ModelSpec
    from horologe_gpu_worker.execution.io_cache import Workspace


class Place(NamedTuple):
    """Where a worker's models live."""

    device: str = "cpu"
    """`cuda`, `cuda:1`, …; anything else is a name for the host's processor."""
    pages: int = 256
    """Pages of 16 MiB for weights, over all shares."""
    io_bytes: int = 64 << 20
    """Room on the device for inputs and outputs that wait between lanes."""

    @property
    def cuda(self) -> int | None:
        """Number of the CUDA device; None where it is none. Raises ValueError for `cuda:` and no number."""
        kind, _, number = self.device.partition(":")
        if kind != "cuda":
            return None
        if number and not number.isdecimal():
            raise ValueError(f"device: got {self.device!r}, wanted 'cuda' or 'cuda:' and a number")
        return int(number or 0)


HOST = Place()


class OpenModel(Protocol):
    """A model in memory. Used by one lane at a time."""

    def run(self, batch_size: int, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Run one batch of exactly `batch_size` rows (a compiled size).

        Raises `ModelFailed` with the model's own message.
        """

    def close(self) -> None:
        """Free what the model holds."""


class Slot(Protocol):
    """Inputs and outputs of one batch on their way through the lanes; its memory is free when nobody holds it."""

    space: Workspace
    """Host memory that the device copies from: where INPUT builds the batch."""
    device_ns: int
    """How long the device computed, after EXEC."""


@runtime_checkable
class Staging(Protocol):
    """An open model on a device with memory of its own: INPUT, EXEC and OUTPUT are lanes, and run side by side."""

    def slot(self, batch_size: int) -> Slot:
        """Room for a batch. Raises `ModelFailed` where all of it is taken."""

    def stage(self, slot: Any, inputs: Mapping[str, NDArray[Any]]) -> None:
        """INPUT: copy the batch, which was built in `slot.space`, to the device."""

    def execute(self, batch_size: int, slot: Any) -> None:
        """EXEC: run the batch. Raises `ModelFailed`."""

    def fetch(self, batch_size: int, slot: Any) -> Mapping[str, NDArray[Any]]:
        """OUTPUT: copy the outputs back. Needs nothing of the model's weights."""


@runtime_checkable
class Prepares(Protocol):
    """A runtime that does once, when the repository is read, what no LOAD should wait for (warm-up, capture)."""

    def prepare(self, spec: ModelSpec, folder: Path) -> None:
        """Have the model ready to be loaded. Blocking. Raises `InvalidModel` or `ModelFailed`."""


class Runtime(Protocol):
    """Opens models of one kind. `inline_io`: INPUT and OUTPUT need no lane of their own (host memory)."""

    inline_io: bool

    def inspect(self, folder: Path) -> ModelSpec:
        """The signature of `<repository>/<name>/<version>` with its `model.toml`.

        Raises `InvalidModel` naming file, field, got and wanted.
        """

    def open(self, spec: ModelSpec, folder: Path) -> OpenModel:
        """Read the model into memory and warm every batch size. Blocking; runs on the LOAD lane."""
