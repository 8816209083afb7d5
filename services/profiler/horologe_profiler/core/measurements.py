"""What the profiler remembers: how long rows took alone, by model, application and range of lengths. It forgets."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from horologe_profiler.core.batch_fit import Point

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horologe_profiler.settings import ProfilerSettings

FLOOR = 5
"""So many times stay however old they are: of what is seldom asked, old is better than nothing."""
DRIFT, DRIFT_FROM = 5, 20
"""So many times in a row beyond a tenth's quantile of at least so many before: once in 50,000 by chance (2 * 10^-5)."""
POINTS_MAX = 256
"""Batches of repeated rows remembered of a model."""


class Key(NamedTuple):
    """`length` is the upper bound of a range, 0 where the model has no lengths."""

    model: str
    application: str
    length: int


class Took(NamedTuple):
    """A row of `length`, run alone."""

    at_ns: int
    length: int
    took_ns: int


class Tried(NamedTuple):
    """A batch of one row repeated, at some time."""

    at_ns: int
    point: Point


class Kept(msgspec.Struct, array_like=True):
    """All of it as it is stored. Times `at_ns` count from when it was stored, so they are negative."""

    contents: dict[str, str] = {}
    """Content hash by model: of another content nothing is known."""
    parts: list[tuple[Key, tuple[int, int], list[Took]]] = []
    tried: dict[str, list[Tried]] = {}


def bound_of(length: int) -> int:
    """The upper bound of the range that a length is in: 1, 2, 3, 4, 5, 7, 9, 12, 15, 19, ..., each 5/4 of the last."""
    bound = min(1, length)
    while bound < length:
        bound = (5 * bound + 3) // 4 if bound > 3 else bound + 1
    return bound


