"""Comparisons of a model's inputs: its rows run in several rounds, as repetitions that stay staged in between."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from horologe_profiler.core.input_dependence import Verdict, input_effect, length_effect

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from horologe_common.core.staging import StagedInputs
    from horologe_profiler.core.input_dependence import InputEffect
    from horologe_profiler.core.profiling_tasks import ProfilingTask, SampleQueue

ROWS, ROWS_MIN = 12, 8
"""Rows of a comparison, and how many of them must have run in all rounds."""
ROUNDS = 3


class Comparison:
    """Rows of one model, and how long each took in every round so far. The first round collects rows as they come."""

    def __init__(self) -> None:
        self.times: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}
        """Lengths by row, in the order in which the rows ran in the first round."""
        self.waiting: dict[int, ProfilingTask] = {}
        """Staged tasks of the next round by row: these rows have run in the present round."""
        self._round = 0

    def wants_rows(self) -> bool:
        """Return whether the first round takes another row."""
        return not self._round and len(self.times) < ROWS

    def round_is_over(self) -> bool:
        """Return whether all rows of the present round have run."""
        return not self.wants_rows() and all(len(times) > self._round for times in self.times.values())

    def next_round(self) -> list[ProfilingTask]:
        """Begin another round; return its tasks in the order in which they run. Empty after the last round."""
        self._round += 1
        order = sorted(self.waiting, key=lambda row: crc32(b"%d/%d" % (self._round, row)))
        return [self.waiting.pop(row) for row in order]

    def length_effect(self) -> InputEffect | None:
        """Return what lengths explain of the times of the first round; None in later rounds, or if that is unclear."""
        if self._round or len(self.times) < ROWS:
            return None
        return length_effect([(self.lengths[row], times[0]) for row, times in self.times.items()])

    def effect(self) -> InputEffect | None:
        """Return the result; None if too few rows have run in every round."""
        complete = [times for times in self.times.values() if len(times) == ROUNDS]
        return input_effect(list(zip(*complete, strict=True))) if len(complete) >= ROWS_MIN else None


class Comparisons:
    """The present comparison of each model, when the next one begins, and the verdicts.

    `staging` holds the rows, `queue` takes the repetitions, `new_id` returns an id for each of them.
    """

    def __init__(self, interval_ns: int, staging: StagedInputs, queue: SampleQueue, new_id: Callable[[], int]) -> None:
        self._interval_ns = interval_ns
        self._staging = staging
        self._queue = queue
        self._new_id = new_id
        self._present: dict[str, Comparison] = {}
        self._next_ns: dict[str, int] = {}
        self.verdicts: dict[str, Verdict] = {}

    def is_dynamic(self, model: str) -> bool:
        """Return the verdict about a model; False before the first one."""
        verdict = self.verdicts.get(model)
        return verdict is not None and verdict.dynamic

    def is_open(self, model: str) -> bool:
        """Return whether a model that counts as static may turn out to be dynamic: it has not been compared yet."""
        verdict = self.verdicts.get(model)
        return verdict is None or (verdict.contrary > 0 and not verdict.dynamic)

    def wants_row(self, now_ns: int, model: str) -> bool:
        """Return whether a comparison of the model takes another row."""
        if not self._interval_ns:
            return False
        present = self._present.get(model)
        return now_ns >= self._next_ns.get(model, 0) if present is None else present.wants_rows()

    def record_run(self, now_ns: int, task: ProfilingTask, took_ns: int) -> None:
        """Use the run of a row in the comparison of its model, if there is one. Its inputs stay for the next round."""
        model = task.key.model
        comparison = self._present.get(model)
        if not task.round and self.wants_row(now_ns, model):
            comparison = self._present[model] = comparison or Comparison()
        elif not task.round or comparison is None:
            return
        comparison.times.setdefault(task.row, []).append(took_ns)
        comparison.lengths.setdefault(task.row, task.length)
        inputs = self._staging.inputs_of(task.id)
        if task.round + 1 < ROUNDS and inputs is not None:
            again = msgspec.structs.replace(task, id=self._new_id(), round=task.round + 1)
            if self._staging.hold(again.id, *inputs):
                comparison.waiting[task.row] = again
            else:
                del comparison.times[task.row]
        self._advance(now_ns, model, comparison)

    def drop_task(self, now_ns: int, task: ProfilingTask) -> None:
        comparison = self._present.get(task.key.model)
        if comparison is not None and task.size == 1 and task.row in comparison.times:
            del comparison.times[task.row]
            self._advance(now_ns, task.key.model, comparison)

    def _advance(self, now_ns: int, model: str, comparison: Comparison) -> None:
        """Begin the next round, or end the comparison, if all rows of the round have run.

        One round is enough if lengths explain what it measured. If the result is to be confirmed, the next comparison
        begins at once, otherwise after the interval.
        """
        if not comparison.round_is_over():
            return
        of_length = None if self.is_dynamic(model) else comparison.length_effect()
        if of_length is not None and self.verdicts.setdefault(model, Verdict()).record(of_length):
            self._discard_comparison(model)
            self._next_ns[model] = now_ns + self._interval_ns
            return
        tasks = comparison.next_round()
        for task in tasks:
            self._queue.push_repetition(task)
        if tasks:
            return
        del self._present[model]
        effect, verdict = comparison.effect(), self.verdicts.setdefault(model, Verdict())
        if effect is not None:
            verdict.record(effect)
        self._next_ns[model] = now_ns if verdict.contrary else now_ns + self._interval_ns

    def compare_soon(self, model: str) -> None:
        """Begin the next comparison with the next row: execution times have changed."""
        self._next_ns.pop(model, None)

    def discard_model(self, model: str) -> None:
        """Drop comparison and verdict of a model: its content has changed."""
        self._next_ns.pop(model, None)
        self.verdicts.pop(model, None)
        self._discard_comparison(model)

    def keep_models(self, models: Container[str]) -> None:
        for model in [model for model in self._present if model not in models]:
            self._discard_comparison(model)

    def _discard_comparison(self, model: str) -> None:
        if comparison := self._present.pop(model, None):
            for task in comparison.waiting.values():
                self._staging.release(task.id)

    def staged_tasks(self) -> list[ProfilingTask]:
        return [task for comparison in self._present.values() for task in comparison.waiting.values()]
