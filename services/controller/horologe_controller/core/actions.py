"""What the workers were told to do and have not answered yet: the messages, and the mirror kept in step with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.protocol import Out
from horologe_common.wire import Cancel, Dispatch, Infer, Load, Row, Unload
from horologe_controller.core.cluster.lane import Action
from horologe_controller.core.cluster.share import LOAD_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horologe_common.wire import Register, Result
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.lane import Kind, Lane
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.cluster.worker_mirror import Worker
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.scheduler import Batch, Plan


class Actions:
    """Pending actions by id. A request belongs to the one its `action_id` names."""

    def __init__(self, address: str, cluster: Cluster, grace_ns: int) -> None:
        self._cluster = cluster
        self._grace_ns = grace_ns
        self._pending: dict[int, Action] = {}
        self._last_id = _first_id(address)

    def __iter__(self) -> Iterator[Action]:
        return iter(self._pending.values())

    def requests(self) -> list[Request]:
        """Those that wait for an action."""
        return [request for action in self._pending.values() for request in action.open_requests()]

    def carry_out(self, now_ns: int, plan: Plan) -> Iterator[Out]:
        """What a plan says the workers are to do, in its order."""
        for share, model in plan.unload:
            yield self._unload(share, model)
        for share, model in plan.load:
            yield self._load(now_ns, share, model)
        for batch in plan.start:
            yield from self._start(now_ns, batch)

    def adopt(self, now_ns: int, worker: Worker, message: Register) -> None:
        """LOADs that another controller has asked for: their Results will come here."""
        for told in message.shares:
            share = worker.shares[told.share]
            under_way = {action.model for action in share.load.pending.values()}
            for model, action_id in told.loading:
                if model in share.loading and model not in under_way:
                    expected_ns = share.predict(now_ns, model, LOAD_SIZE) if model in share.estimates else 0
                    self._act(now_ns, "load", share, model, LOAD_SIZE, [], now_ns, expected_ns, action_id)

    def drop_unserved(self) -> Iterator[Out]:
        """UNLOAD what shares hold and cannot run any more. INFERs that come too late for it are planned again."""
        for share, model in self._cluster.unserved:
            if not share.gone and model not in share.estimates:
                yield self._unload(share, model)
        self._cluster.unserved.clear()

    def ended(self, now_ns: int, sender: str, result: Result) -> tuple[Action, int] | None:
        """Which action this is the result of, and when it ended on our clock; None if it is not pending there."""
        action = self._pending.get(result.action_id)
        if action is None or action.share.worker != sender:
            return None
        del self._pending[action.id]
        end_ns = min(now_ns, result.end_ns - self._cluster.workers[sender].offset_ns())
        _lane(action).ended(action, end_ns)
        self._cluster.changes.share(action.share)
        return action, end_ns

    def lost_with(self, worker: str) -> list[Request]:
        """Nothing will be heard of the actions of this worker: their requests."""
        lost = [action for action in self._pending.values() if action.share.worker == worker]
        for action in lost:
            del self._pending[action.id]
        return [request for action in lost for request in action.open_requests()]

    def overdue(self, now_ns: int) -> tuple[list[Request], list[Out]]:
        """Requests on shares whose oldest action is long overdue, and what their workers are to be told.

        Their lanes stay busy: nothing is planned there until they are heard of. A worker that waits for inputs, whose
        holder may have died, drops the action when told to, where it would wait for the window to close.
        """
        requests, outs = [], []
        for worker in self._cluster.workers.values():
            for share in worker.shares.values():
                if share.exec.overdue(now_ns, self._grace_ns):
                    requests += [one for action in share.exec.pending.values() for one in action.open_requests()]
                    outs.append(Out(worker.address, Cancel(tuple(share.exec.pending))))
        return requests, outs

    def _start(self, now_ns: int, batch: Batch) -> list[Out]:
        """INFER to the worker, and to each holder whose inputs it needs: ship them there."""
        share = batch.share
        action = self._act(
            now_ns, "infer", share, batch.model, batch.batch_size, batch.requests, batch.start_ns, batch.expected_ns
        )
        share.touch(batch.model)
        parties: dict[str, int] = {}
        rows = []
        by_holder: dict[str, list[int]] = {}
        for request in batch.requests:
            request.action_id = action.id
            holder = parties.setdefault(request.holder, len(parties))
            submitter = parties.setdefault(request.submitter, len(parties))
            rows.append(Row(holder, request.input_id, submitter, request.submit_id, request.rows))
            by_holder.setdefault(request.holder, []).append(request.input_id)
        offset_ns = self._cluster.workers[share.worker].offset_ns()
        outs = [
            Out(
                share.worker,
                Infer(
                    action.id,
                    share.number,
                    batch.model,
                    batch.batch_size,
                    tuple(rows),
                    tuple(parties),
                    now_ns + offset_ns,
                    batch.latest_ns + offset_ns,
                    batch.expected_ns,
                ),
            )
        ]
        for holder_address, input_ids in by_holder.items():
            outs.append(Out(holder_address, Dispatch(action.id, share.worker, tuple(input_ids))))
        return outs

    def _load(self, now_ns: int, share: Share, model: str) -> Out:
        """LOAD to the worker; the pages are held from now on."""
        share.hold(model, self._cluster.specs[model].pages, loading=True)
        expected_ns = share.predict(now_ns, model, LOAD_SIZE)
        action = self._act(now_ns, "load", share, model, LOAD_SIZE, [], share.load.free_at(now_ns), expected_ns)
        earliest_ns = now_ns + self._cluster.workers[share.worker].offset_ns()
        latest_ns = earliest_ns + (action.end_ns - now_ns) + self._grace_ns
        return Out(share.worker, Load(action.id, share.number, model, earliest_ns, latest_ns, expected_ns))

    def _unload(self, share: Share, model: str) -> Out:
        """UNLOAD to the worker. It is not pending: its pages are free at once."""
        if model in share.resident:
            share.unload(model)
        self._last_id += 1
        return Out(share.worker, Unload(self._last_id, share.number, model))

    def _act(
        self,
        now_ns: int,
        kind: Kind,
        share: Share,
        model: str,
        size: int,
        requests: list[Request],
        start_ns: int,
        expected_ns: int,
        action_id: int = 0,
    ) -> Action:
        if not action_id:
            action_id = self._last_id = self._last_id + 1
        end_ns = start_ns + expected_ns
        estimate = share.estimates.get(model)
        action = Action(
            action_id,
            kind,
            share,
            model,
            size,
            requests,
            now_ns,
            start_ns,
            end_ns,
            expected_ns,
            end_ns,
            estimate.typical(now_ns, size) if estimate else expected_ns,
        )
        self._pending[action.id] = action
        _lane(action).add(action)
        return action


def _first_id(address: str) -> int:
    """Ids of one controller incarnation are not those of another: workers may still hold its actions."""
    return int(address.partition("#")[2] or "0", 16) << 31


def _lane(action: Action) -> Lane:
    return action.share.exec if action.kind == "infer" else action.share.load
