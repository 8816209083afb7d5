"""Frontend - controller: recent actions and refusals, for the console."""

from __future__ import annotations

from typing import TypeAlias

from horologe_common.status import Status
from horologe_common.wire.message import Message


class Watch(Message, frozen=True, tag=80):
    """Request the actions and refusals since an earlier Activity. The controller records them for 5 s after a Watch."""

    id: int
    after: int = 0
    """`number` of the last Activity; 0: none."""
    limit: int = 300
    """Maximum number of actions in the answer."""


class ActionRecord(Message, frozen=True):
    """An action that has ended. Times are on the controller's clock."""

    kind: str
    """`infer` or `load`."""
    worker: str
    share: int
    model: str
    batch_size: int
    requests: int
    planned_begin_ns: int
    planned_end_ns: int
    """As predicted when the action was sent."""
    begin_ns: int
    end_ns: int
    status: int
    late: int = 0
    """Requests whose planned deadline was before `end_ns`."""


class RefusalRecord(Message, frozen=True):
    """Refusals of one model for one reason, in the 50 ms from `at_ns` on."""

    at_ns: int
    model: str
    reason: str
    """Label value of `horologe_refused_total`."""
    count: int
    missing_ns: int = 0
    """Largest time by which a deadline was too early; 0: not known."""


class ShareActivity(Message, frozen=True):
    """All actions of a share since the last Activity, also those that are not in `actions`."""

    worker: str
    share: int
    actions: int
    exec_ns: int
    """Sum of the durations of INFERs."""


class Activity(Message, frozen=True, tag=81):
    """Answer to Watch: what has ended since then, oldest first.

    If there are more actions than `limit`, those that failed, were late or were LOADs come first, and a regular sample
    of the others fills the rest.
    """

    id: int
    number: int = 0
    """Actions and refusals that the controller has recorded."""
    now_ns: int = 0
    """The controller's clock."""
    actions: tuple[ActionRecord, ...] = ()
    refusals: tuple[RefusalRecord, ...] = ()
    shares: tuple[ShareActivity, ...] = ()
    missing: int = 0
    """Actions that are not in `actions`, and actions or refusals that were dropped because too many were recorded."""
    status: int = Status.OK
    reason: str = ""


ConsoleMessage: TypeAlias = Watch | Activity
