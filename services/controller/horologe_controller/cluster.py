"""What the controller believes of every worker: pages and residency, lanes, pending actions, durations.

Clockwork section 5.3: memory state, action profiles, pending actions; together they predict when an action ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from horologe_common.clock import Offset, s
from horologe_common.latency import Estimate, Rolling
from horologe_common.wire import ShareState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horologe_common.models import ModelSpec, Profile
    from horologe_common.wire import Register
    from horologe_controller.queues import Request

Kind = Literal["infer", "load"]
LOAD_SIZE = 0
"""Key of LOAD among the batch sizes of an estimate."""


class Action(msgspec.Struct):
    """Something a share was told to do at `sent_ns`. `start_ns`, `end_ns`: predicted, in the controller's clock.

    `promised_ns` is the `end_ns` of when it was planned.
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

    def open_requests(self) -> list[Request]:
        """Those that still wait for this action."""
        return [request for request in self.requests if request.action_id == self.id]


class Lane:
    """Pending actions of one lane, in order, and when it will be free."""

    def __init__(self) -> None:
        self.pending: dict[int, Action] = {}

    def free_at(self, now_ns: int) -> int:
        """When all that is pending should have ended; the first may already be late."""
        at_ns = 0
        for action in self.pending.values():
            at_ns = at_ns + action.expected_ns if at_ns else max(now_ns, action.start_ns + action.expected_ns)
        return at_ns or now_ns

    def ended(self, action: Action, at_ns: int) -> None:
        """An action has ended: the next one began then, whatever was predicted."""
        self.pending.pop(action.id, None)
        if following := next(iter(self.pending.values()), None):
            following.start_ns = max(following.sent_ns, at_ns)
            following.end_ns = following.start_ns + following.expected_ns

    def overdue(self, now_ns: int, grace_ns: int) -> bool:
        """Whether the oldest action should have been heard of long ago: the worker hangs."""
        first = next(iter(self.pending.values()), None)
        return first is not None and now_ns > first.end_ns + grace_ns


class Share:
    """One share of a device. Law: free pages plus the pages of resident and loading models are all pages."""

    def __init__(self, worker: str, number: int, device: str, pages_total: int) -> None:
        self.worker = worker
        self.number = number
        self.device = device
        self.pages_total = pages_total
        self.pages_free = pages_total
        self.exec = Lane()
        self.load = Lane()
        self.resident: dict[str, int] = {}
        """Model key -> pages, least recently used first."""
        self.loading: dict[str, int] = {}
        self.unused: dict[str, bool] = {}
        """Resident models that have not run since their LOAD."""
        self.estimates: dict[str, Estimate] = {}

    def hold(self, model: str, pages: int, *, loading: bool) -> None:
        self.pages_free -= pages
        (self.loading if loading else self.resident)[model] = pages

    def loaded(self, model: str, *, ok: bool) -> None:
        """A LOAD has ended."""
        pages = self.loading.pop(model, 0)
        if ok:
            self.resident[model] = pages
            self.unused[model] = True
        else:
            self.pages_free += pages

    def unload(self, model: str) -> None:
        self.pages_free += self.resident.pop(model)
        self.unused.pop(model, None)

    def touch(self, model: str) -> None:
        """Most recently used."""
        self.resident[model] = self.resident.pop(model)
        self.unused.pop(model, None)

    def predict(self, now_ns: int, model: str, size: int) -> int:
        """Duration of a batch of `size`, or of LOAD for `LOAD_SIZE`."""
        return self.estimates[model].predict(now_ns, size)

    def outstanding_ns(self, now_ns: int) -> int:
        """What the EXECs given mostly still take: admission sums this up, where plans rely on `exec.free_at`."""
        total_ns = 0
        for action in self.exec.pending.values():
            typical_ns = self.estimates[action.model].typical(now_ns, action.batch_size)
            total_ns += typical_ns if total_ns else max(1, action.start_ns + typical_ns - now_ns)
        return total_ns

    def busy_with(self, model: str) -> bool:
        return any(action.model == model for action in self.exec.pending.values())

    def check(self) -> None:
        assert self.pages_free + sum(self.resident.values()) + sum(self.loading.values()) == self.pages_total
        assert self.pages_free >= 0


