"""Mirror of all workers: their shares, which models they can run, and figures over all shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import NEVER_NS, ms
from horologe_controller.core.cluster.capable_shares import CapableShares, runnable_profile
from horologe_controller.core.cluster.device import Devices
from horologe_controller.core.cluster.message_latency import MessageLatency
from horologe_controller.core.cluster.model_profiles import LOAD_SIZE
from horologe_controller.core.cluster.pings import ClockOffset, Stalls
from horologe_controller.core.cluster.planned_models import PlannedModels
from horologe_controller.core.cluster.share import ClusterChanges, ModelResidency, Share

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from horologe_common import wire
    from horologe_common.models import ModelSpec, Profile
    from horologe_common.wire import ModelReport, Register
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.runtime_distributions import RuntimeDistributions

CACHE_NS = ms(5)
"""Lifetime of a cached minimum per share asked (`cached_exec_ns`). Refusals are decided with `best_exec_ns` instead."""


class WorkerMirror:
    """A connected worker process. `same_host`: it shares the controller's monotonic clock."""

    def __init__(self, address: str, same_host: bool) -> None:
        self.address = address
        self.same_host = same_host
        self.draining = False
        self.last_register = 0
        """Number of its last Register."""
        self.clock = ClockOffset()
        self.stalls = Stalls()
        self.shares: dict[int, Share] = {}
        self.models: dict[str, ModelReport] = {}
        """Without a profile the worker cannot serve the model, for the reason."""
        self._load_failures: dict[str, tuple[str, str]] = {}
        """Models that no share could load -> (content, reason)."""

    @property
    def reachable(self) -> bool:
        """Return whether actions can be sent. A worker on another host needs a measured clock offset first."""
        return (self.same_host or self.clock.is_measured) and not self.draining

    def offset_ns(self) -> int:
        """Return what to add to the controller's time to get the worker's; 0 on the same host."""
        return 0 if self.same_host else self.clock.offset_ns

    def update_models(self, message: Register) -> None:
        """Replace the models by those that the worker reports, without the profiles of those that fit no share.

        A model that could not be loaded stays unavailable until its content changes, its folder returns, or an operator
        loads it.
        """
        most_pages = max((share.pages_total for share in message.shares), default=0)
        self.models = {report.spec.key: report for report in message.models}
        for key, report in self.models.items():
            if report.profile is not None and (pages := report.spec.pages) > most_pages:
                self._withdraw(key, f"pages: needs {pages:g} of 16 MiB, the largest share has {most_pages}")
        if message.scans is None or message.scans:
            self._load_failures.clear()
        for key in [key for key in self._load_failures if key not in self.models or self.models[key].retired]:
            del self._load_failures[key]
        for key, (content_hash, reason) in self._load_failures.items():
            if key in self.models and self.models[key].spec.content_hash == content_hash:
                self._withdraw(key, reason)

    def mark_load_failed(self, key: str, reason: str) -> None:
        """Record that no share of the worker can load a model."""
        self._withdraw(key, reason)
        self._load_failures[key] = (self.models[key].spec.content_hash, reason)

    def _withdraw(self, key: str, reason: str) -> None:
        self.models[key] = msgspec.structs.replace(self.models[key], profile=None, reason=reason, note="")


