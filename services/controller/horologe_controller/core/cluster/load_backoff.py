"""LOADs that workers refuse: a share that has refused a model is not asked for it again for a while, each time longer.

A worker refuses for reasons that pass: too many actions at once, no pages yet, a window that it missed. To ask again at
once would be answered alike, for as long as that lasts. A LOAD that fails is another thing: see `Repository.failed`.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from horologe_controller.core.scheduling.scheduler import Refusal

if TYPE_CHECKING:
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request


class Pauses:
    """When each ends. A LOAD that succeeds ends it for good, and so does the worker's next Register."""

    def __init__(self, first_ns: int, most_ns: int) -> None:
        self._first_ns = first_ns
        self._most_ns = most_ns
        self._ends: list[tuple[int, int, str, Share]] = []
        """A heap; the share's index tells ends at the same time apart. Only those count that `Share.paused` has."""

    def refused(self, now_ns: int, share: Share, model: str, cluster: Cluster) -> None:
        """The share has refused to load the model; where no other takes it, its requests are looked at again."""
        times = share.refusals[model] = share.refusals.get(model, 0) + 1
        pause_ns = self._first_ns
        for _ in range(times - 1):
            if pause_ns >= self._most_ns:
                break
            pause_ns *= 2
        until_ns = share.paused[model] = now_ns + min(pause_ns, self._most_ns)
        heapq.heappush(self._ends, (until_ns, share.index, model, share))
        if _opens_ns(model, cluster):
            cluster.revised[model] = True

    def end(self, now_ns: int, cluster: Cluster) -> None:
        """Those whose time is over: the shares are asked again."""
        while (at_ns := self.next_ns()) is not None and at_ns <= now_ns:
            _, _, model, share = heapq.heappop(self._ends)
            del share.paused[model]
            cluster.stir(share)

    def next_ns(self) -> int | None:
        """When the next one ends."""
        ends = self._ends
        while ends and ends[0][3].paused.get(ends[0][2]) != ends[0][0]:
            heapq.heappop(ends)
        return ends[0][0] if ends else None


def held_up(now_ns: int, request: Request, exec_ns: int, cluster: Cluster) -> Refusal | None:
    """None if the request, running `exec_ns`, could end by its deadline for all that shares refuse to load."""
    if not (opens_ns := _opens_ns(request.model, cluster)):
        return None
    late_ns = max(now_ns, opens_ns) + cluster.load_ns(request.model) + exec_ns - request.deadline_ns
    reason = "its model is loaded nowhere, and workers refuse to load it"
    return Refusal(request, reason, late_ns) if late_ns > 0 else None


def _opens_ns(model: str, cluster: Cluster) -> int:
    """When the first share can be asked again for a model that none holds; 0 if one holds it, or can be asked now."""
    if model in cluster.holders.of or not (capable := cluster.capable.get(model)):
        return 0
    return min(share.paused.get(model, 0) for share in capable)