class Worker:
    """A worker process and its clock."""

    def __init__(self, address: str, same_host: bool) -> None:
        self.address = address
        self.same_host = same_host
        self.clock = Offset()
        self.shares: dict[int, Share] = {}
        self.models: dict[str, tuple[ModelSpec, Profile | None, str]] = {}

    @property
    def reachable(self) -> bool:
        """Whether a window can be told to it: on another host, once its clock is known."""
        return self.same_host or self.clock.known

    def offset_ns(self) -> int:
        """Add to our time to get the worker's; hosts with one boot id share a clock."""
        return 0 if self.same_host else self.clock.offset_ns


class Cluster:
    """The mirror of all workers, by address."""

    def __init__(self, return_window: int) -> None:
        self.workers: dict[str, Worker] = {}
        self.specs: dict[str, ModelSpec] = {}
        """Models that some worker serves and that are admitted."""
        self._last_profiles: dict[str, Profile] = {}
        self.returns = Rolling(window=return_window, age_ns=s(5), quantile=0.9)
        """How long results take from the end of EXEC until they are here."""
        self.overruns = Rolling(window=100, age_ns=s(5), quantile=0.9)
        """How much later than predicted, when it was planned, EXEC ends."""

    def shares(self) -> Iterator[Share]:
        """Shares that can be planned for."""
        for worker in self.workers.values():
            if worker.reachable:
                yield from worker.shares.values()

    def states(self, now_ns: int) -> tuple[ShareState, ...]:
        """The shares that can be planned for, as an operator sees them."""
        return tuple(
            ShareState(
                share.worker, share.number, share.device, share.pages_total, share.pages_free, tuple(share.resident),
                len(share.exec.pending) + len(share.load.pending), share.exec.free_at(now_ns) - now_ns,
            )
            for share in self.shares()
        )  # fmt: skip

    def register(self, worker: Worker, message: Register) -> None:
        """Take a worker's own account of its pages and models."""
        worker.models = {one.spec.key: (one.spec, one.profile, one.reason) for one in message.models}
        self._last_profiles |= {one.spec.key: one.profile for one in message.models if one.profile is not None}
        for told in message.shares:
            if (share := worker.shares.get(told.share)) is None:
                share = worker.shares[told.share] = Share(worker.address, told.share, told.device, told.pages_total)
                for key in told.resident:
                    if key in worker.models:
                        share.hold(key, worker.models[key][0].pages, loading=False)
            for key, (_, profile, _) in worker.models.items():
                if profile is not None and key not in share.estimates:
                    share.estimates[key] = Estimate({LOAD_SIZE: max(1, profile.load_ns), **profile.exec_ns})

    def best_exec_ns(self, now_ns: int, model: str, size: int) -> int | None:
        """The shortest predicted duration over all shares; from the last profile while no worker serves the model.

        None if none ever could.
        """
        times = [share.predict(now_ns, model, size) for share in self.shares() if model in share.estimates]
        if not times and (profile := self._last_profiles.get(model)):
            return profile.exec_ns[size]
        return min(times, default=None)

    def typical_exec_ns(self, now_ns: int, model: str, size: int) -> int:
        """What a batch of `size` mostly takes on the quickest share; 0 if no share can run the model."""
        times = [share.estimates[model].typical(now_ns, size) for share in self.shares() if model in share.estimates]
        return min(times, default=0)

    def has_room(self) -> bool:
        """Whether some share could take another of its models without evicting one."""
        return any(
            len(share.resident) + len(share.loading) < len(share.estimates) and share.pages_free > 0
            for share in self.shares()
        )

    def withdraw(self, share: Share, model: str) -> None:
        """The share turned out to be unable to load the model."""
        del share.estimates[model]
        if not any(model in other.estimates for other in self.shares()):
            self._last_profiles.pop(model, None)

    def check(self) -> None:
        for share in self.shares():
            share.check()
