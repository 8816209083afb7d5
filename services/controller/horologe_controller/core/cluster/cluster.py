"""The mirror of all workers: their shares by address, and what is true of all shares together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import NEVER_NS, ms, s
from horologe_common.latency import RollingQuantile
from horologe_common.wire import ShareState
from horologe_controller.core.cluster.estimates import Estimate
from horologe_controller.core.cluster.lane import Outstanding
from horologe_controller.core.cluster.model_profiles import Profiles, unmeasured
from horologe_controller.core.cluster.share import LOAD_SIZE, Holders, Share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horologe_common import wire
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Register
    from horologe_controller.core.cluster.model_profiles import Seed
    from horologe_controller.core.cluster.share import Changes
    from horologe_controller.core.cluster.worker_mirror import Worker
    from horologe_controller.core.runtime_distributions import ModelDurations

FRESH_NS = ms(5)
"""How long `quick_exec_ns` is remembered, for each share asked; whoever would refuse by it asks `best_exec_ns`."""
NOBODY: dict[Share, bool] = {}


class Cluster:
    """The mirror of all workers, by address."""

    def __init__(self, return_window: int) -> None:
        self.workers: dict[str, Worker] = {}
        self.specs: dict[str, ModelSpec] = {}
        """Models that some worker serves and that are admitted."""
        self.revised: dict[str, bool] = {}
        """Models that are something else than they were, or that nobody can run any more; the controller clears it."""
        self.unserved: dict[tuple[Share, str], bool] = {}
        """Models in pages of a share that cannot run them any more; cleared by whoever unloads them."""
        self.holders = Holders()
        self.outstanding = Outstanding()
        """What the EXECs given to all shares mostly still take."""
        self.capable: dict[str, dict[Share, bool]] = {}
        """Model key -> the shares that could run it."""
        self.fits = 0
        """How often `capable` has changed."""
        self.returns = RollingQuantile(window=return_window, age_ns=s(5), quantile=0.9)
        """How long results take from the end of EXEC until they are here."""
        self.overruns = RollingQuantile(window=100, age_ns=s(5), quantile=0.9)
        """How much later than predicted, when it was planned, EXEC ends."""
        self.durations: dict[str, ModelDurations] = {}
        """What requests take alone, of models for which the profiler has told."""
        self._profiles = Profiles()
        self.size = 0
        """Shares, those whose clock is not known yet included."""
        self._last_index = 0
        self._quick: dict[tuple[str, int], tuple[int, int, int]] = {}

    @property
    def changes(self) -> Changes:
        """What has changed since a scheduler last planned."""
        return self.holders.changes

    def shares(self) -> Iterator[Share]:
        """Shares that can be planned for."""
        for worker in self.workers.values():
            if worker.reachable:
                yield from worker.shares.values()

    def states(self, now_ns: int, model: str = "") -> tuple[ShareState, ...]:
        """The shares that can be planned for, as an operator sees them, and how long a model is expected to take."""
        return tuple(
            ShareState(
                share.worker,
                share.number,
                share.device,
                share.pages_total,
                share.pages_free,
                tuple(share.resident),
                len(share.exec.pending) + len(share.load.pending),
                share.exec.free_at(now_ns) - now_ns,
                *share.expected(now_ns, model),
            )
            for share in self.shares()
        )

    def register(self, worker: Worker, message: Register) -> None:
        """Take a worker's own account of its pages and models; what it does not serve any more is withdrawn."""
        worker.reported(message)
        for told in message.shares:
            share = worker.shares.get(told.share) or self._enter(worker, told)
            share.forgive()
            for key in [key for key in share.estimates if key not in worker.models]:
                self.withdraw(share, key)
            for key in worker.models:
                self._fit(worker, share, key)
            self.unserved |= {(share, key): True for key in told.resident if key not in share.estimates}
            self.stir(share)

    def admit(self, specs: dict[str, ModelSpec]) -> None:
        """These models are served from now on; a share can run those whose batch sizes it has all been measured for."""
        before, self.specs = self.specs, specs
        for key, spec in specs.items():
            known = before.get(key)
            if known is not None and known != spec:
                self.revised[key] = True
            if known is None or known.batch_sizes != spec.batch_sizes:
                for worker in self.workers.values():
                    for share in worker.shares.values() if key in worker.models else ():
                        self._fit(worker, share, key)

    def known(self, model: str) -> bool:
        """Whether some share can run the model, or could if its worker were back."""
        return model in self._profiles

    def _enter(self, worker: Worker, told: wire.Share) -> Share:
        """A share that is new here, with what is in its pages already."""
        self.size += 1
        self._last_index += 1
        share = Share(
            worker.address, told.share, self._last_index, told.device, told.pages_total, self.holders, self.outstanding
        )
        worker.shares[told.share] = share
        for key in told.resident:
            if key in worker.models:
                share.hold(key, worker.models[key][0].pages, loading=False)
        for key, _ in told.loading:
            if key in worker.models:
                share.hold(key, worker.models[key][0].pages, loading=True)
        return share

    def _fit(self, worker: Worker, share: Share, model: str) -> None:
        """Whether the share can run the model, by what its worker reports and by the spec that is admitted."""
        spec, profile, _ = worker.models[model]
        sizes = self.specs.get(model, spec).batch_sizes
        if profile is not None and spec.pages <= share.pages_total and not unmeasured(profile, sizes):
            self._can_run(share, model, self._profiles.enter(model, profile))
        else:
            self.withdraw(share, model)

    def _can_run(self, share: Share, model: str, seed: Seed) -> None:
        """What has been measured of the model stays, unless its profile is another one now."""
        known = share.estimates.get(model)
        if known is None or known.seed_ns is not seed:
            share.estimates[model] = Estimate(seed, share.pace)
            self.capable.setdefault(model, {})[share] = True
            self.fits += 1
            self._profiles.keep(model, self.capable[model])

    def clock(self, worker: Worker, sent_ns: int, peer_ns: int, received_ns: int) -> None:
        """A Pong: from the first on, windows can be told to a worker on another host."""
        if not worker.reachable:
            self._stir_all(worker)
        worker.clock.observe(sent_ns, peer_ns, received_ns)

    def drain(self, worker: Worker) -> None:
        """It takes nothing more, and what it was given goes on."""
        worker.draining = True
        self._stir_all(worker)

    def _stir_all(self, worker: Worker) -> None:
        for share in worker.shares.values():
            self.stir(share)

    def stir(self, share: Share) -> None:
        """Have the scheduler look at the share."""
        self.changes.stir(share)

    def lose(self, worker: Worker) -> None:
        """Nothing more will be heard of the worker."""
        self.workers.pop(worker.address, None)
        for share in worker.shares.values():
            self.size -= 1
            share.lost()
            for model in share.estimates:
                self._cannot_run(share, model)

    def withdraw(self, share: Share, model: str) -> None:
        """The share cannot run the model (any more), if it ever could."""
        if (estimate := share.estimates.pop(model, None)) is None:
            return
        self._cannot_run(share, model)
        if model in share.resident:
            self.unserved[share, model] = True
        if model not in self.capable:
            self._profiles.forget(model)
            self.revised[model] = True
        for size in estimate.seed_ns:
            self._quick.pop((model, size), None)

    def _cannot_run(self, share: Share, model: str) -> None:
        capable = self.capable[model]
        del capable[share]
        self.fits += 1
        if not capable:
            del self.capable[model]
        self._profiles.keep(model, capable)

    def quick_exec_ns(self, now_ns: int, model: str, size: int) -> tuple[int, int]:
        """(shortest predicted, least typical) duration of a batch of `size` over all shares, as of a moment ago.

        Shares that do not hold the model count by its profile, and so does the last one known while no worker serves
        it. 0, 0 if none ever could run it.
        """
        found = self._quick.get((model, size))
        if found is not None and now_ns < found[0]:
            return found[1], found[2]
        best_ns = typical_ns = NEVER_NS
        holders = self.holders.of.get(model, NOBODY)
        for share in holders:
            if (estimate := share.estimates.get(model)) is not None:
                if (high_ns := estimate.predict(now_ns, size)) < best_ns:
                    best_ns = high_ns
                if (mostly_ns := estimate.typical(now_ns, size)) < typical_ns:
                    typical_ns = mostly_ns
        if len(holders) < len(self.capable.get(model, NOBODY)) or best_ns == NEVER_NS:
            best_ns = min(best_ns, self._profiles.shortest_ns(model, size))
            typical_ns = best_ns if typical_ns == NEVER_NS else typical_ns
        self._quick[model, size] = now_ns + FRESH_NS * (1 + len(holders)), best_ns, typical_ns
        return best_ns, typical_ns

    def best_exec_ns(self, now_ns: int, model: str, size: int, within_ns: int = 0) -> int:
        """`quick_exec_ns`, as of now. A request that would be refused for having only `within_ns` may try where a share
        is idle: one that has waited has had more.
        """
        self._quick.pop((model, size), None)
        best_ns, _ = self.quick_exec_ns(now_ns, model, size)
        if within_ns <= 0 or best_ns <= within_ns:
            return best_ns
        for share, resident in self.holders.of.get(model, NOBODY).items():
            estimate = share.estimates.get(model)
            idle = resident and not share.exec.pending and self.workers[share.worker].reachable
            if idle and estimate and estimate.doubted(now_ns, size, within_ns):
                self._quick.pop((model, size))
                return estimate.predict(now_ns, size)
        return best_ns

    def load_ns(self, model: str) -> int:
        """What a LOAD of the model takes by its profiles."""
        return self._profiles.shortest_ns(model, LOAD_SIZE)

    def check(self) -> None:
        for share in self.shares():
            share.check()
