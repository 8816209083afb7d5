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


class ShareBatches:
    """Runs batches of `size` rows one after another. `run_next` returns the times of each.

    Transfers of a model in host memory take time only if the model declares them. A model with its own memory on the
    device has two slots, so that transfers and execution overlap.
    """

    def __init__(
        self, model: OpenModel, spec: ModelSpec, folder: Path, size: int, clock: Callable[[], int] = monotonic_ns
    ) -> None:
        self._size = size
        self._clock = clock
        self._model = model
        self._inputs = warmup_inputs(spec, folder, size)
        self._staged = model if isinstance(model, StagedModel) else None
        self._slots = [self._prepare_slot(self._staged) for _ in range(2)] if self._staged else []
        """The slot that is executed next, and the one that is loaded meanwhile, each with its inputs."""
        self._overlaps = self._staged is not None or model.has_transfers
        self._lane = ThreadPoolExecutor(1, "transfers")

    def _prepare_slot(self, model: StagedModel) -> tuple[BatchSlot, dict[str, Any]]:
        """Return a slot with a batch on the device, and the inputs in its host memory, where INPUT builds a batch."""
        slot = model.slot(model.shapes_of(self._inputs))
        slot.space.reset()
        placed = {}
        for name, array in self._inputs.items():
            placed[name] = slot.space.allocate(array.nbytes).view(array.dtype).reshape(array.shape)
            np.copyto(placed[name], array)
        model.stage(slot, placed)
        return slot, placed

    def run_next(self) -> BatchTimes:
        """Run a batch while the transfers of the next and the last batch take place."""
        transfers = self._lane.submit(self._transfer) if self._overlaps else None
        begin_ns = self._clock()
        device_ns = self._execute()
        gpu_ns = device_ns or self._clock() - begin_ns
        load_ns, feedback_ns = transfers.result() if transfers else (0, 0)
        self._slots.reverse()
        return BatchTimes(load_ns, gpu_ns, feedback_ns)

    def close(self) -> None:
        """End the thread of the transfers."""
        self._lane.shutdown()

    def _execute(self) -> int:
        """Execute a batch. Return the device's time in ns; 0 if only the host's clock measures it."""
        if self._staged is None:
            self._model.run(self._size, self._inputs)
            return 0
        slot, _ = self._slots[0]
        self._staged.execute(self._size, slot)
        return slot.device_ns

    def _transfer(self) -> tuple[int, int]:
        """Copy the outputs of the last batch and the inputs of the next one. Return the times of loading, feedback."""
        begin_ns = self._clock()
        if self._staged is None:
            self._model.copy_out(self._size)
        else:
            self._staged.fetch(self._size, self._slots[1][0])
        middle_ns = self._clock()
        if self._staged is None:
            self._model.copy_in(self._size)
        else:
            self._staged.stage(*self._slots[1])
        return self._clock() - middle_ns, middle_ns - begin_ns
