"""After a kill: whether everything that was acknowledged is in the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from horologe_selector.core.applications.active_application import ActiveApplication
from horologe_selector.core.contexts.context import context_family, decode_record, restore_state
from horologe_selector.policy import Selection
from horologe_selector.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_experiments.clipper.feedback_process.feedback_load import Play
    from horologe_selector.settings import SelectorSettings


class Kept(NamedTuple):
    acknowledged: int
    kept: int
    lost: int
    """Acknowledged, and not kept."""


def compare(play: Play, settings: SelectorSettings, lists: Sequence[int]) -> Kept:
    """The state of each context must be what a first part of its observations makes, with all acknowledged ones in
    it: by number of the lists that were acknowledged."""
    size, count = play.load.list, play.load.observations
    acknowledged = {number for one in lists for number in range(one * size, min(count, (one + 1) * size))}
    of_context: dict[str, list[int]] = {}
    for number in range(count):
        of_context.setdefault(play.context_of(number), []).append(number)
    running = ActiveApplication(play.application, 1, {})
    store = open_store(settings)
    states = {
        record.key.partition("\n")[2]: restore_state(running, decode_record(record.data))
        for record in store.list_family(context_family(play.application.name))
    }
    store.close()
    kept = lost = 0
    for context, numbers in of_context.items():
        length = _length(play, running, numbers, states.get(context))
        kept += length
        lost += sum(number in acknowledged for number in numbers[length:])
    return Kept(len(acknowledged), kept, lost)


def _length(play: Play, running: ActiveApplication, numbers: Sequence[int], state: object) -> int:
    """Of the observations that lead to this state; 0 if none do."""
    policy, selection = running.policy, Selection(play.models)
    reached, length = policy.init(), 0
    for done, number in enumerate(numbers, 1):
        reached = policy.observe(reached, selection, play.losses(number))
        if reached == state:
            length = done
    return length
