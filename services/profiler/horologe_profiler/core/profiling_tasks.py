"""Profiling tasks: the queue of sampled rows, the batches that repeat them, and the runs in flight."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from horologe_common.clock import ms, s
from horologe_common.core.indexed_heap import IndexedHeap
from horologe_common.core.message_checks import check_range
from horologe_common.models import check_input_names, check_tensor
from horologe_common.status import InvalidInput
from horologe_common.wire import Tensor
from horologe_common.wire.frames import split_rows
from horologe_profiler.core.batch_fit import LENGTH_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.core.staging import StagedInputs
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Sample
    from horologe_profiler.core.measurements import MeasurementKey
    from horologe_profiler.core.profiling_rules import ProfilingRules
    from horologe_profiler.settings import ProfilerSettings

RowTensors = tuple[tuple[Tensor, ...], list[bytes]]
"""Headers and bytes of a row's tensors."""
Key = TypeVar("Key")
QUEUE_MAX = 16
"""Queued rows of one model and application. A newer row replaces the oldest."""
GRACE_NS = s(1)
"""Extra time after a run's budget in which the controller's answer may still arrive."""
FAILURE_PAUSE_NS = ms(100)
"""Pause after a refused or lost run."""


class ProfilingTask(msgspec.Struct, frozen=True):
    """Run one row, staged under `id`, repeated to a batch of `size`. Tasks with equal `row` repeat the same row.

    `round` is that of a comparison of inputs, 0 for a row that runs for the first time.
    """

    id: int
    key: MeasurementKey
    length: int
    row: int
    size: int = 1
    round: int = 0


