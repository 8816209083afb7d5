"""Settings of the controller."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from horologe_common.clock import ms, s


class ControllerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scheduling, admission and the limits of requests and actions."""

    workers: Annotated[int, Meta(ge=0)] = 0
    """Number of workers of the cluster. Until so many have registered after a start, a model that none of them has is
    not UNKNOWN_MODEL: its requests wait, or are REFUSED. 0: not known.
    Workers then have 10 s after the start to register. `horologe up` sets it."""
    state: str = ".cache/horologe"
    """Folder of the state file: the versions that operators have promoted. Empty: they are lost at a restart, and the
    newest versions get the requests."""
    scheduler: str = "horologe"
    """Scheduling policy. clockwork, orloj, clipper, nexus and deferred (Symphony) follow those systems. edf and fifo
    are baselines; fifo refuses nothing."""
    fairness: Literal["fair", "goodput"] = "fair"
    """Objective of `horologe` under overload. fair: the most requests of which each model gets at least about half of
    the mean part. goodput: the most requests, so models that take long per request are served last
    (docs/scheduling.md)."""
    policy: dict[str, bool | int | float | str] = {}
    """Parameters of the scheduling policy, which declares them: `SchedulingPolicy.Parameters`."""
    lookahead_ns: Annotated[int, Meta(ge=0, le=s(10))] = ms(5)
    """Time for which each lane of each share is given work ahead (Clockwork appendix B)."""
    in_flight: Annotated[int, Meta(ge=1, le=1000)] = 2
    """Limit of pending INFERs per share. With actions shorter than the message latency, more would only make batches
    smaller. Just-in-time policies have more pending while Results are on their way."""
    admission: bool = True
    """Refuse a request on arrival if it would be late even with all shares running nothing but its model: clients learn
    of an overload at once, and fewer answers are a little late. Off: a request waits until not even a batch of its own
    could finish in time, as in Clockwork's appendix B (docs/scheduling.md)."""
    margin_ns: Annotated[int, Meta(ge=0)] = ms(1)
    """Reserved for the return to the client, in addition to the measured return latency. More if batches have taken
    longer than predicted. At most an eighth of the time that a request alone could wait."""
    max_queued: int = 50_000
    """Limit of queued requests. Further requests are refused."""
    preload: bool = True
    """Load admitted models into free pages before the first request for them."""

    def with_scheduler(self, scheduler: str) -> ControllerSettings:
        """Return the settings for a scheduler. Another one than this does not get the parameters of this one."""
        policy = self.policy if scheduler == self.scheduler else {}
        return msgspec.structs.replace(self, scheduler=scheduler, policy=policy)
