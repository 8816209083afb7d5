"""Batch trials: a measured row runs again in batches, for the execution times of larger batch sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_profiler.core.profiling_tasks import repeat_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_common.core.staging import StagedInputs
    from horologe_common.models import ModelSpec
    from horologe_profiler.core.profiling_tasks import ProfilingTask, SampleQueue


class BatchTrials:
    """Stages and queues batches that repeat one row. `new_id` returns an id for each of them.

    No batch is queued that is expected to take more than `time_max_ns`.
    """

    def __init__(self, time_max_ns: int, staging: StagedInputs, queue: SampleQueue, new_id: Callable[[], int]) -> None:
        self._time_max_ns = time_max_ns
        self._staging = staging
        self._queue = queue
        self._new_id = new_id

    def queue_batches(self, task: ProfilingTask, spec: ModelSpec, took_ns: int) -> None:
        """Queue batches of a row that took `took_ns` alone, the smallest first. Each is staged as one row."""
        inputs = self._staging.inputs_of(task.id)
        if inputs is None or not spec.batched:
            return
        for size in spec.batch_sizes[1:]:
            if size > 1 and took_ns * size <= self._time_max_ns:
                batch = msgspec.structs.replace(task, id=self._new_id(), size=size)
                if self._staging.hold(batch.id, *inputs):
                    self._queue.push_repetition(batch)

    def stage_batch(self, task: ProfilingTask) -> bool:
        """Stage the batch in place of its row. Return False if the staging memory is full."""
        inputs = self._staging.inputs_of(task.id)
        return inputs is not None and self._staging.hold(task.id, *repeat_row(*inputs, task.size))
