"""Measurements that the profiler holds: how long rows took alone, by model, application and range of lengths.

Old measurements are dropped by age (`window_ns`), by number (`window`) and when execution times drift.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from msgspec import Meta

from horologe_common.applications import NAME_LIMIT
from horologe_common.clock import NEVER_NS
from horologe_common.core.message_checks import NUMBER_MAX
from horologe_common.status import InvalidInput
from horologe_profiler.core.batch_fit import LENGTH_MAX, Length, Point, TookNs
from horologe_profiler.core.input_dependence import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horologe_profiler.core.profiling_rules import ProfilingRules

TIMES_MIN = 5
"""The newest times of a key that are kept at any age: for a rare key, old measurements are better than none."""
DRIFT, DRIFT_FROM = 5, 20
"""Drift is detected when the last `DRIFT` times are all beyond the 0.1 or 0.9 quantile of at least `DRIFT_FROM` times
before them. By chance this happens once in 50,000 times (2 * 10^-5)."""
POINTS_MAX = 256
"""Batches of repeated rows that are kept of a model."""


SampleCount = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]


class MeasurementKey(NamedTuple):
    """`length` is the upper bound of a range of lengths; 0 if the model has no lengths."""

    model: str
    application: str
    length: Annotated[int, Meta(ge=0, le=2 * LENGTH_MAX)]


class RowTime(NamedTuple):
    """A row of `length` that ran alone."""

    at_ns: int
    length: Length
    took_ns: TookNs


class BatchTime(NamedTuple):
    """A batch of one row repeated, and when it ran."""

    at_ns: int
    point: Point


class ProfilerState(msgspec.Struct, array_like=True):
    """All measurements as they are stored. Times `at_ns` are relative to the time of storing, so they are negative."""

    contents: dict[str, str] = {}
    """Content hash by model. Measurements of another content are dropped."""
    windows: list[tuple[MeasurementKey, tuple[SampleCount, SampleCount], list[RowTime]]] = []
    batches: dict[str, list[BatchTime]] = {}
    verdicts: dict[str, Verdict] = {}


def length_bound(length: int) -> int:
    """Return the upper bound of the range of `length`: 1, 2, 3, 4, 5, 7, 9, 12, 15, 19, ..., each 5/4 of the last."""
    bound = min(1, length)
    while bound < length:
        bound = (5 * bound + 3) // 4 if bound > 3 else bound + 1
    return bound


class TimeWindow:
    """Times of one key: the newest, none much older than the window, and the number of samples."""

    def __init__(self, window: int, window_ns: int) -> None:
        self.times: deque[RowTime] = deque()
        self.next_run_ns = 0
        """Time from which the next run of such a row is wanted."""
        self._window = window
        self._window_ns = window_ns
        self._sample_counts = [0, 0]
        """Samples in the current time window and in the previous one."""
        self._window_start_ns: int | None = None

    @property
    def recent_samples(self) -> int:
        """Number of samples in the current and the previous window: the key's weight within its application."""
        return sum(self._sample_counts)

    def record_sample(self, now_ns: int) -> None:
        """Count a sample, whether or not it will run."""
        if self._window_start_ns is None:
            self._window_start_ns = now_ns
        if (windows := (now_ns - self._window_start_ns) // self._window_ns) > 0:
            self._sample_counts = [0, self._sample_counts[0] if windows == 1 else 0]
            self._window_start_ns += windows * self._window_ns
        self._sample_counts[0] += 1

    def record_time(self, row_time: RowTime) -> bool:
        """Add a time. Return True if execution times have drifted; the times before the drift are then dropped."""
        times = self.times
        times.append(row_time)
        while len(times) > self._window:
            times.popleft()
        while len(times) > TIMES_MIN and times[0].at_ns < row_time.at_ns - self._window_ns:
            times.popleft()
        if drifted := self._has_drifted():
            self.times = deque(list(times)[-DRIFT:])
        return drifted

    def _has_drifted(self) -> bool:
        """Return True if the newest times are all shorter or all longer than most times before them."""
        if len(self.times) < DRIFT + DRIFT_FROM:
            return False
        times = [row_time.took_ns for row_time in self.times]
        before, last = sorted(times[:-DRIFT]), times[-DRIFT:]
        tenth = len(before) // 10
        return min(last) > before[-1 - tenth] or max(last) < before[tenth]

    def to_state(self, now_ns: int) -> tuple[tuple[int, int], list[RowTime]]:
        times = [row_time._replace(at_ns=row_time.at_ns - now_ns) for row_time in self.times]
        return (self._sample_counts[0], self._sample_counts[1]), times

    def restore(self, now_ns: int, sample_counts: tuple[int, int], times: list[RowTime]) -> None:
        """Set sample counts and times from `ProfilerState`, which was stored at `now_ns`. They must be valid."""
        self._sample_counts = list(sample_counts)
        self.times = deque(row_time._replace(at_ns=row_time.at_ns + now_ns) for row_time in times)


class Measurements:
    """Time windows by key, least recently sampled first, and batch times by model. At most `keys_max` windows."""

    def __init__(self, rules: ProfilingRules) -> None:
        self._rules = rules
        self._windows: dict[MeasurementKey, TimeWindow] = {}
        self._batch_times: dict[str, deque[BatchTime]] = {}
        self._next_trial_ns: dict[str, int] = {}
        """Model -> time from which the next row is also tried in batches."""
        self.contents: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._windows)

    def get_window(self, key: MeasurementKey) -> TimeWindow | None:
        return self._windows.get(key)

    def count_times(self, key: MeasurementKey) -> int:
        window = self._windows.get(key)
        return len(window.times) if window else 0

    def windows_of_model(self, model: str) -> Iterator[tuple[MeasurementKey, TimeWindow]]:
        """Yield the windows of a model, ordered by application and length."""
        return ((key, self._windows[key]) for key in sorted(self._windows) if key.model == model)

    def model_keys(self) -> list[str]:
        return sorted({key.model for key in self._windows})

    def record_sample(self, now_ns: int, key: MeasurementKey) -> TimeWindow:
        """Count a sampled row, whether or not it will run, and return its window."""
        window = self._windows.pop(key, None)
        if window is None:
            window = TimeWindow(self._rules.window, self._rules.window_ns)
            if len(self._windows) >= self._rules.keys_max:
                del self._windows[next(iter(self._windows))]
        self._windows[key] = window
        window.record_sample(now_ns)
        return window

    def record_batch_time(self, now_ns: int, model: str, point: Point) -> None:
        batch_times = self._batch_times.setdefault(model, deque(maxlen=POINTS_MAX))
        while batch_times and batch_times[0].at_ns < now_ns - self._rules.window_ns:
            batch_times.popleft()
        batch_times.append(BatchTime(now_ns, point))

    def record_row_time(self, key: MeasurementKey, row_time: RowTime) -> bool:
        """Add the time of a row that ran alone. Return True if times have drifted; batch times are then dropped too."""
        window = self._windows.get(key)
        drifted = window is not None and window.record_time(row_time)
        if drifted:
            self._batch_times.pop(key.model, None)
            self._next_trial_ns.pop(key.model, None)
        return drifted

    def claim_batch_trial(self, now_ns: int, model: str) -> bool:
        """Return True if a row of the model should be tried in batches, at most once every `batch_interval_ns`."""
        overdue = now_ns >= self._next_trial_ns.get(model, now_ns)
        if overdue:
            self._next_trial_ns[model] = now_ns + self._rules.batch_interval_ns
        return overdue

    def batch_points(self, model: str) -> list[Point]:
        """Return the batches of repeated rows, those of one row included."""
        return [batch_time.point for batch_time in self._batch_times.get(model, ())]

    def fit_points(self, model: str) -> list[Point]:
        """Return the points for `fit`.

        With lengths: rows that ran alone, and batches of more than one row. Without lengths: all batches of repeated
        rows, size 1 included.
        """
        batches = self.batch_points(model)
        alone = [
            Point(1, row_time.length, row_time.took_ns)
            for _, window in self.windows_of_model(model)
            for row_time in window.times
            if row_time.length
        ]
        return [*alone, *(point for point in batches if point.size > 1)] if alone else batches

    def set_content(self, model: str, content: str) -> bool:
        """Set the content hash of a served model. If it changed, drop the model's measurements and return True."""
        changed = self.contents.get(model, content) != content
        if changed:
            self._batch_times.pop(model, None)
            self._next_trial_ns.pop(model, None)
            for key in [key for key in self._windows if key.model == model]:
                del self._windows[key]
        self.contents[model] = content
        return changed

    def to_state(self, now_ns: int, verdicts: dict[str, Verdict]) -> ProfilerState:
        """Return all measurements and verdicts, to be restored after a restart."""
        measured = [(key, window) for key, window in self._windows.items() if window.times]
        models = {key.model: True for key, _ in measured}
        batches = {
            model: [batch_time._replace(at_ns=batch_time.at_ns - now_ns) for batch_time in batch_times]
            for model, batch_times in self._batch_times.items()
            if model in models
        }
        contents = {model: content for model, content in self.contents.items() if model in models}
        known = {model: msgspec.structs.replace(verdicts[model]) for model in models if model in verdicts}
        return ProfilerState(contents, [(key, *window.to_state(now_ns)) for key, window in measured], batches, known)

    def restore(self, now_ns: int, state: ProfilerState, away_ns: int) -> list[str]:
        """Load measurements that were stored `away_ns` ago. Return those that are not valid, and why."""
        then_ns, dropped = now_ns - away_ns, list[str]()
        self.contents = dict(state.contents)
        for key, sample_counts, times in state.windows[-self._rules.keys_max :]:
            try:
                _check_times([row_time.at_ns for row_time in times])
                if key in self._windows:
                    raise InvalidInput("got two windows of this key, wanted one")
            except InvalidInput as error:
                dropped.append(f"window of {key[0][:NAME_LIMIT]!r}: {error.reason}")
                continue
            window = self._windows[key] = TimeWindow(self._rules.window, self._rules.window_ns)
            window.restore(then_ns, sample_counts, times[-self._rules.window :])
        for model, batches in state.batches.items():
            try:
                _check_times([batch_time.at_ns for batch_time in batches])
            except InvalidInput as error:
                dropped.append(f"batches of {model[:NAME_LIMIT]!r}: {error.reason}")
                continue
            batch_times = (batch_time._replace(at_ns=batch_time.at_ns + then_ns) for batch_time in batches)
            self._batch_times[model] = deque(batch_times, maxlen=POINTS_MAX)
        return dropped

    def last_row(self) -> int:
        """Return the largest number of a row that was tried in batches; 0 without any."""
        points = (batch_time.point for batch_times in self._batch_times.values() for batch_time in batch_times)
        return max((point.row for point in points), default=0)

    def check(self) -> None:
        assert len(self._windows) <= self._rules.keys_max
        for window in self._windows.values():
            assert len(window.times) <= self._rules.window
            stamps = [row_time.at_ns for row_time in window.times]
            assert stamps == sorted(stamps)
        assert all(len(batch_times) <= POINTS_MAX for batch_times in self._batch_times.values())


def _check_times(at_ns: list[int]) -> None:
    """Raise `InvalidInput` unless the times, relative to that of storing, are sorted and not after it."""
    if at_ns != sorted(at_ns) or (at_ns and not -NEVER_NS < at_ns[0] <= at_ns[-1] <= 0):
        raise InvalidInput(f"at_ns: got {at_ns[0]} to {at_ns[-1]}, wanted sorted times up to 0")
