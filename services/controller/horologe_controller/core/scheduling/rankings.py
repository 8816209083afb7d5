"""What could go next on every share: its rankings, found by share, and by model where that is resident."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_controller.core.scheduling.strategies import Ranking

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.scheduling.queues import ModelQueue
    from horologe_controller.core.scheduling.strategies import Propose

    Pair = tuple[Ranking, Ranking]
    """Of one share: deadline traffic, best effort."""

NOWHERE: dict[Share, Pair] = {}


class Rankings:
    """Kept in step with what shares hold and with the queues that change."""

    def __init__(self, propose: Propose, leftover: Propose) -> None:
        self._propose = propose
        self._leftover = leftover
        self.of: dict[Share, Pair] = {}
        self._holders: dict[str, dict[Share, Pair]] = {}
        """Those of the shares where each model is resident."""

    def holders(self, model: str) -> dict[Share, Pair]:
        """The shares where the model is resident, and their rankings."""
        return self._holders.get(model, NOWHERE)

    def queue_changed(self, queue: ModelQueue) -> None:
        """Its best strategies may be others."""
        waiting, kind = bool(queue), queue.best_effort
        for rankings in self.holders(queue.model).values():
            if waiting:
                rankings[kind].changed[queue] = True
            else:
                rankings[kind].forget(queue)

    def observed(self, share: Share, queues: Iterable[ModelQueue]) -> None:
        """The share's estimates of the model whose queues these are have changed."""
        rankings = self.of[share]
        for queue in queues:
            rankings[queue.best_effort].changed[queue] = True

    def moved(self, share: Share, model: str, queues: Iterable[ModelQueue]) -> None:
        """The model whose queues these are has come to the share, or gone."""
        if share not in self.of:
            self.of[share] = Ranking(self._propose), Ranking(self._leftover)
        self.observed(share, queues)
        holders = self._holders.setdefault(model, {})
        if model in share.resident:
            holders[share] = self.of[share]
        else:
            holders.pop(share, None)
            if not holders:
                del self._holders[model]

    def forget(self, share: Share) -> None:
        """It is gone."""
        self.of.pop(share, None)

    def again(self) -> None:
        """Rank all that has a deadline anew."""
        for deadlines, _ in self.of.values():
            deadlines.again()

    def check(self) -> None:
        for rankings in self.of.values():
            for ranking in rankings:
                ranking.check()
