"""What the controller believes of one share of a device: pages and residency, its lanes, pending actions, durations.

Clockwork section 5.3: memory state, action profiles, pending actions; together they predict when an action ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from horologe_common.clock import s
from horologe_common.latency import Rolling

if TYPE_CHECKING:
    from horologe_common.latency import Estimate
    from horologe_controller.queues import Request

Kind = Literal["infer", "load"]
LOAD_SIZE = 0
"""Key of LOAD among the batch sizes of an estimate."""
PACE_ACTIONS = 10
"""Actions, of whatever model, after which a share that has become slower is taken to be so (half of them)."""


class Action(msgspec.Struct):
    """Something a share was told to do at `sent_ns`. `start_ns`, `end_ns`: predicted, in the controller's clock.

    `promised_ns` is the `end_ns` of when it was planned; `typical_ns` what such an action mostly takes.
    """

    id: int
    kind: Kind
    share: Share
    model: str
    batch_size: int
    requests: list[Request]
    sent_ns: int
    start_ns: int
    end_ns: int
    expected_ns: int
    promised_ns: int
    typical_ns: int

    def open_requests(self) -> list[Request]:
        """Those that still wait for this action."""
        return [request for request in self.requests if request.action_id == self.id]


class Work:
    """Typical durations of the pending EXECs of all shares, summed up: `outstanding_ns` costs no look at any share."""

    def __init__(self) -> None:
        self._total_ns = 0
        self._running = 0
        self._starts_ns = 0

    def entered(self, action: Action) -> None:
        self._total_ns += action.typical_ns

    def left(self, action: Action) -> None:
        self._total_ns -= action.typical_ns

    def began(self, action: Action) -> None:
        self._running += 1
        self._starts_ns += action.start_ns

    def ended(self, action: Action) -> None:
        self._running -= 1
        self._starts_ns -= action.start_ns

    def outstanding_ns(self, now_ns: int) -> int:
        """What is left of it, all shares together."""
        return max(0, self._total_ns - (self._running * now_ns - self._starts_ns))

    def check(self, lanes: list[Lane]) -> None:
        firsts = [next(iter(lane.pending.values())) for lane in lanes if lane.pending]
        assert self._running == len(firsts)
        assert self._starts_ns == sum(action.start_ns for action in firsts)
        assert self._total_ns == sum(action.typical_ns for lane in lanes for action in lane.pending.values())


class Lane:
    """Pending actions of one lane, in order, and when it will be free."""

    def __init__(self, work: Work | None = None) -> None:
        self.pending: dict[int, Action] = {}
        self._work = work

    def append(self, action: Action) -> None:
        if self._work:
            self._work.entered(action)
            if not self.pending:
                self._work.began(action)
        self.pending[action.id] = action

    def free_at(self, now_ns: int) -> int:
        """When all that is pending should have ended; the first may already be late."""
        at_ns = 0
        for action in self.pending.values():
            at_ns = at_ns + action.expected_ns if at_ns else max(now_ns, action.start_ns + action.expected_ns)
        return at_ns or now_ns

    def ended(self, action: Action, at_ns: int) -> None:
        """An action has ended: the next one began then, whatever was predicted."""
        first = next(iter(self.pending.values()), None)
        if self.pending.pop(action.id, None) is None:
            return
        following = next(iter(self.pending.values()), None)
        if self._work:
            self._work.left(action)
            self._work.ended(first or action)
        if following:
            following.start_ns = max(following.sent_ns, at_ns)
            following.end_ns = following.start_ns + following.expected_ns
            if self._work:
                self._work.began(following)

    def clear(self) -> None:
        """Nothing of it will be heard of any more."""
        for action in list(self.pending.values()):
            self.ended(action, action.end_ns)

    def overdue(self, now_ns: int, grace_ns: int) -> bool:
        """Whether the oldest action should have been heard of long ago: the worker hangs."""
        first = next(iter(self.pending.values()), None)
        return first is not None and now_ns > first.end_ns + grace_ns


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
        self, worker: str, number: int, index: int, device: str, pages_total: int, holders: Holders, work: Work
    ) -> None:
        self.worker = worker
        self.number = number
        self.index = index
        self.device = device
        self.pages_total = pages_total
        self.pages_free = pages_total
        self.exec = Lane(work)
        self.load = Lane()
        self.resident: dict[str, int] = {}
        """Model key -> pages, least recently used first."""
        self.loading: dict[str, int] = {}
        self.unused: dict[str, bool] = {}
        """Resident models that have not run since their LOAD."""
        self.estimates: dict[str, Estimate] = {}
        self.pace = Rolling(window=PACE_ACTIONS, age_ns=s(10), quantile=0.5)
        """Durations of EXECs in thousandths of their profiles: one share that has become slow shows here."""
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
            self.resident[model] = pages
            self.unused[model] = True
            self._holders.enter(self, model, resident=True)
        else:
            self.pages_free += pages
            self._holders.leave(self, model)

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
        self.exec.clear()
        self.load.clear()
        for model in (*self.resident, *self.loading):
            self._holders.leave(self, model)
        self.resident.clear()
        self.loading.clear()
        self.pages_free = self.pages_total

    def predict(self, now_ns: int, model: str, size: int) -> int:
        """Duration of a batch of `size`, or of LOAD for `LOAD_SIZE`."""
        return self.estimates[model].predict(now_ns, size)

    @property
    def lacking(self) -> int:
        """How many models it could hold and does not."""
        return len(self.estimates) - len(self.resident) - len(self.loading)

    def lacks(self, model: str) -> bool:
        """Whether it could hold the model and does not."""
        return model in self.estimates and model not in self.resident and model not in self.loading

    def busy_with(self, model: str) -> bool:
        return any(action.model == model for action in self.exec.pending.values())

    def check(self) -> None:
        assert self.pages_free + sum(self.resident.values()) + sum(self.loading.values()) == self.pages_total
        assert self.pages_free >= 0
        assert all(self._holders.of[model][self] for model in self.resident)
        assert not any(self._holders.of[model][self] for model in self.loading)
