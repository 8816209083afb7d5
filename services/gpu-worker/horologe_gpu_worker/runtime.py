"""Runtime interface: a runtime opens models, and an open model runs batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from horologe_common.status import ModelFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from horologe_common.models import ModelSpec, Profile
    from horologe_gpu_worker.core.stream_step import Step
    from horologe_gpu_worker.execution.workspace import Workspace


class ProcessFailed(ModelFailed):
    """The process of a model has ended (`cause` crash), or did not answer and was killed (hang)."""

    def __init__(self, reason: str, cause: str) -> None:
        super().__init__(reason)
        self.cause = cause


class WarmUpFailed(ModelFailed):
    """The model was opened and failed on made-up inputs. It may run on real ones."""


class RowsFailed(ModelFailed):
    """The first dimension of the model's tensors does not count independent rows, or only one row at a time works."""


class OpenModel:
    """A model in memory. Used by one lane at a time."""

    has_transfers = False
    """True if `copy_in` and `copy_out` take time on the INPUT and OUTPUT lanes."""

    def run(self, batch_size: int, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Run one batch of exactly `batch_size` rows (a compiled size).

        Raises `ModelFailed` with the model's own message.
        """
        raise NotImplementedError

    def run_requests(
        self, batch_size: int, inputs: Mapping[str, NDArray[Any]], rows: Sequence[int]
    ) -> tuple[Mapping[str, NDArray[Any]], Mapping[int, str]]:
        """Run one batch of requests with `rows` rows each. Return its outputs, and why single requests failed by index.

        The outputs have rows of any value for a failed request. They are not used if all requests failed.
        """
        return self.run(batch_size, inputs), {}

    def run_quietly(self, batch_size: int, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Run one batch of made-up inputs without logging an exception of the model."""
        return self.run(batch_size, inputs)

    def step(self, step: Step, inputs: Mapping[str, NDArray[Any]]) -> tuple[Mapping[str, NDArray[Any]] | None, bool]:
        """Run one step of a stream. Return its item, and whether more may follow; see `OpenStreams.step`."""
        raise ModelFailed("the model does not stream")

    def end_streams(self, owner: str, streams: tuple[int, ...] = ()) -> None:
        """Drop the state of these streams of an owner, or of all of them; see `OpenStreams.end`."""

    def copy_in(self, rows: int) -> None:
        """INPUT: copy `rows` rows of input."""

    def copy_out(self, rows: int) -> None:
        """OUTPUT: copy `rows` rows of output."""

    def close(self) -> None:
        """Free the model's memory."""


class BatchSlot(Protocol):
    """Memory of one batch that passes through the lanes. Freed with the last reference to the slot."""

    space: Workspace
    """Host memory in which INPUT builds the batch and from which the device copies it."""
    device_ns: int
    """Compute time in ns measured by the device, after EXEC."""


Shapes: TypeAlias = "tuple[tuple[int, ...], ...]"
"""Shapes of a batch's inputs, in the order of the signature."""


class StagedModel(OpenModel):
    """An open model on a device with its own memory. INPUT, EXEC and OUTPUT are lanes and run in parallel."""

    def shapes_of(self, inputs: Mapping[str, NDArray[Any]]) -> Shapes:
        """Return the shapes of a batch."""
        raise NotImplementedError

    def bucket(self, shapes: Shapes) -> Shapes:
        """Return the shapes to which a batch of a `padded` model is padded: the given or longer ones."""
        return shapes

    def slot(self, shapes: Shapes) -> BatchSlot:
        """Allocate the memory of a batch. Raises `ModelFailed` if too little is free, or the model has other shapes."""
        raise NotImplementedError

    def stage(self, slot: Any, inputs: Mapping[str, NDArray[Any]]) -> None:
        """INPUT: copy the batch, built in `slot.space`, to the device."""
        raise NotImplementedError

    def execute(self, batch_size: int, slot: Any) -> None:
        """EXEC: run the batch. Raises `ModelFailed`."""
        raise NotImplementedError

    def fetch(self, batch_size: int, slot: Any) -> Mapping[str, NDArray[Any]]:
        """OUTPUT: copy the outputs to the host. The model may be unloaded already."""
        raise NotImplementedError

    def run(self, batch_size: int, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Run the work of the three lanes in sequence; see `OpenModel.run`."""
        slot = self.slot(self.shapes_of(inputs))
        self.stage(slot, inputs)
        self.execute(batch_size, slot)
        return self.fetch(batch_size, slot)


class Runtime:
    """Opens models of one kind. `inspect` and `open` are required; the other methods suit most runtimes."""

    inline_io = True
    """True if INPUT and OUTPUT are part of EXEC (host memory)."""

    def provision(self, folder: Path, report: Callable[[str], None]) -> None:
        """Make what the model needs outside of its folder, before it is inspected. `report` receives the progress.

        Blocking; runs in the process that inspects the version. Raises `InvalidModel`.
        """

    def inspect(self, folder: Path) -> ModelSpec:
        """Return the spec of `<repository>/<name>/<version>` from its files and `model.toml`.

        Raises `InvalidModel` naming file, field, got and wanted.
        """
        raise NotImplementedError

    def place(self, spec: ModelSpec, folder: Path) -> ModelSpec:
        """Return the spec as the model runs on this worker: whether it uses the device, and the memory there."""
        return spec

    def open(self, spec: ModelSpec, folder: Path, *, warm: bool = True) -> OpenModel:
        """Read the model into memory. With `warm`, run every batch size once on made-up inputs. Blocking; runs on the
        LOAD lane. Raises `InvalidModel`, `ModelFailed` or `WarmUpFailed`.
        """
        raise NotImplementedError

    def prepare(self, spec: ModelSpec, folder: Path) -> None:
        """Do the slow work of `open` once, when the repository is scanned. Raises the errors of `open`."""

    def profile(self, spec: ModelSpec, folder: Path) -> Profile | None:
        """Return the times that the model declares; None if it must be measured."""
        return None

    def is_open(self, spec: ModelSpec) -> bool:
        """Return True if a LOAD returns at once, because the model is open in host memory."""
        return False

    def open_kept(self, spec: ModelSpec) -> OpenModel | None:
        """Return a model of this content that is open in host memory, without reading its files; None if none is."""
        return None

    def measured_model(self) -> Runtime:
        """Return the runtime that opens one model to measure it in this process, and that `stop` stops."""
        return self

    def stop(self) -> None:
        """Stop the model that is measured, if it runs in a process of its own. May be called from any thread."""

    def close(self) -> None:
        """Free what is kept for models that are not loaded."""
