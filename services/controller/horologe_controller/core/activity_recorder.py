"""Recent actions and refusals for consoles. Recorded only while somebody watches."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from horologe_common.clock import ms, s
from horologe_common.wire import ActionRecord, Activity, RefusalRecord, ShareActivity, Watch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_controller.core.cluster.lane import Action
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.scheduling.decisions import Refusal

    EndedAction = tuple[Action, int, int, int]
    """Action, its duration, its end and its status."""

LEASE_NS = s(5)
"""Recording ends this long after the last Watch. A console sends one every half second."""
ENTRIES = 16_384
"""Actions and refusals kept: three seconds at 5,000 per second."""
LIMIT = 2_000
"""Most actions, and most refusal records, in an answer."""
BIN_NS = ms(50)


class ActivityRecorder:
    """The last `ENTRIES` actions and refusals. An entry is a reference: the records are built for the answer."""

    def __init__(self) -> None:
        self.active = False
        """True while a console is open. Nothing is recorded otherwise."""
        self._until_ns = 0
        self._number = 0
        self._entries: deque[EndedAction | tuple[Refusal, int]] = deque(maxlen=ENTRIES)

    def record_action(self, action: Action, took_ns: int, end_ns: int, status: int) -> None:
        """Record an action that ended at `end_ns` in the controller's clock."""
        self._number += 1
        self._entries.append((action, took_ns, end_ns, status))

    def record_refusal(self, now_ns: int, refusal: Refusal) -> None:
        """Record a refused request."""
        self._number += 1
        self._entries.append((refusal, now_ns))

    def end_lease(self, now_ns: int) -> None:
        """Stop recording if no client has watched for `LEASE_NS`."""
        if self.active and now_ns >= self._until_ns:
            self.active = False
            self._entries.clear()

    def answer(self, now_ns: int, watch: Watch) -> Activity:
        """Return what has ended since `watch.after`, and record for `LEASE_NS` from now on.

        A number that this controller has not reached is one of an earlier controller.
        """
        self.active, self._until_ns = True, now_ns + LEASE_NS
        wanted = self._number - watch.after if watch.after <= self._number else self._number
        entries = list(islice(reversed(self._entries), wanted))
        entries.reverse()
        actions = [entry for entry in entries if len(entry) == 4]
        refusals = [entry for entry in entries if len(entry) == 2]
        chosen = _choose(actions, min(max(0, watch.limit), LIMIT))
        missing = wanted - len(entries) + len(actions) - len(chosen)
        return Activity(
            watch.id,
            self._number,
            now_ns,
            tuple(map(_describe_action, chosen)),
            _group_refusals(refusals),
            _sum_shares(actions),
            missing,
        )


def _choose(actions: list[EndedAction], limit: int) -> list[EndedAction]:
    """Return at most `limit` actions in their order: unusual ones first, then every n-th of the others."""
    if len(actions) <= limit:
        return actions
    unusual = [number for number, entry in enumerate(actions) if _is_unusual(entry)][:limit]
    room, known = limit - len(unusual), dict.fromkeys(unusual, True)
    others = [number for number in range(len(actions)) if number not in known]
    sampled = [others[place * len(others) // room] for place in range(min(room, len(others)))]
    return [actions[number] for number in sorted([*unusual, *sampled])]


def _is_unusual(entry: EndedAction) -> bool:
    action, _, end_ns, status = entry
    if status or action.kind == "load":
        return True
    return True in [end_ns > request.deadline_ns for request in action.requests]


def _describe_action(entry: EndedAction) -> ActionRecord:
    action, took_ns, end_ns, status = entry
    late = sum([end_ns > request.deadline_ns for request in action.requests])
    return ActionRecord(
        action.kind,
        action.share.worker,
        action.share.number,
        action.model,
        action.batch_size,
        len(action.requests),
        action.promised_ns - action.expected_ns,
        action.promised_ns,
        end_ns - took_ns,
        end_ns,
        status,
        late,
    )


def _group_refusals(refusals: Iterable[tuple[Refusal, int]]) -> tuple[RefusalRecord, ...]:
    """Count refusals by time, model and reason. Of more than `LIMIT` groups, return the largest."""
    groups: dict[tuple[int, str, str], list[int]] = {}
    for refusal, at_ns in refusals:
        key = at_ns - at_ns % BIN_NS, refusal.request.model, str(refusal.reason)
        counts = groups.setdefault(key, [0, 0])
        counts[0] += 1
        counts[1] = max(counts[1], refusal.retry_after_ns)
    largest = sorted(groups.items(), key=lambda item: -item[1][0])[:LIMIT]
    return tuple(RefusalRecord(*key, *counts) for key, counts in sorted(largest))


def _sum_shares(actions: Iterable[EndedAction]) -> tuple[ShareActivity, ...]:
    sums: dict[Share, list[int]] = {}
    for action, took_ns, _, _ in actions:
        counts = sums.get(action.share)
        if counts is None:
            counts = sums[action.share] = [0, 0]
        counts[0] += 1
        if action.kind == "infer":
            counts[1] += took_ns
    return tuple(ShareActivity(share.worker, share.number, *counts) for share, counts in sums.items())
