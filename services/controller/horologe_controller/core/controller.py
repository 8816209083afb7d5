"""The controller: queue every request, and plan it onto a worker inside a window or refuse it.

    Submit -> queue (requests/) -> tick: plan (scheduling/) -> Infer to the worker, Dispatch to the holder (actions.py)
    Result -> mirror and estimates (cluster/)

Tensors never pass the controller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.clock import ms
from horologe_common.core.faults import for_each
from horologe_common.core.instruments import Stats
from horologe_common.core.protocol import Out, PeerConnected, PeerDisconnected, role
from horologe_common.model_limits import DURATION_MAX_NS
from horologe_common.status import Status
from horologe_common.wire import (
    Admit,
    Cancel,
    Describe,
    Distributions,
    Drain,
    Ping,
    Pong,
    QueriesArrived,
    RefusedAgain,
    Register,
    ResourcePlan,
    Result,
    Settled,
    Submit,
    Unload,
    Watch,
)
from horologe_controller.core.action_tracer import ActionTracer
from horologe_controller.core.actions import ActionMetrics, Actions
from horologe_controller.core.activity_recorder import ActivityRecorder
from horologe_controller.core.cluster.cluster import Cluster
from horologe_controller.core.cluster.description import describe_cluster
from horologe_controller.core.cluster.discovery import WorkerDiscovery
from horologe_controller.core.cluster.dynamic_pace import observe_batch
from horologe_controller.core.cluster.load_backoff import LoadBackoff
from horologe_controller.core.cluster.pings import STALL_NS
from horologe_controller.core.cluster.planned_models import apply_plan
from horologe_controller.core.cluster.report_checks import failed_result
from horologe_controller.core.cluster.worker_links import WorkerLinks
from horologe_controller.core.cluster_metrics import publish_cluster, publish_requests
from horologe_controller.core.event_recorder import EventRecorder
from horologe_controller.core.model_catalogue import ModelCatalogue
from horologe_controller.core.requests.lifecycle import RequestLifecycle, RequestObservers
from horologe_controller.core.runtime_distributions import store_distributions
from horologe_controller.core.scheduling.decisions import Decisions
from horologe_controller.schedulers import create_scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.rollouts import ControllerState
    from horologe_common.wire import Activity, Description
    from horologe_controller.core.cluster.lane import Action
    from horologe_controller.core.requests.request import Request
    from horologe_controller.settings import ControllerSettings

PING_NS = ms(250)
"""Interval between pings of a worker, which measure the offset of its clock."""


class Controller:
    """Core of the controller."""

    def __init__(
        self, address: str, settings: ControllerSettings, host: str = "", load_backoff: LoadBackoff | None = None
    ) -> None:
        self.address = address
        self.settings = settings
        self.out: list[Out] = []
        self.cluster = Cluster()
        self.stats = Stats()
        self.scheduler = create_scheduler(settings, self.cluster)
        self.store = "rollouts/" + address.partition("/")[2]
        """Address of the state file, which gets each `ControllerState`."""
        discovery = WorkerDiscovery(settings.workers)
        self.catalogue = ModelCatalogue(self.cluster, discovery, self.store)
        self._metrics = ActionMetrics(self.stats)
        self._events = EventRecorder()
        self._activity = ActivityRecorder()
        observers = RequestObservers(self._metrics, self._events, self._activity)
        self._requests = RequestLifecycle(settings, self.cluster, self.scheduler, self.catalogue, self._post, observers)
        self._actions = Actions(address, self.cluster)
        self._workers = WorkerLinks(self.cluster, self.catalogue, self._actions, host)
        self._load_backoff = load_backoff or LoadBackoff()
        self._tracer: ActionTracer | None = None
        self._peers: dict[str, str] = {}
        """Address -> host of every connected peer."""
        self._now_ns = self._ping_ns = 0
        self._wake_ns: int | None = None

    def restore(self, state: ControllerState) -> None:
        """Adopt the state of an earlier controller, before the first message."""
        self.catalogue.switches.restore(state)

    def start_tracing(self, per_second: float, own_per_second: float) -> None:
        """See `Traces`. The frontends choose the requests."""
        self._tracer = ActionTracer(self._post)

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Handle a message of a submitter, a worker, a frontend (for a client) or the host."""
        match message:
            case Submit():
                self._requests.submitted.append((sender, message, now_ns))
            case Result():
                self._on_result(now_ns, sender, message)
            case Unload():
                self._on_unload(now_ns, sender, message)
            case Cancel():
                self._requests.cancel_requests(sender, message.ids)
            case Register():
                self.out.extend(self._workers.register(now_ns, sender, message))
                self._requests.admit_awaited()
            case Pong() | Drain():
                self.out.extend(self._workers.update_status(now_ns, sender, message))
            case Admit():
                self.out.extend(self.catalogue.admit(sender, message))
                self._requests.admit_awaited()
            case Settled():
                self.out.extend(self.catalogue.on_settled(sender, message.id))
            case Describe() | Watch():
                self.out.append(Out(sender, self._answer_watcher(now_ns, message)))
            case PeerConnected():
                self._on_peer_connected(now_ns, message)
            case PeerDisconnected():
                self._on_peer_disconnected(now_ns, message.address)
            case _:
                self._on_published(now_ns, sender, message)

    def _answer_watcher(self, now_ns: int, message: Describe | Watch) -> Description | Activity:
        if isinstance(message, Watch):
            return self._activity.answer(now_ns, message)
        traffic, pending = self.scheduler.policy.traffic, self.pending()
        return describe_cluster(now_ns, message, self.cluster, self.settings.scheduler, traffic, pending)

    def tick(self, now_ns: int) -> None:
        """Admit the buffered requests, plan, and send the planned actions."""
        self._now_ns = now_ns
        if (retry_ns := self._load_backoff.due_ns) is not None and now_ns >= retry_ns:
            self._load_backoff.end_expired(now_ns, self.cluster)
        if self._requests.awaited.submits:
            self._requests.awaited.refuse_expired(now_ns)
        if self.catalogue.discovery.missing and self.catalogue.discovery.update(now_ns):
            self.out.extend(self.catalogue.refresh_and_announce())
            self._requests.admit_awaited()
        if self._workers.handovers:
            self.out.extend(self._workers.release_finished(now_ns))
        if self.catalogue.switches.pending:
            self.out.extend(self.catalogue.advance_switches(now_ns))
        self._adopt_model_changes(now_ns)
        self._requests.admit_buffered(now_ns, self._peers)
        if self.cluster.workers and now_ns >= self._ping_ns:
            self._ping_workers(now_ns)
            self._activity.end_lease(now_ns)
            requests, cancels = self._actions.find_overdue(now_ns)
            self._requests.retry_requests(now_ns, requests, Status.LATE)
            self.out.extend(cancels)
        if (due_ns := self._events.due_ns) is not None and now_ns >= due_ns:
            self.out.extend(self._events.pop_events(now_ns, self.cluster))
        while (plan := self._plan(now_ns)).replan:
            pass
        self._wake_ns = plan.wake_ns

    def _ping_workers(self, now_ns: int) -> None:
        """Ping all workers. A turn long after its timer shows that this process stalled."""
        for address, worker in self.cluster.workers.items():
            if now_ns - self._ping_ns > STALL_NS:
                worker.stalls.mark_stall(now_ns)
            worker.stalls.on_ping(now_ns)
            self.out.append(Out(address, Ping(now_ns)))
        self._ping_ns = now_ns + PING_NS

    def _adopt_model_changes(self, now_ns: int) -> None:
        """Unload what lost its requests and what shares cannot run, and requeue the requests of revised models."""
        changes = self.cluster.changes
        if self.catalogue.released:
            self.out.extend(self._actions.unload_models(self.catalogue.pop_released(now_ns, self.scheduler.queues)))
        if changes.unservable:
            self.out.extend(self._actions.unload_unservable(changes.unservable))
            changes.unservable.clear()
        if changes.revised_models:
            self._requests.requeue_revised(now_ns, changes.revised_models)
            changes.revised_models.clear()

    def _plan(self, now_ns: int) -> Decisions:
        """Call the scheduler, and carry out its plan; after a fault, what it had decided before."""
        plan = Decisions()
        try:
            return self.scheduler.plan(now_ns, plan)
        finally:
            try:
                if plan.refuse:
                    for_each(plan.refuse, lambda refusal: self._requests.finish_refused(now_ns, refusal))
            finally:
                self._actions.carry_out(now_ns, plan, self.out)

    def wakeup_ns(self) -> int | None:
        wakes = [self._wake_ns, self._load_backoff.due_ns, self._events.due_ns]
        if self.cluster.workers:
            wakes.append(self._ping_ns)
        if self.catalogue.discovery.missing or self._requests.awaited.submits:
            wakes.append(self._requests.awaited.next_ns())
        if self.catalogue.switches.pending:
            wakes.append(self.catalogue.switches.next_ns())
        wakes.extend([until_ns for until_ns, _ in self._workers.handovers.values()])
        return min([at_ns for at_ns in wakes if at_ns is not None], default=None)

    def pending(self) -> int:
        """Return the number of open requests."""
        return len(self._requests.table) + len(self._requests.awaited.submits)

    def open_requests(self) -> Iterator[Request]:
        """Iterate over the open requests."""
        return iter(self._requests.table)

    def refresh_stats(self) -> None:
        """Update derived metrics. Called before the metrics are read."""
        self._metrics.publish(self.cluster.specs.values())
        publish_cluster(self._now_ns, self.stats, self.cluster)
        publish_requests(self._now_ns, self.stats, self.cluster, self._requests.table)
        self.stats.set("horologe_workers_expected", to=self.settings.workers)

    def check(self) -> None:
        """Assert that pages add up, and that every request is queued or in exactly one pending action."""
        self.cluster.check()
        self.scheduler.check()
        self._requests.awaited.check()
        self._requests.table.check(self._actions.open_requests(), len(self.scheduler))

    def _on_result(self, now_ns: int, sender: str, result: Result) -> None:
        """Update the mirror and the estimates. Finish the requests of the action, or plan failed rows again."""
        took_ns = result.end_ns - result.begin_ns
        if not (0 <= took_ns <= DURATION_MAX_NS and 0 <= result.device_ns <= DURATION_MAX_NS):
            result = failed_result(sender, result)
        if (finished := self._actions.finish_action(now_ns, sender, result)) is None:
            return
        action, end_ns = finished
        if self._tracer is not None:
            self._tracer.record_action(now_ns, action, result, end_ns)
        try:
            self._record_result(now_ns, action, end_ns, result)
        finally:
            if action.kind != "load":
                self._requests.finish_batch(now_ns, action, result)

    def _record_result(self, now_ns: int, action: Action, end_ns: int, result: Result) -> None:
        took_ns = result.end_ns - result.begin_ns
        self._metrics.record_result(action, result, took_ns, end_ns)
        if self._activity.active:
            self._activity.record_action(action, took_ns, end_ns, result.status)
        ok, estimate = result.status == Status.OK, action.share.find_estimate(action.model)
        stalls = self.cluster.workers[action.share.worker].stalls
        stalled = now_ns > min(stalls.visible_ns, self._ping_ns + STALL_NS) or action.sent_ns < stalls.ended_ns
        steady = action.model not in self.cluster.distributions
        if ok and estimate and not result.rows:  # with missing rows it was a smaller batch
            counted = estimate.observe(now_ns, action.batch_size, took_ns, steady=steady, stalled=stalled)
            if counted and not steady:
                observe_batch(now_ns, self.cluster, action, took_ns)
        if action.kind == "load":
            self._record_load(now_ns, action, result)
        elif ok:
            action.share.load_pauses.pop(action.model, None)
            if not stalled:
                self.cluster.latency.observe(now_ns, action, end_ns - took_ns, end_ns, steady=steady)
            if not result.rows:
                self.scheduler.observe(now_ns, action, took_ns)
            if self._events.active and (slo_ns := self.cluster.planned.slo_ns(action.model)):
                self._events.record_latencies(now_ns + self.settings.margin_ns, action, slo_ns)

    def _record_load(self, now_ns: int, action: Action, result: Result) -> None:
        """Make the model resident, withdraw it after a failure, or pause before the next LOAD."""
        share, model = action.share, action.model
        share.finish_load(model, ok=result.status == Status.OK)
        if result.status == Status.FAILED:
            self.out.extend(self.catalogue.mark_load_failed(share, model, result.reason))
        elif not share.find_estimate(model):  # withdrawn while it was loading
            self.cluster.changes.mark_unservable(share, model)
        elif result.status != Status.OK:
            self._load_backoff.postpone_load(now_ns, share, model, self.cluster)

    def _on_unload(self, now_ns: int, sender: str, message: Unload) -> None:
        """Adopt that a worker has unloaded a model, because its process has ended. Its next LOAD follows a pause."""
        worker = self.cluster.workers.get(sender)
        share = worker.shares.get(message.share) if worker else None
        if share is not None and share.unload_model(message.model):
            self._requests.finish_stranded()
            self._load_backoff.postpone_load(now_ns, share, message.model, self.cluster)

    def _on_published(self, now_ns: int, sender: str, message: Any) -> None:
        """Store what profilers and selectors publish, answer a selector's Ping, adopt the plans of tuners."""
        match message:
            case Distributions():
                spec = self.cluster.specs.get(message.model)
                if spec is None or message.content_hash in ("", spec.content_hash):  # else it is not served any more
                    store_distributions(self.cluster.distributions, message)
            case RefusedAgain():
                self._requests.count_refused_again(now_ns, message.counts)
            case QueriesArrived():
                self._events.record_queries(now_ns, message.counts)
            case Ping():
                reserved_ns = self.cluster.latency.returns.high_quantile(now_ns) or 0
                self.out.append(Out(sender, Pong(message.sent_ns, now_ns, reserved_ns)))
            case ResourcePlan() if role(sender) == "tuner" and sender in self._peers:
                self._events.add_tuner(now_ns, sender)
                if message.number:  # else the tuner only subscribes to events
                    apply_plan(self.cluster, message)

    def _on_peer_connected(self, now_ns: int, message: PeerConnected) -> None:
        self._peers[message.address] = message.host
        if role(message.address) == "worker":
            self._workers.connect(message.address, message.host)
            self._ping_ns = now_ns  # measure its clock before anything is planned for it
        else:
            self.out.append(self.catalogue.add_subscriber(message.address))

    def _on_peer_disconnected(self, now_ns: int, address: str) -> None:
        """Plan a lost worker's requests again; cancel the requests of a lost submitter."""
        self._peers.pop(address, None)
        self.out.extend(self.catalogue.remove_peer(address))
        self._events.remove_tuner(address)
        if worker := self.cluster.workers.get(address):
            self._workers.disconnect(worker)
            self._requests.retry_requests(now_ns, self._actions.drop_worker(address), Status.LOST)
            self._requests.finish_stranded()
            self.out.extend(self.catalogue.refresh_and_announce())
            return
        self._requests.cancel_submitter(address)

    def _post(self, out: Out) -> None:
        self.out.append(out)