class Part:
    """One key: the last times, none much older than the window, and how often it was sampled."""

    def __init__(self, window: int, window_ns: int) -> None:
        self.times: deque[Took] = deque()
        self.due_ns = 0
        """When the next run of such a row is wanted."""
        self._window = window
        self._window_ns = window_ns
        self._seen = [0, 0]
        """In this window and in the one before."""
        self._turn_ns: int | None = None

    @property
    def weight(self) -> int:
        """How often it was sampled lately: its share of the application's rows."""
        return sum(self._seen)

    def sampled(self, now_ns: int) -> None:
        if self._turn_ns is None:
            self._turn_ns = now_ns
        if (windows := (now_ns - self._turn_ns) // self._window_ns) > 0:
            self._seen = [0, self._seen[0] if windows == 1 else 0]
            self._turn_ns += windows * self._window_ns
        self._seen[0] += 1

    def observe(self, took: Took) -> bool:
        """Take in a time. True if it shows that times are others now, and those from before are forgotten."""
        times = self.times
        times.append(took)
        while len(times) > self._window:
            times.popleft()
        while len(times) > FLOOR and times[0].at_ns < took.at_ns - self._window_ns:
            times.popleft()
        if drifted := self._drifted():
            self.times = deque(list(times)[-DRIFT:])
        return drifted

    def _drifted(self) -> bool:
        """Whether the last few times are all unlike those before: then these say nothing any more."""
        if len(self.times) < DRIFT + DRIFT_FROM:
            return False
        times = [took.took_ns for took in self.times]
        before, last = sorted(times[:-DRIFT]), times[-DRIFT:]
        tenth = len(before) // 10
        return min(last) > before[-1 - tenth] or max(last) < before[tenth]

    def stored(self, now_ns: int) -> tuple[tuple[int, int], list[Took]]:
        return (self._seen[0], self._seen[1]), [took._replace(at_ns=took.at_ns - now_ns) for took in self.times]

    def restore(self, now_ns: int, seen: tuple[int, int], times: list[Took]) -> None:
        self._seen = list(seen)
        self.times = deque(took._replace(at_ns=took.at_ns + now_ns) for took in times)


class Memory:
    """Parts by key, least recently sampled first, and batches tried by model. At most `keys_max` parts."""

    def __init__(self, settings: ProfilerSettings) -> None:
        self._settings = settings
        self._parts: dict[Key, Part] = {}
        self._tried: dict[str, deque[Tried]] = {}
        self._batches_ns: dict[str, int] = {}
        """By model: when a row is next tried in batches."""
        self.contents: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._parts)

    def part(self, key: Key) -> Part | None:
        return self._parts.get(key)

    def known(self, key: Key) -> int:
        """How many times."""
        part = self._parts.get(key)
        return len(part.times) if part else 0

    def of(self, model: str) -> Iterator[tuple[Key, Part]]:
        """The parts of a model, by application and length."""
        return ((key, self._parts[key]) for key in sorted(self._parts) if key.model == model)

    def models(self) -> list[str]:
        return sorted({key.model for key in self._parts})

    def sampled(self, now_ns: int, key: Key) -> Part:
        """A row has come, whether or not it will be run."""
        part = self._parts.pop(key, None)
        if part is None:
            part = Part(self._settings.window, self._settings.window_ns)
            if len(self._parts) >= self._settings.keys_max:
                del self._parts[next(iter(self._parts))]
        self._parts[key] = part
        part.sampled(now_ns)
        return part

    def tried(self, now_ns: int, model: str, point: Point) -> None:
        """A row repeated was run in a batch."""
        known = self._tried.setdefault(model, deque(maxlen=POINTS_MAX))
        while known and known[0].at_ns < now_ns - self._settings.window_ns:
            known.popleft()
        known.append(Tried(now_ns, point))

    def observe(self, key: Key, took: Took) -> None:
        """A row was run alone. If that shows that times are others now, what batches took is forgotten too."""
        part = self._parts.get(key)
        if part is not None and part.observe(took):
            self._tried.pop(key.model, None)
            self._batches_ns.pop(key.model, None)

    def batches_due(self, now_ns: int, model: str) -> bool:
        """Whether a row of it is to be tried in batches now; then not again for a while."""
        due = now_ns >= self._batches_ns.get(model, now_ns)
        if due:
            self._batches_ns[model] = now_ns + self._settings.batches_ns
        return due

    def points(self, model: str) -> list[Point]:
        """What `fit` is made of: rows that ran alone, where they have lengths; else rows that ran in batches too."""
        tried = [one.point for one in self._tried.get(model, ())]
        alone = [
            Point(1, took.length, took.took_ns) for _, part in self.of(model) for took in part.times if took.length
        ]
        return [*alone, *(point for point in tried if point.size > 1)] if alone else tried

    def know(self, model: str, content: str) -> bool:
        """The model is served with this content. True if another was known: what was learned of that is forgotten."""
        changed = self.contents.get(model, content) != content
        if changed:
            self._tried.pop(model, None)
            self._batches_ns.pop(model, None)
            for key in [key for key in self._parts if key.model == model]:
                del self._parts[key]
        self.contents[model] = content
        return changed

    def stored(self, now_ns: int) -> Kept:
        """To be given to `restore` after a restart."""
        learned = [(key, part) for key, part in self._parts.items() if part.times]
        models = {key.model: True for key, _ in learned}
        tried = {
            model: [one._replace(at_ns=one.at_ns - now_ns) for one in found]
            for model, found in self._tried.items()
            if model in models
        }
        contents = {model: content for model, content in self.contents.items() if model in models}
        return Kept(contents, [(key, *part.stored(now_ns)) for key, part in learned], tried)

    def restore(self, now_ns: int, kept: Kept, away_ns: int) -> None:
        """What was stored `away_ns` ago."""
        then_ns = now_ns - away_ns
        self.contents = dict(kept.contents)
        for key, seen, times in kept.parts[-self._settings.keys_max :]:
            part = self._parts[key] = Part(self._settings.window, self._settings.window_ns)
            part.restore(then_ns, seen, times[-self._settings.window :])
        for model, tried in kept.tried.items():
            found = (one._replace(at_ns=one.at_ns + then_ns) for one in tried)
            self._tried[model] = deque(found, maxlen=POINTS_MAX)

    def check(self) -> None:
        assert len(self._parts) <= self._settings.keys_max
        for part in self._parts.values():
            assert len(part.times) <= self._settings.window
            stamps = [took.at_ns for took in part.times]
            assert stamps == sorted(stamps)
        assert all(len(tried) <= POINTS_MAX for tried in self._tried.values())
