"""A share of a device, as the controller sees it: pages, resident models, lanes, duration estimates.

Clockwork section 5.3: memory state, action profiles and pending actions together predict when an action ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from horologe_common.clock import NEVER_NS, s
from horologe_controller.core.cluster.dynamic_pace import DynamicPace
from horologe_controller.core.cluster.estimates import ShareTrials, new_pace
from horologe_controller.core.cluster.lane import ACTION_GRACE_NS, Lane
from horologe_controller.core.cluster.model_profiles import LOAD_SIZE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_common import wire
    from horologe_controller.core.cluster.estimates import Estimate
    from horologe_controller.core.cluster.message_latency import MessageLatency


STREAM_NS = s(5)
"""Time after a step for which its stream counts as open here: only its submitter knows when it ends."""


class ClusterChanges:
    """Changes of the cluster since the last `clear`.

    The mirror writes through the `mark_*` methods. `Planner.plan` reads and clears all but the last two,
    `Controller._adopt_model_changes` those.
    """

    def __init__(self) -> None:
        self.shares: dict[Share, bool] = {}
        """Changed shares. True: the share is reachable now, or the set of models that it can hold changed."""
        self.resident_models: dict[tuple[Share, str], bool] = {}
        """Models that were placed on a share or removed from it."""
        self.revised_models: dict[str, bool] = {}
        """Models with a new spec, and models that no share can run any more. Their requests are queued again."""
        self.unservable: dict[tuple[Share, str], bool] = {}
        """Models that occupy pages of a share which cannot run them any more. They are unloaded."""

    def mark_share(self, share: Share) -> None:
        """Record that the actions or the models of the share have changed."""
        self.shares.setdefault(share, False)

    def mark_reconfigured(self, share: Share) -> None:
        """Record that the share can hold other models than before, or can be reached now."""
        self.shares[share] = True

    def mark_residency(self, share: Share, model: str) -> None:
        """Record that the model was placed on the share or removed from it."""
        self.shares.setdefault(share, False)
        self.resident_models[share, model] = True

    def mark_revised(self, model: str) -> None:
        """Record that requests for the model have to be queued again."""
        self.revised_models[model] = True

    def mark_unservable(self, share: Share, model: str) -> None:
        """Record that the share holds the model and cannot run it."""
        self.unservable[share, model] = True

    def clear(self) -> None:
        """Start an empty record for the next plan."""
        self.shares.clear()
        self.resident_models.clear()


class ModelResidency:
    """Shares that hold each model (resident or being loaded). Shares keep it up to date."""

    def __init__(self, changes: ClusterChanges) -> None:
        self.shares_of: dict[str, dict[Share, bool]] = {}
        """Model key -> share -> whether the model is resident there already."""
        self._changes = changes

    def add_model(self, share: Share, model: str, *, resident: bool) -> None:
        self.shares_of.setdefault(model, {})[share] = resident
        self._changes.mark_residency(share, model)

    def remove_model(self, share: Share, model: str) -> None:
        shares = self.shares_of[model]
        del shares[share]
        if not shares:
            del self.shares_of[model]
        self._changes.mark_residency(share, model)

    def count_resident(self, model: str) -> int:
        """Return the number of shares where the model is resident."""
        return sum(self.shares_of.get(model, {}).values())


class Share:
    """One share of a device. Invariant: free pages plus the pages of resident and loading models are all pages.

    `number` is assigned by the worker, `index` by the controller in the order of registration.
    """

    def __init__(
        self, worker: str, report: wire.Share, index: int, residency: ModelResidency, latency: MessageLatency
    ) -> None:
        self.worker = worker
        self.number = report.share
        self.index = index
        self.device = report.device
        self.hardware = report.hardware or report.device
        """Hardware type, by which plans name pools."""
        self.percent = report.percent
        """Part of the device's compute resources."""
        self.pages_total = report.pages_total
        self.pages_free = float(report.pages_total)
        self.residency = residency
        self.exec = Lane(latency)
        self.load = Lane()
        self.beside = Lane()
        """LOADs that run beside others. They may take minutes, so that they make no other action wait or overdue."""
        self.resident: dict[str, float] = {}
        """Model key -> pages, least recently used first."""
        self.loading: dict[str, float] = {}
        self.unused: dict[str, bool] = {}
        """Resident models that have not run since their LOAD."""
        self.estimates: dict[str, Estimate] = {}
        """Estimates of the models that the share may run."""
        self.standby: dict[str, Estimate] = {}
        """Estimates of the models that the share only keeps loaded: the plan may switch them to it."""
        self.held: dict[str, float] = {}
        """Loaded standby models -> pages. Schedulers do not see them."""
        self.pace = new_pace()
        """Durations of EXECs in thousandths of their profiles: a share that has become slow shows here."""
        self.dynamic_pace = DynamicPace()
        self.trials = ShareTrials()
        self.load_pauses: dict[str, int] = {}
        """Model key -> pauses before its LOADs since its last successful INFER or the last registration."""
        self.load_retry_ns: dict[str, int] = {}
        """Model key -> when the next LOAD may be sent to this share (`LoadBackoff`)."""
        self.kept: dict[str, bool] = {}
        """Models that the tuner's plan keeps resident here."""
        self.last_step_ns: dict[str, int] = {}
        """Model -> when a step of one of its streams was last sent here."""
        self.is_lost = False
        """True if its worker has disconnected."""

    __hash__: ClassVar[Any] = object.__hash__  # compiled, a class with `__lt__` has no other hash

    def __lt__(self, other: Share) -> bool:
        """Order shares by registration, so that they can be keys of an `IndexedHeap`."""
        return self.index < other.index

    def reserve_pages(self, model: str, pages: float, *, loading: bool) -> None:
        self.pages_free -= pages
        (self.loading if loading else self.resident)[model] = pages
        if model not in self.standby:
            self.residency.add_model(self, model, resident=not loading)

    def finish_load(self, model: str, *, ok: bool) -> None:
        """Make the model resident, or free its pages if the LOAD did not succeed."""
        pages = self.loading.pop(model, None)
        if pages is None:
            return
        if ok:
            self.load_retry_ns.pop(model, None)
        else:
            self.pages_free += pages
        if model in self.standby:
            self.held |= {model: pages} if ok else {}
        elif ok:
            self.resident[model] = pages
            self.unused[model] = True
            self.residency.add_model(self, model, resident=True)
        else:
            self.residency.remove_model(self, model)

    def reset_load_backoff(self) -> None:
        self.load_pauses.clear()
        self.load_retry_ns.clear()

    def unload_model(self, model: str) -> bool:
        """Free the pages of a loaded model. Return False if the model is not loaded."""
        if model in self.held:
            self.pages_free += self.held.pop(model)
        elif model in self.resident:
            self.pages_free += self.resident.pop(model)
            self.unused.pop(model, None)
            self.residency.remove_model(self, model)
        else:
            return False
        return True

    def adopt_pages(self, report: wire.Share, pages: Mapping[str, float]) -> None:
        """Mirror what a new share holds and loads. `pages`: of the models that its worker reports."""
        held = {**dict.fromkeys(report.resident, False), **{key: True for key, _ in report.loading}}
        for model, loading in held.items():
            if model in pages:
                self.reserve_pages(model, pages[model], loading=loading)

    def adopt_report(self, report: wire.Share, changed: Mapping[str, float]) -> None:
        """Adopt what the worker did to models whose content changed: unloaded them, or reduced them to these pages.

        A Result precedes the report of the model that it made resident, so what is missing there has been unloaded.
        """
        reported = {*report.resident, *(key for key, _ in report.loading)}
        for models in (self.resident, self.held):
            for model in [model for model in models if model in changed]:
                if model not in reported:
                    self.unload_model(model)
                elif (surplus := models[model] - changed[model]) > 0:
                    models[model] = changed[model]
                    self.pages_free += surplus

    def begin_standby(self, model: str, estimate: Estimate) -> None:
        """Hide the model from schedulers. It stays loaded, or is loaded as a model that the plan keeps on the share."""
        if model in self.standby:
            return
        if model in self.resident or model in self.loading:
            self.residency.remove_model(self, model)
        self.standby[model] = estimate
        if model in self.resident:
            self.held[model] = self.resident.pop(model)
            self.unused.pop(model, None)

    def end_standby(self, model: str) -> bool:
        """Show the model to schedulers again if it stands by. Return whether it does."""
        if self.standby.pop(model, None) is None:
            return False
        if model in self.held:
            self.resident[model] = self.held.pop(model)
        if model in self.resident or model in self.loading:
            self.residency.add_model(self, model, resident=model in self.resident)
        return True

    def mark_used(self, model: str) -> None:
        """Make the model the most recently used."""
        self.resident[model] = self.resident.pop(model)
        self.unused.pop(model, None)

    def mark_lost(self, changes: ClusterChanges) -> None:
        """Drop all actions and models: the worker has disconnected."""
        self.is_lost = True
        self.reset_load_backoff()
        self.exec.clear()
        self.load.clear()
        self.beside.clear()
        for model in (*self.resident, *self.loading):
            if model not in self.standby:
                self.residency.remove_model(self, model)
        for models in (self.resident, self.held, self.loading):
            models.clear()
        self.pages_free = float(self.pages_total)
        changes.mark_share(self)

    def predict(self, now_ns: int, model: str, size: int) -> int:
        """Return the duration of a batch of `size`, or of LOAD for `LOAD_SIZE`; NEVER_NS if the share cannot run it."""
        estimate = self.find_estimate(model) if size == LOAD_SIZE else self.estimates.get(model)
        return NEVER_NS if estimate is None else estimate.predict(now_ns, size)

    def find_estimate(self, model: str) -> Estimate | None:
        """Return the estimate of a model that the share may load."""
        return self.estimates.get(model) or self.standby.get(model)

    def typical_durations(self, now_ns: int, model: str) -> tuple[dict[int, int], int]:
        """Return (median EXEC duration by batch size, median LOAD duration); ({}, 0) if it cannot run the model."""
        if (estimate := self.estimates.get(model)) is None:
            return {}, 0
        exec_ns = {size: estimate.typical(now_ns, size) for size in estimate.seed_ns if size != LOAD_SIZE}
        return exec_ns, estimate.typical(now_ns, LOAD_SIZE)

    def hangs(self, now_ns: int) -> bool:
        """Return whether an action of any lane should have ended more than `ACTION_GRACE_NS` ago (grey failure).

        Clockwork, section 7.
        """
        late_ns = now_ns - ACTION_GRACE_NS
        return late_ns > self.exec.due_ns or late_ns > self.load.due_ns

    def loads_free_at(self, now_ns: int) -> int:
        """Return when another LOAD can be planned."""
        return max(self.load.free_at(now_ns), self.beside.delays_until_ns)

    def slowness(self, now_ns: int) -> float:
        """Return recent EXEC durations as a multiple of their profiles, at least 1."""
        return max(1000, self.pace.high_quantile(now_ns) or 0) / 1000

    @property
    def missing_models(self) -> int:
        """Number of models that the share could hold and does not."""
        return len(self.estimates) + len(self.standby) - len(self.resident) - len(self.held) - len(self.loading)

    def can_load(self, model: str) -> bool:
        """Return whether the share could hold the model, does not, and is not in backoff for it."""
        return (
            (model in self.estimates or model in self.standby)
            and model not in self.resident
            and model not in self.held
            and model not in self.loading
            and model not in self.load_retry_ns
        )

    def has_streams(self, now_ns: int, model: str) -> bool:
        """Return whether the share has run a step of a stream of the model so recently that the stream may go on."""
        return now_ns - self.last_step_ns.get(model, -STREAM_NS) < STREAM_NS

    def is_running(self, model: str) -> bool:
        return any(action.model == model for action in self.exec.pending.values())

    def check(self) -> None:
        used = sum([sum(models.values(), 0.0) for models in (self.resident, self.held, self.loading)], 0.0)
        assert self.pages_free + used == self.pages_total
        assert self.pages_free >= 0
        assert all(self.residency.shares_of[model][self] for model in self.resident)
        assert not any(self.residency.shares_of[model][self] for model in self.loading if model not in self.standby)
        assert self.held.keys() <= self.standby.keys()
        assert not self.standby.keys() & (self.estimates.keys() | self.resident.keys())
