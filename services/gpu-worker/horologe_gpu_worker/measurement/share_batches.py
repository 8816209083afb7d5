"""Batches of one model on one share, as the worker's lanes run them: transfers overlap with the execution before."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from horologe_common.clock import monotonic_ns
from horologe_gpu_worker.repository.model_spec import warmup_inputs
from horologe_gpu_worker.runtime import StagedModel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from horologe_common.models import ModelSpec
    from horologe_gpu_worker.runtime import BatchSlot, OpenModel


class BatchTimes(NamedTuple):
    """Times of one batch in ns."""

    load_ns: int
    gpu_ns: int
    feedback_ns: int


class StagedBatches:
    """Batches of a model with its own memory on the device. Two slots, so that transfers and execution overlap.

    `load` and `feed_back` copy the inputs of the next batch and the outputs of the last one. `execute` returns the
    device's time in ns; 0 if only the host's clock measures it. `advance` makes the loaded batch the next one.
    """

    def __init__(self, model: StagedModel, spec: ModelSpec, folder: Path, size: int) -> None:
        self._model = model
        self._size = size
        self._slots = [self._prepare_slot(warmup_inputs(spec, folder, size)) for _ in range(2)]
        self._turn = 0
        for slot, inputs in self._slots:
            model.stage(slot, inputs)

    def _prepare_slot(self, inputs: dict[str, Any]) -> tuple[BatchSlot, dict[str, Any]]:
        """Return a slot, and inputs in its host memory, where the INPUT lane builds a batch."""
        slot = self._model.slot(self._model.shapes_of(inputs))
        slot.space.reset()
        placed = {}
        for name, array in inputs.items():
            placed[name] = slot.space.allocate(array.nbytes).view(array.dtype).reshape(array.shape)
            np.copyto(placed[name], array)
        return slot, placed

    def load(self) -> None:
        self._model.stage(*self._slots[self._turn ^ 1])

    def execute(self) -> int:
        slot, _ = self._slots[self._turn]
        self._model.execute(self._size, slot)
        return slot.device_ns

    def feed_back(self) -> None:
        self._model.fetch(self._size, self._slots[self._turn ^ 1][0])

    def advance(self) -> None:
        self._turn ^= 1


class HostBatches:
    """Batches of a model in host memory. Transfers take time only if the model declares them."""

    def __init__(self, model: OpenModel, spec: ModelSpec, folder: Path, size: int) -> None:
        self._model = model
        self._size = size
        self._inputs = warmup_inputs(spec, folder, size)

    def load(self) -> None:
        self._model.copy_in(self._size)

    def execute(self) -> int:
        self._model.run(self._size, self._inputs)
        return 0

    def feed_back(self) -> None:
        self._model.copy_out(self._size)

    def advance(self) -> None:
        pass


class ShareBatches:
    """Runs batches one after another. `run_next` returns the times of each."""

    def __init__(
        self, model: OpenModel, spec: ModelSpec, folder: Path, size: int, clock: Callable[[], int] = monotonic_ns
    ) -> None:
        self._overlaps = True
        self._batches: StagedBatches | HostBatches
        if isinstance(model, StagedModel):
            self._batches = StagedBatches(model, spec, folder, size)
        else:
            self._batches, self._overlaps = HostBatches(model, spec, folder, size), model.has_transfers
        self._clock = clock
        self._lane = ThreadPoolExecutor(1, "transfers")

    def run_next(self) -> BatchTimes:
        """Run a batch while the transfers of the next and the last batch take place."""
        transfers = self._lane.submit(self._transfer) if self._overlaps else None
        begin_ns = self._clock()
        device_ns = self._batches.execute()
        gpu_ns = device_ns or self._clock() - begin_ns
        load_ns, feedback_ns = transfers.result() if transfers else (0, 0)
        self._batches.advance()
        return BatchTimes(load_ns, gpu_ns, feedback_ns)

    def close(self) -> None:
        """End the thread of the transfers."""
        self._lane.shutdown()

    def _transfer(self) -> tuple[int, int]:
        begin_ns = self._clock()
        self._batches.feed_back()
        middle_ns = self._clock()
        self._batches.load()
        return self._clock() - middle_ns, middle_ns - begin_ns