class SampleQueue:
    """Rows by (model, application), and repetitions of rows that have run, by model.

    `count_times` returns how often rows of a key have run.
    """

    def __init__(self, count_times: Callable[[MeasurementKey], int]) -> None:
        self._count_times = count_times
        self._rows: dict[tuple[str, str], deque[ProfilingTask]] = {}
        self._repetitions: dict[str, deque[ProfilingTask]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def __iter__(self) -> Iterator[ProfilingTask]:
        for tasks in (*self._rows.values(), *self._repetitions.values()):
            yield from tasks

    def push(self, task: ProfilingTask) -> ProfilingTask | None:
        """Append the task to the queue of its model and application. Returns the task that it displaces, if any."""
        tasks = self._rows.setdefault(task.key[:2], deque())
        displaced = tasks.popleft() if len(tasks) >= QUEUE_MAX else None
        tasks.append(task)
        return displaced

    def push_repetition(self, task: ProfilingTask) -> None:
        self._repetitions.setdefault(task.key.model, deque()).append(task)

    def pop_next(self, running_models: Container[str]) -> ProfilingTask | None:
        """Remove and return a task of the next queue whose model does not run; that queue then comes last.

        Repetitions come first, in their order, then the row whose key has run the least.
        """
        for model, tasks in self._repetitions.items():
            if model not in running_models:
                task = tasks.popleft()
                _move_last(self._repetitions, model)
                return task
        for queue_key, tasks in self._rows.items():
            if queue_key[0] not in running_models:
                task = min(tasks, key=lambda task: self._count_times(task.key))
                tasks.remove(task)
                _move_last(self._rows, queue_key)
                return task
        return None

    def has_runnable(self, running_models: Container[str]) -> bool:
        models = (*self._repetitions, *(model for model, _ in self._rows))
        return any(model not in running_models for model in models)

    def drop_other_models(self, models: Container[str]) -> list[ProfilingTask]:
        rows = [queue_key for queue_key in self._rows if queue_key[0] not in models]
        repeated = [model for model in self._repetitions if model not in models]
        dropped = [task for queue_key in rows for task in self._rows.pop(queue_key)]
        return dropped + [task for model in repeated for task in self._repetitions.pop(model)]

    def check(self) -> None:
        assert all(self._rows.values())
        assert all(self._repetitions.values())


def _move_last(queues: dict[Key, deque[ProfilingTask]], key: Key) -> None:
    """Let another queue be the next; drop this one if it is empty."""
    tasks = queues.pop(key)
    if tasks:
        queues[key] = tasks


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


class ActiveRuns:
    """Tasks in flight by id: at most `in_flight`, at most one of each model. Each is finished exactly once."""

    def __init__(self, settings: ProfilerSettings, rules: ProfilingRules) -> None:
        self._busy_share = settings.busy_share
        self._rules = rules
        self._tasks: dict[int, ProfilingTask] = {}
        self._timeouts: IndexedHeap[Any, int] = IndexedHeap()
        self._initial_left_ns = settings.initial_time_ns
        """Device time of the first runs that is left."""
        self._budget_spent_ns = 0
        """The device time of past runs is paid for at this time, at the rate `busy_share`."""
        self._paused_ns = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[ProfilingTask]:
        return iter(list(self._tasks.values()))

    @property
    def running_models(self) -> set[str]:
        return {task.key.model for task in self._tasks.values()}

    def get(self, task_id: int) -> ProfilingTask | None:
        return self._tasks.get(task_id)

    def has_room(self) -> bool:
        return len(self._tasks) < self._rules.in_flight

    def start_run(self, now_ns: int, task: ProfilingTask) -> None:
        self._tasks[task.id] = task
        self._timeouts.push(task.id, now_ns + self._rules.budget_ns + GRACE_NS)

    def finish_run(self, task: ProfilingTask) -> None:
        del self._tasks[task.id]
        self._timeouts.remove(task.id)

    def next_start_ns(self) -> int:
        """Return the time from which the next run may start."""
        return max(self._paused_ns, self._budget_spent_ns)

    def charge_device_time(self, now_ns: int, took_ns: int, first: bool) -> None:
        """Charge `took_ns` of device time: it uses up the share of the next `took_ns / busy_share`.

        Example: with `busy_share` 0.05, a run of 10 ms uses up the share of 200 ms. A `first` run uses up
        `initial_time_ns` instead, while there is some left.
        """
        if first and self._initial_left_ns > 0:
            self._initial_left_ns -= took_ns
            return
        self._budget_spent_ns = max(self._budget_spent_ns, now_ns - took_ns) + round(took_ns / self._busy_share)

    def pause_after_failure(self, now_ns: int) -> None:
        self._paused_ns = now_ns + FAILURE_PAUSE_NS

    def overdue_tasks(self, now_ns: int) -> list[ProfilingTask]:
        """Return the tasks whose answer is overdue. The caller must finish them."""
        return [self._tasks[task_id] for task_id in self._timeouts.pop_up_to(now_ns)]

    def next_overdue_ns(self) -> int | None:
        return self._timeouts.smallest_priority()

    def check(self) -> None:
        self._timeouts.check()
        assert len(self.running_models) == len(self) == len(self._timeouts) <= self._rules.in_flight


def check_sample(spec: ModelSpec, message: Sample, buffers: Sequence[Buffer]) -> None:
    """Raise `InvalidInput` unless the tensors of a sample fit the model, and its rows and its length are in range."""
    check_range("length", message.length, 0, LENGTH_MAX)
    wanted = {tensor.name: tensor for tensor in spec.inputs}
    check_input_names(spec, [tensor.name for tensor in message.inputs])
    if len(buffers) != len(message.inputs):
        raise InvalidInput(f"inputs: got {len(buffers)} buffers, wanted {len(message.inputs)}")
    for tensor in message.inputs:
        check_tensor(wanted[tensor.name], tensor.datatype, tensor.shape)
        if spec.batched and not tensor.shape[0] == message.rows >= 1:
            raise InvalidInput(f"rows: got {message.rows} and a shape of {list(tensor.shape)}, wanted the same, from 1")


def copy_first_row(inputs: Sequence[Tensor], buffers: Sequence[Buffer], rows: int) -> RowTensors:
    """Copy the first of `rows` rows, so that the memory of the request can be freed."""
    tensors = [
        split_rows(tensor, buffer, [1])[0] if rows > 1 else (tensor, buffer)
        for tensor, buffer in zip(inputs, buffers, strict=True)
    ]
    return tuple(tensor for tensor, _ in tensors), [bytes(buffer) for _, buffer in tensors]


def repeat_row(inputs: Sequence[Tensor], buffers: Sequence[Buffer], times: int) -> RowTensors:
    headers = tuple(
        Tensor(tensor.name, tensor.datatype, (times, *tensor.shape[1:]), tensor.nbytes * times) for tensor in inputs
    )
    return headers, [bytes(buffer) * times for buffer in buffers]
