"""What the controller believes of one share of a device: pages and residency, its lanes, pending actions, durations.

Clockwork section 5.3: memory state, action profiles, pending actions; together they predict when an action ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import NEVER_NS, s
from horologe_common.latency import RollingQuantile
from horologe_controller.core.cluster.lane import Lane

if TYPE_CHECKING:
    from horologe_controller.core.cluster.estimates import Estimate
    from horologe_controller.core.cluster.lane import Outstanding

LOAD_SIZE = 0
"""Key of LOAD among the batch sizes of an estimate."""
PACE_ACTIONS = 10
"""Actions, of whatever model, after which a share that has become slower is taken to be so (half of them)."""


class Changes:
    """What a scheduler has to look at again since it last planned; it clears this."""

    def __init__(self) -> None:
        self.shares: dict[Share, bool] = {}
        """Shares that have changed; True: in the models they can hold or in being reachable."""
        self.models: dict[tuple[Share, str], bool] = {}
        """Models that have come to a share or gone from it."""
        self.deep = False

    def share(self, share: Share) -> None:
        """What it runs or holds is something else."""
        self.shares.setdefault(share, False)

    def stir(self, share: Share) -> None:
        """The models it can hold are others, or it can be reached now."""
        self.shares[share] = self.deep = True

    def clear(self) -> None:
        self.shares.clear()
        self.models.clear()
        self.deep = False


class Holders:
    """Which shares hold each model (resident or being loaded), kept in step by the shares themselves."""

    def __init__(self) -> None:
        self.of: dict[str, dict[Share, bool]] = {}
        """Model key -> share -> whether the model is resident there already."""
        self.changes = Changes()

    def enter(self, share: Share, model: str, *, resident: bool) -> None:
        self.of.setdefault(model, {})[share] = resident
        self.changes.share(share)
        self.changes.models[share, model] = True

    def leave(self, share: Share, model: str) -> None:
        holders = self.of[model]
        del holders[share]
        if not holders:
            del self.of[model]
        self.changes.share(share)
        self.changes.models[share, model] = True


class Share:
    """One share of a device. Law: free pages plus the pages of resident and loading models are all pages.

    `number` is the worker's, `index` the controller's, in the order of registration.
    """

    def __init__(
        self,
        worker: str,
        number: int,
        index: int,
        device: str,
        pages_total: int,
        holders: Holders,
        outstanding: Outstanding,
    ) -> None:
        self.worker = worker
        self.number = number
        self.index = index
        self.device = device
        self.pages_total = pages_total
        self.pages_free = pages_total
        self.exec = Lane(outstanding)
        self.load = Lane()
        self.resident: dict[str, int] = {}
        """Model key -> pages, least recently used first."""
        self.loading: dict[str, int] = {}
        self.unused: dict[str, bool] = {}
        """Resident models that have not run since their LOAD."""
        self.estimates: dict[str, Estimate] = {}
        self.pace = RollingQuantile(window=PACE_ACTIONS, age_ns=s(10), quantile=0.5)
        """Durations of EXECs in thousandths of their profiles: one share that has become slow shows here."""
        self.refusals: dict[str, int] = {}
        """How often it has refused to load a model since it last did, or registered."""
        self.paused: dict[str, int] = {}
        """Models that it is not asked to load before then (pauses.py)."""
        self.gone = False
        """Its worker is lost."""
        self._holders = holders

    def hold(self, model: str, pages: int, *, loading: bool) -> None:
        self.pages_free -= pages
        (self.loading if loading else self.resident)[model] = pages
        self._holders.enter(self, model, resident=not loading)

    def loaded(self, model: str, *, ok: bool) -> None:
        """A LOAD has ended."""
        pages = self.loading.pop(model, None)
        if pages is None:
            return
        if ok:
            self.refusals.pop(model, None)
            self.paused.pop(model, None)
            self.resident[model] = pages
            self.unused[model] = True
            self._holders.enter(self, model, resident=True)
        else:
            self.pages_free += pages
            self._holders.leave(self, model)

    def forgive(self) -> None:
        """What it has refused says nothing any more."""
        self.refusals.clear()
        self.paused.clear()

    def unload(self, model: str) -> None:
        self.pages_free += self.resident.pop(model)
        self.unused.pop(model, None)
        self._holders.leave(self, model)

    def touch(self, model: str) -> None:
        """Most recently used."""
        self.resident[model] = self.resident.pop(model)
        self.unused.pop(model, None)

    def lost(self) -> None:
        """Its worker is gone: nothing is pending or resident there any more."""
        self.gone = True
        self.forgive()
        self.exec.clear()
        self.load.clear()
        for model in (*self.resident, *self.loading):
            self._holders.leave(self, model)
        self.resident.clear()
        self.loading.clear()
        self.pages_free = self.pages_total
        self._holders.changes.share(self)

    def predict(self, now_ns: int, model: str, size: int) -> int:
        """Duration of a batch of `size`, or of LOAD for `LOAD_SIZE`; for ever where it cannot run the model."""
        estimate = self.estimates.get(model)
        return NEVER_NS if estimate is None else estimate.predict(now_ns, size)

    def expected(self, now_ns: int, model: str) -> tuple[dict[int, int], int]:
        """(what its batches mostly take by size, what its LOAD does); nothing where it cannot run the model."""
        if (estimate := self.estimates.get(model)) is None:
            return {}, 0
        exec_ns = {size: estimate.typical(now_ns, size) for size in estimate.seed_ns if size != LOAD_SIZE}
        return exec_ns, estimate.typical(now_ns, LOAD_SIZE)

    def hangs(self, now_ns: int, grace_ns: int) -> bool:
        """Whether an action of it should have been heard of long ago."""
        late_ns = now_ns - grace_ns
        return late_ns > self.exec.due_ns or late_ns > self.load.due_ns

    def slowness(self, now_ns: int) -> float:
        """How many times as long as profiled its EXECs lately took; 1 if no longer than that."""
        return max(1000, self.pace.high_quantile(now_ns) or 0) / 1000

    def steady_until_ns(self, grace_ns: int) -> int:
        """Until when `hangs` and `slowness`, as last asked for, hold if nothing happens on the share."""
        return min(self.pace.valid_until_ns, self.exec.due_ns + grace_ns, self.load.due_ns + grace_ns)

    @property
    def lacking(self) -> int:
        """How many models it could hold and does not."""
        return len(self.estimates) - len(self.resident) - len(self.loading)

    def lacks(self, model: str) -> bool:
        """Whether it could load the model now."""
        return (
            model in self.estimates
            and model not in self.resident
            and model not in self.loading
            and model not in self.paused
        )

    def busy_with(self, model: str) -> bool:
        return any(action.model == model for action in self.exec.pending.values())

    def check(self) -> None:
        assert self.pages_free + sum(self.resident.values()) + sum(self.loading.values()) == self.pages_total
        assert self.pages_free >= 0
        assert all(self._holders.of[model][self] for model in self.resident)
        assert not any(self._holders.of[model][self] for model in self.loading)