class Cluster:
    """Mirror of all workers, by address. Every change is recorded in `changes`."""

    def __init__(self) -> None:
        self.workers: dict[str, WorkerMirror] = {}
        self.lost_workers = 0
        """Workers that disconnected without draining, less those that have connected since."""
        self.specs: dict[str, ModelSpec] = {}
        """Admitted models that at least one worker serves, with the batch sizes that the plan permits."""
        self.admitted: dict[str, ModelSpec] = {}
        """The same models with all batch sizes."""
        self.planned = PlannedModels()
        self.devices = Devices()
        self.changes = ClusterChanges()
        self.residency = ModelResidency(self.changes)
        self.latency = MessageLatency()
        self._cached_exec: dict[str, dict[int, tuple[int, int, int]]] = {}
        self.capable_shares = CapableShares(self.planned, self.changes, self._cached_exec)
        self.capable = self.capable_shares.of_model
        """Model key -> the shares that could run it."""
        self._profiles = self.capable_shares.profiles
        self.distributions: dict[str, RuntimeDistributions] = {}
        """Distributions of solo execution times, for models of which the profiler has published them."""
        self.reloading: Mapping[str, bool] = {}
        """Names of the models that workers are reading again: each may run the content before or the new one."""
        self.retired: dict[str, bool] = {}
        """Versions that requests without a version reached before. They are loaded for demand only."""
        self._last_index = 0

    def shares(self) -> Iterator[Share]:
        """Iterate over the shares that actions can be planned for."""
        for worker in self.workers.values():
            if worker.reachable:
                yield from worker.shares.values()

    def register_worker(self, worker: WorkerMirror, message: Register, changed: Iterable[str] = ()) -> None:
        """Adopt a worker's report. The models that are missing there are withdrawn; `changed` have another content."""
        worker.update_models(message)
        for report in message.shares:
            if (share := worker.shares.get(report.share)) is None:
                share = self._add_share(worker, report)
                self.devices.add_share(share, message.device_info)
            else:
                share.adopt_report(report, {key: worker.models[key].spec.pages for key in changed})
            share.reset_load_backoff()
            for key in [key for key in (*share.estimates, *share.standby) if key not in worker.models]:
                self.capable_shares.withdraw_model(share, key)
            for key in worker.models:
                self._update_capability(worker, share, key)
            for key in report.resident:
                if share.find_estimate(key) is None:
                    self.changes.mark_unservable(share, key)
            self.changes.mark_reconfigured(share)
        self._assign_planned()

    def _assign_planned(self) -> None:
        """Assign shares to the planned models again, because shares, models or the plan have changed."""
        for share, key in self.planned.reassign(self):
            self._update_capability(self.workers[share.worker], share, key)
            self.changes.mark_reconfigured(share)

    def admit_models(self, specs: dict[str, ModelSpec], reloading: Mapping[str, bool] = {}) -> None:
        """Serve these models from now on. A share can run those with a measured profile of every batch size.

        Its worker must have the content of the spec, except for the names in `reloading`.
        """
        self.admitted = specs
        before, self.specs = self.specs, {key: self.planned.limit_batches(spec) for key, spec in specs.items()}
        reloaded = {name: True for name in self.reloading if name not in reloading}
        self.reloading = reloading
        for key, spec in self.specs.items():
            old_spec = before.get(key)
            if old_spec is not None and old_spec != spec:
                self.changes.mark_revised(key)
            same_content = old_spec is not None and old_spec.content_hash == spec.content_hash
            if old_spec is not None and not same_content:
                self.distributions.pop(key, None)
            same_sizes = old_spec is not None and old_spec.batch_sizes == spec.batch_sizes
            if not (same_content and same_sizes) or spec.name in reloaded:
                for worker in self.workers.values():
                    for share in worker.shares.values() if key in worker.models else ():
                        self._update_capability(worker, share, key)
        self._assign_planned()

    def find_share(self, worker: str, number: int) -> Share | None:
        """Return a share of a connected worker that is not stopping, or None."""
        mirror = self.workers.get(worker)
        return None if mirror is None or mirror.draining else mirror.shares.get(number)

    def has_profile(self, model: str) -> bool:
        """Return whether some share can run the model, or could if its worker reconnected."""
        return model in self._profiles.of_model

    def _add_share(self, worker: WorkerMirror, report: wire.Share) -> Share:
        """Mirror a share that is new here, with the models in its pages."""
        self._last_index += 1
        share = Share(worker.address, report, self._last_index, self.residency, self.latency)
        worker.shares[report.share] = share
        share.adopt_pages(report, {key: model.spec.pages for key, model in worker.models.items()})
        return share

    def _update_capability(self, worker: WorkerMirror, share: Share, model: str) -> None:
        """Decide whether the share can run the model, by its worker's report, the admitted spec and the plan."""
        profile = self.runnable_profile(worker, share, model)
        self.capable_shares.update_share(share, model, profile, worker.models[model].spec)

    def runnable_profile(self, worker: WorkerMirror, share: Share, model: str) -> Profile | None:
        """Return the model's profile if the share could run it without a plan, else None."""
        reloading = worker.models[model].spec.name in self.reloading
        return runnable_profile(worker.models[model], self.admitted.get(model), share.pages_total, reloading=reloading)

    def observe_clock(self, worker: WorkerMirror, sent_ns: int, peer_ns: int, received_ns: int) -> None:
        """Add a clock sample (Pong). The first one makes a worker on another host reachable for actions."""
        if not worker.reachable:
            self._mark_worker(worker)
        worker.clock.observe(sent_ns, peer_ns, received_ns)
        worker.stalls.on_pong(received_ns, sent_ns, 2 * worker.clock.error_ns)

    def drain_worker(self, worker: WorkerMirror) -> None:
        """Plan nothing more for the worker. Its pending actions go on."""
        worker.draining = True
        self._mark_worker(worker)
        self._assign_planned()

    def _mark_worker(self, worker: WorkerMirror) -> None:
        for share in worker.shares.values():
            self.changes.mark_reconfigured(share)

    def remove_worker(self, worker: WorkerMirror) -> None:
        """Remove a worker that has disconnected, with its shares."""
        self.workers.pop(worker.address, None)
        for share in worker.shares.values():
            share.mark_lost(self.changes)
            self.devices.remove_share(share)
            self.capable_shares.remove_lost(share)
        self._assign_planned()

    def cached_exec_ns(self, now_ns: int, model: str, size: int) -> tuple[int, int]:
        """Return (shortest prediction, shortest median) of a batch of `size` over all shares, up to `CACHE_NS` old.

        Shares that do not hold the model count by its profile. The last profile counts while no worker serves the
        model. Returns (0, 0) if no share could ever run it.
        """
        if (cached_sizes := self._cached_exec.get(model)) is None:
            cached_sizes = self._cached_exec[model] = {}
        elif (cached := cached_sizes.get(size)) is not None and now_ns < cached[0]:
            return cached[1], cached[2]
        best_ns = typical_ns = NEVER_NS
        shares = self.residency.shares_of.get(model) or {}
        for share in shares:
            if (estimate := share.estimates.get(model)) is not None:
                _, high_ns, median_ns = estimate.summary(now_ns, size)
                best_ns, typical_ns = min(best_ns, high_ns), min(typical_ns, median_ns)
        if len(shares) < len(self.capable.get(model) or ()) or best_ns == NEVER_NS:
            best_ns = min(best_ns, self._profiles.shortest_ns(model, size))
            typical_ns = best_ns if typical_ns == NEVER_NS else typical_ns
        cached_sizes[size] = now_ns + CACHE_NS * (1 + len(shares)), best_ns, typical_ns
        return best_ns, typical_ns

    def best_exec_ns(self, now_ns: int, model: str, size: int, within_ns: int = 0) -> int:
        """Return the shortest prediction of a batch of `size` as of now.

        A new request with a budget of only `within_ns` may run as a trial on an idle share (`Estimate.allow_trial`);
        then the trial's duration is returned. 0: no trial, for a request that has waited already.
        """
        self._discard_cached(model, size)
        best_ns, _ = self.cached_exec_ns(now_ns, model, size)
        if within_ns <= 0 or best_ns <= within_ns:
            return best_ns
        for share, resident in self.residency.shares_of.get(model, {}).items():
            estimate = share.estimates.get(model)
            idle = resident and not share.exec.pending and self.workers[share.worker].reachable
            if idle and estimate and estimate.allow_trial(now_ns, size, within_ns):
                self._discard_cached(model, size)
                return estimate.predict(now_ns, size)
        return best_ns

    def _discard_cached(self, model: str, size: int) -> None:
        if (cached_sizes := self._cached_exec.get(model)) is not None:
            cached_sizes.pop(size, None)

    def request_exec_ns(self, now_ns: int, request: Request) -> int:
        """Return the shortest prediction for a batch with only this request; 0 if no share could run it.

        If the request would be late, the prediction is made anew.
        """
        if (share := request.share) is not None:
            return share.predict(now_ns, request.model, request.spec.batch_sizes[0])
        spec = request.spec
        size = spec.batch_sizes[0] if request.rows == 1 else spec.compiled_batch_size(request.rows)
        exec_ns, _ = self.cached_exec_ns(now_ns, request.model, size)
        if not request.best_effort and (not exec_ns or now_ns + exec_ns > request.deadline_ns):
            within_ns = 0 if request.admitted else request.deadline_ns - now_ns
            exec_ns = self.best_exec_ns(now_ns, request.model, size, within_ns)
        return exec_ns

    def profiled_ns(self, model: str, size: int) -> int:
        """Return the shortest profiled duration of a batch of `size`."""
        return self._profiles.shortest_ns(model, size)

    def profiled_load_ns(self, model: str) -> int:
        """Return the shortest profiled duration of a LOAD of the model."""
        return self._profiles.shortest_ns(model, LOAD_SIZE)

    def load_retry_ns(self, model: str) -> int:
        """Return when the first share leaves its backoff for a model that no share holds; 0 if no share has to wait."""
        if model in self.residency.shares_of or not (capable := self.capable.get(model)):
            return 0
        retry_ns = NEVER_NS
        for share in capable:
            if (at_ns := share.load_retry_ns.get(model, 0)) < retry_ns:
                retry_ns = at_ns
            if not at_ns:
                break
        return retry_ns

    def check(self) -> None:
        self.planned.check()
        self.devices.check()
        for share in self.shares():
            share.check()
