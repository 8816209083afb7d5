"""A simulated device: the models on it, how long their operations take, and the lanes in which they run.

It is the same below the core of a simulated worker (`virtual_worker.py`) and directly below the controller
(`controller_only/direct_device.py`). These differ in the messages that they get and send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.wire import ModelReport
from horologe_gpu_worker.core.lanes import LaneOperation, OperationQueue
from horologe_sim.engine.noise import Draws

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.interference.colocation import CoLocatedModel
    from horologe_common.models import Profile
    from horologe_sim.engine.noise import Noise
    from horologe_sim.engine.traceable_inputs import Skill

    Schedule = Callable[..., object]


class SimModel(msgspec.Struct, frozen=True):
    """A model with the times of its simulated device. Transfers are per row. If they are 0, EXEC includes them."""

    report: ModelReport
    input_ns: int = 0
    output_ns: int = 0
    base_ns: int = 0
    """Dynamic models: time of a batch without its rows."""
    skill: Skill | None = None
    """Classifiers, whose output is `LABEL`: their accuracy."""
    items: int = 0
    """Items of each of its streams. 0: it does not stream."""
    noise: Noise | None = None
    """Noise of its EXECs. None: the noise of the device."""
    co_located: CoLocatedModel | None = None
    """Its times on a share of a device, with noise of their own. None: the times of the profile."""

    @property
    def inline_io(self) -> bool:
        return not (self.input_ns or self.output_ns or self.co_located)

    @property
    def profile(self) -> Profile:
        """Return the profile. Simulated models have one."""
        assert self.report.profile is not None
        return self.report.profile


class SimulatedDevice:
    """The models of a device and their times, with noise by seed.

    `factor`: execution times as multiples of the profiles, for a device of another kind or one that is throttled.
    `slowness`: a factor on all times, noise included, for a machine that does other work.
    """

    def __init__(self, models: dict[str, SimModel], noise: Noise, seed: Sequence[int]) -> None:
        self.models = models
        self.factor = 1.0
        self.slowness = 1.0
        self.violations: list[str] = []
        """Operations that a real device could not run."""
        self._draws = Draws(noise, seed)
        self._own = {
            key: Draws(model.noise, [*seed, number])
            for number, (key, model) in enumerate(self.models.items())
            if model.noise
        }

    def load_ns(self, key: str) -> int:
        """Return the time of a LOAD of a model."""
        return self._slow(self._draws.noisy(self.models[key].profile.load_ns, "load"))

    def input_ns(self, key: str, rows: int) -> int:
        """Return the time of an INPUT."""
        model = self.models[key]
        if model.co_located:
            return round(self.slowness * model.co_located.input_ns(rows))
        return self._slow(self._draws.noisy(rows * model.input_ns))

    def output_ns(self, key: str, rows: int) -> int:
        """Return the time of an OUTPUT."""
        model = self.models[key]
        if model.co_located:
            return round(self.factor * self.slowness * model.co_located.output_ns(rows))
        return self._slow(self._draws.noisy(rows * model.output_ns))

    def exec_ns(self, now_ns: int, key: str, batch_size: int, solo_ns: int = 0) -> int:
        """Return the time of an EXEC that begins at `now_ns`.

        It is the profiled time; for a dynamic model base + size * (longest - base), for padded rows. `solo_ns`: time
        alone of the longest row of a dynamic model.
        """
        model = self.models[key]
        if model.co_located:
            return round(self.factor * self.slowness * model.co_located.begin_exec(now_ns, batch_size))
        if solo_ns:
            exec_ns = model.base_ns + batch_size * (solo_ns - model.base_ns)
        else:
            exec_ns = model.profile.exec_ns[batch_size]
        draws = self._own.get(key, self._draws)
        took_ns = draws.noisy(int(self.factor * exec_ns))
        return took_ns if self.slowness == 1.0 else self._slow(took_ns)

    def _slow(self, time_ns: int) -> int:
        return round(self.slowness * time_ns)


class LaneInTime:
    """A lane in virtual time. Everything in it is decided up to `free_ns`.

    `begin(now_ns, operation)` starts an operation and returns when the lane is free again; NEVER_NS: when `release` is
    called. `expire(now_ns, operation)` gets an operation whose window has passed. `schedule(at_ns, call, *args)` makes
    an event.
    """

    __slots__ = ("_begin", "_expire", "_schedule", "_wake_ns", "free_ns", "lane")

    def __init__(
        self,
        begin: Callable[[int, LaneOperation], int],
        expire: Callable[[int, LaneOperation], None],
        schedule: Schedule,
    ) -> None:
        self.lane = OperationQueue()
        self.free_ns = 0
        self._begin = begin
        self._expire = expire
        self._schedule = schedule
        self._wake_ns = 0

    def push(self, at_ns: int, operation: LaneOperation) -> None:
        """Queue an operation that arrives at `at_ns`. All before can be decided, because later ones arrive later."""
        self.advance(at_ns)
        if self.free_ns < at_ns:
            self.free_ns = at_ns
        self.lane.push(operation)
        self.advance(at_ns)

    def resume(self, now_ns: int) -> None:
        """Begin what can begin now, unless an operation runs."""
        if self.free_ns < now_ns:
            self.free_ns = now_ns
        self.advance(now_ns)

    def release(self, now_ns: int) -> None:
        """Continue after the end of an operation whose end was not known."""
        self.free_ns = now_ns
        self.advance(now_ns)

    def advance(self, until_ns: int) -> None:
        """Begin the operations that can begin up to `until_ns`."""
        lane = self.lane
        while self.free_ns <= until_ns and lane:
            now_ns = self.free_ns
            while (late := lane.pop_expired(now_ns)) is not None:
                self._expire(now_ns, late)
            todo = lane.pop_startable(now_ns)
            if todo is None:
                return
            if isinstance(todo, LaneOperation):
                self.free_ns = self._begin(now_ns, todo)
            elif now_ns + todo <= until_ns:
                self.free_ns = now_ns + todo
            else:
                self._wake(now_ns + todo)
                return

    def _wake(self, at_ns: int) -> None:
        if self._wake_ns != at_ns:
            self._wake_ns = at_ns
            self._schedule(at_ns, self.resume, at_ns)
