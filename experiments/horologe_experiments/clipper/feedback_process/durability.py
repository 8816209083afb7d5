"""Durability after a kill: compares the acknowledged observations with the states in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from horologe_selector.core.applications.active_application import ActiveApplication
from horologe_selector.core.contexts.context import context_family, read_context
from horologe_selector.policy import Selection
from horologe_selector.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_experiments.clipper.feedback_process.feedback_load import FeedbackLoad
    from horologe_selector.settings import SelectorSettings


class Durability(NamedTuple):
    """Numbers of observations."""

    acknowledged: int
    stored: int
    lost: int
    """Acknowledged but not stored."""


def compare_with_store(load: FeedbackLoad, settings: SelectorSettings, lists: Sequence[int]) -> Durability:
    """Count the observations that the store has lost, given the numbers of the acknowledged lists.

    The state of a context must be the result of its first n observations, and these must include all acknowledged ones.
    """
    size, count = load.settings.list, load.settings.observations
    acknowledged = {number for at in lists for number in range(at * size, min(count, (at + 1) * size))}
    of_context: dict[str, list[int]] = {}
    for number in range(count):
        of_context.setdefault(load.context_of(number), []).append(number)
    running = ActiveApplication(load.application, 1, {})
    store = open_store(settings)
    states = {
        record.key.partition("\n")[2]: read_context(running, record.data).state
        for record in store.list_family(context_family(load.application.name))
    }
    store.close()
    stored_count = lost = 0
    for context, numbers in of_context.items():
        length = _observations_in(load, running, numbers, states.get(context))
        stored_count += length
        lost += sum(number in acknowledged for number in numbers[length:])
    return Durability(len(acknowledged), stored_count, lost)


def _observations_in(load: FeedbackLoad, running: ActiveApplication, numbers: Sequence[int], state: object) -> int:
    """Return the number of observations that lead to this state; 0 if no number does."""
    policy, selection = running.policy, Selection(load.models)
    reached, length = policy.init(), 0
    for done, number in enumerate(numbers, 1):
        reached = policy.observe(reached, selection, load.losses(number))
        if reached == state:
            length = done
    return length
