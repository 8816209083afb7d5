"""Contexts that two selectors share: each acknowledged observation is stored exactly once, whatever fails."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from horologe_selector.core.contexts.context import MIN_NAMES
from horologe_selector.store import StoreTimes
from horologe_selector.stores.memory import MemoryStore
from selector.contexts_harness import ContextsHarness, RecordedLosses, observation_name_of, stored_losses

KEY = "contexts/digits\n"
SHARED: dict[str, Any] = {"times": StoreTimes(retry_ns=10, read_timeout_ns=5, refresh_ns=30)}


def test_a_write_with_a_lost_reply_counts_once_after_another_selectors_write() -> None:
    store = MemoryStore(shared=True)
    ours, theirs = ContextsHarness(store, "selector/0#1", **SHARED), ContextsHarness(store, "selector/1#1", **SHARED)
    ours.observe(1)
    ours.run_until_idle()
    ours.observe(2)
    ours.serve_request(replied=False)
    theirs.observe(3)
    theirs.run_until_idle()
    ours.deliver_reply()
    ours.run_until_idle()
    assert stored_losses(store, KEY) == [1, 2, 3]
    assert ours.saved == [1, 2]
    assert ours.get_state() == RecordedLosses([1, 2, 3])


def test_a_shared_state_is_refreshed_in_the_background() -> None:
    store = MemoryStore(shared=True)
    ours, theirs = ContextsHarness(store, "selector/0#1", **SHARED), ContextsHarness(store, "selector/1#1", **SHARED)
    ours.get_state()
    ours.run_until_idle()
    theirs.observe(1)
    theirs.run_until_idle()
    assert ours.get_state() == RecordedLosses()
    assert not ours.requests
    ours.now_ns += 30
    assert ours.get_state() == RecordedLosses(), "the read does not delay it"
    ours.run_until_idle()
    assert ours.get_state() == RecordedLosses([1])


def test_an_observation_sent_to_two_selectors_counts_once() -> None:
    store = MemoryStore(shared=True)
    ours, theirs = ContextsHarness(store, "selector/0#1", **SHARED), ContextsHarness(store, "selector/1#1", **SHARED)
    for loss, harness in ((2, ours), (3, theirs)):
        harness.get_state()
        harness.run_until_idle()
        harness.observe(1, name=observation_name_of(1))
        harness.observe(loss)
    for harness in (ours, theirs):
        harness.run_until_idle()
    assert sorted(stored_losses(store, KEY)) == [1, 2, 3]
    assert sorted(ours.saved + theirs.saved) == [1, 1, 2, 3]


STEPS = st.sampled_from(
    ["observe"] * 3 + ["again", "serve", "hear"] * 2 + ["get", "tick", "fail", "lose", "later", "crash"]
)


class TwoSelectors:
    """Two selectors on one store."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.store = MemoryStore(shared=True)
        self.harnesses = [self.make_harness(at, 0) for at in (0, 1)]
        self.acknowledged: list[int] = []
        self.observed: dict[int, list[int]] = {context: [] for context in range(3)}
        self.number = 0
        self.crashed = False

    def make_harness(self, at: int, incarnation: int) -> ContextsHarness:
        return ContextsHarness(self.store, f"selector/{at}#{incarnation}", contexts_memory=self.memory, **SHARED)

    def step(self, at: int, name: str, context: int) -> None:
        self.number += 1
        harness = self.harnesses[at]
        actions: dict[str, Any] = {
            "observe": lambda: self.observe(harness, context),
            "again": lambda: self.observe_again(harness, context),
            "get": lambda: harness.get_state(str(context)),
            "tick": harness.tick,
            "serve": harness.serve_request,
            "fail": lambda: harness.serve_request(done=False),
            "lose": lambda: harness.serve_request(replied=False),
            "hear": harness.deliver_reply,
            "later": lambda: harness.tick(10),
            "crash": lambda: self.crash(at),
        }
        actions[name]()

    def observe(self, harness: ContextsHarness, context: int) -> None:
        self.observed[context].append(self.number)
        harness.observe(self.number, str(context), name=observation_name_of(self.number))

    def observe_again(self, harness: ContextsHarness, context: int) -> None:
        """Observe the first observation of a context again, while records name it and this selector has saved it.

        Before it is saved, FeedbackProcessor handles the duplicate.
        """
        earlier = self.observed[context]
        unsaved = [each.token for known_context in harness.contexts._contexts for each in known_context.unsaved]
        if earlier and len(earlier) <= MIN_NAMES and earlier[0] not in unsaved:
            harness.observe(earlier[0], str(context), name=observation_name_of(earlier[0]))

    def crash(self, at: int) -> None:
        self.crashed = True
        self.acknowledged += self.harnesses[at].saved
        self.harnesses[at] = self.make_harness(at, self.number)

    def run_until_idle(self) -> None:
        for harness in self.harnesses:
            harness.run_until_idle()
            self.acknowledged += harness.saved
            assert harness.contexts.count_contexts("digits") <= self.memory


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), STEPS, st.integers(0, 2)), max_size=80), st.integers(1, 3))
def test_two_selectors_on_one_store_keep_each_acknowledged_observation_exactly_once(
    steps: list[tuple[int, str, int]], memory: int
) -> None:
    two = TwoSelectors(memory)
    for step in steps:
        two.step(*step)
    two.run_until_idle()
    observed = {number for context in two.observed.values() for number in context}
    stored = [int(loss) for context in range(3) for loss in stored_losses(two.store, f"{KEY}{context}")]
    assert len(stored) == len(set(stored))
    assert set(two.acknowledged) <= set(stored) <= observed
    assert two.crashed or set(two.acknowledged) == observed
