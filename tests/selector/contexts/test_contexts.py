"""Contexts of one selector: states are read on demand and saved later; observations count exactly once."""

from __future__ import annotations

from horologe_common.clock import ms, s
from horologe_selector.core.contexts.context import MIN_NAMES, observation_name
from horologe_selector.store import ReadRecords, RecordChange, TrimFamily, WriteRecords
from horologe_selector.stores.memory import MemoryStore
from selector.contexts_harness import (
    BOTH,
    ContextsHarness,
    RecordedLosses,
    make_active_application,
    observation_name_of,
    stored_losses,
)

KEY = "contexts/digits\n"


def test_a_new_context_has_a_state_after_an_empty_read() -> None:
    harness = ContextsHarness()
    assert harness.get_state("ann") is None
    assert list(harness.requests) == [ReadRecords((KEY + "ann",))]
    harness.serve_request()
    harness.deliver_reply()
    assert harness.contexts.pop_ready() == [("digits", "ann")]
    assert harness.contexts.pop_ready() == []
    assert harness.get_state("ann") == RecordedLosses()
    assert not harness.requests


def test_observations_count_at_once_and_are_saved_later() -> None:
    harness = ContextsHarness()
    harness.get_state("ann")
    harness.run_until_idle()
    harness.observe(0.25, "ann")
    assert harness.get_state("ann") == RecordedLosses([0.25])
    assert harness.saved == []
    assert stored_losses(harness.store, KEY + "ann") == []
    harness.serve_request()
    assert stored_losses(harness.store, KEY + "ann") == [0.25]
    assert harness.saved == []
    harness.deliver_reply()
    assert harness.saved == [0.25]


def test_observations_during_a_write_go_into_the_next_write() -> None:
    harness = ContextsHarness()
    harness.observe(1)
    harness.run_until_idle()
    for loss in (2, 3, 4):
        harness.observe(loss)
    assert len(harness.requests) == 1
    harness.serve_request()
    harness.deliver_reply()
    assert harness.saved == [1, 2]
    assert len(harness.requests) == 1
    harness.run_until_idle()
    assert harness.saved == [1, 2, 3, 4]
    assert stored_losses(harness.store, KEY) == [1, 2, 3, 4]


def test_contexts_changed_in_one_turn_share_one_write() -> None:
    harness = ContextsHarness()
    for context in "abc":
        harness.contexts.observe(0, harness.active, context, BOTH, {"digits-a": 1.0}, 0)
    harness.tick()
    harness.serve_request()
    harness.deliver_reply()
    (write,) = harness.requests
    assert isinstance(write, WriteRecords)
    assert len(write.changes) == 3


def test_an_observation_without_effect_is_not_written() -> None:
    harness = ContextsHarness()
    harness.get_state()
    harness.run_until_idle()
    harness.contexts.observe(0, harness.active, "", BOTH, {"digits-b": 1.0}, "token")
    harness.tick()
    assert harness.saved == ["token"]
    assert not harness.requests


def test_a_state_not_read_in_time_starts_new_and_is_rebased_later() -> None:
    store = MemoryStore()
    before = ContextsHarness(store)
    before.observe(1)
    before.run_until_idle()
    harness = ContextsHarness(store, "selector/0#2")
    assert harness.get_state() is None
    assert harness.contexts.wakeup_ns() == ms(20)
    harness.tick(ms(20))
    assert harness.contexts.pop_ready() == [("digits", "")]
    assert harness.get_state() == RecordedLosses()
    harness.observe(2)
    assert harness.get_state() == RecordedLosses([2])
    harness.run_until_idle()
    assert harness.get_state() == RecordedLosses([1, 2])
    assert stored_losses(store, KEY) == [1, 2]
    assert harness.saved == [2]


def test_while_the_store_is_unavailable_contexts_use_memory_or_a_new_state() -> None:
    harness = ContextsHarness()
    harness.observe(1, "ann")
    harness.run_until_idle()
    harness.get_state("bob")
    harness.serve_request(done=False)
    harness.deliver_reply()
    assert harness.contexts.store_unavailable
    assert harness.get_state("bob") == harness.get_state("eve") == RecordedLosses()
    assert harness.get_state("ann") == RecordedLosses([1])
    harness.observe(2, "ann")
    harness.observe(3, "eve")
    assert not harness.requests, "no request during the retry interval"
    retry_ns = harness.contexts.wakeup_ns()
    assert retry_ns == ms(500)
    assert harness.get_state("ann") == RecordedLosses([1, 2])
    harness.now_ns = retry_ns
    harness.run_until_idle()
    assert not harness.contexts.store_unavailable
    assert harness.saved == [1, 2, 3]
    assert stored_losses(harness.store, KEY + "ann") == [1, 2]
    assert stored_losses(harness.store, KEY + "eve") == [3]


def test_a_write_with_a_lost_reply_is_retried_and_counts_once() -> None:
    harness = ContextsHarness()
    harness.observe(1)
    harness.run_until_idle()
    harness.observe(2)
    harness.serve_request(replied=False)
    harness.observe(3)
    harness.deliver_reply()
    harness.run_until_idle()
    assert stored_losses(harness.store, KEY) == [1, 2, 3]
    assert harness.saved == [1, 2, 3]


def test_a_record_without_bytes_is_replaced() -> None:
    harness = ContextsHarness()
    harness.store.write_changes([RecordChange(KEY, 0, b"")])
    harness.observe(1)
    harness.run_until_idle()
    assert stored_losses(harness.store, KEY) == [1]


def test_records_keep_a_bounded_number_of_names() -> None:
    store = MemoryStore()
    harness = ContextsHarness(store)
    harness.observe(0)
    harness.run_until_idle()
    for number in range(1, 2 + MIN_NAMES):
        harness.observe(number, name=observation_name_of(number))
        harness.run_until_idle()
    harness.observe(1, name=observation_name_of(1))
    harness.observe(2, name=observation_name_of(2))
    harness.run_until_idle()
    assert stored_losses(store, KEY) == [*range(2 + MIN_NAMES), 1]


def test_an_observation_name_is_a_nonce_or_a_hash() -> None:
    assert observation_name(bytes(range(44))) == bytes(range(4, 12))
    assert len({observation_name(b"order-%d" % number) for number in range(1000)}) == 1000
    assert {len(observation_name(b"order-1")), len(observation_name(b"x" * 64))} == {8}
    assert observation_name(b"") == b""


def test_an_unshared_store_is_read_once() -> None:
    harness = ContextsHarness()
    harness.get_state()
    harness.run_until_idle()
    harness.now_ns += s(3600)
    harness.get_state()
    assert not harness.requests


def test_evicted_contexts_are_read_again() -> None:
    harness = ContextsHarness(contexts_memory=3)
    for number in range(10):
        harness.observe(number, str(number))
    harness.run_until_idle()
    assert harness.contexts.count_contexts("digits") <= 3
    assert harness.get_state("0") is None
    harness.run_until_idle()
    assert harness.get_state("0") == RecordedLosses([0])
    assert harness.contexts.count_contexts("digits") <= 3
    assert harness.contexts.count_contexts("other") == 0


def test_contexts_being_saved_are_not_evicted() -> None:
    harness = ContextsHarness(contexts_memory=1)
    for number in range(5):
        harness.observe(number, str(number))
    assert harness.contexts.unsaved == 5
    harness.run_until_idle()
    assert sorted(harness.saved) == [0, 1, 2, 3, 4]


def test_the_store_is_trimmed_to_the_newest_contexts() -> None:
    harness = ContextsHarness(active=make_active_application(contexts=32))
    for number in range(100):
        harness.observe(number, str(number))
        harness.run_until_idle()
    records = harness.store.list_family("contexts/digits")
    assert 32 <= len(records) <= 34
    assert {record.key for record in records} >= {f"{KEY}{number}" for number in range(68, 100)}


def test_a_trimmed_context_is_written_again_from_memory() -> None:
    harness = ContextsHarness()
    harness.observe(1)
    harness.run_until_idle()
    harness.store.trim_family("contexts/digits", 0)
    harness.observe(2)
    harness.run_until_idle()
    assert stored_losses(harness.store, KEY) == [1, 2]


def test_withdrawing_an_application_drops_its_contexts_and_fails_its_observations() -> None:
    harness = ContextsHarness()
    harness.observe(1, "ann")
    harness.observe(2, "bob")
    other = make_active_application("digits2")
    harness.contexts.observe(0, other, "", BOTH, {"digits-a": 1.0}, "other")
    harness.contexts.remove_application("digits", erase=True)
    assert sorted(harness.contexts.failed) == [(token, "application 'digits' was withdrawn") for token in (1, 2)]
    harness.run_until_idle()
    assert harness.saved == ["other"]
    assert harness.contexts.count_contexts("digits") == 0
    assert harness.store.list_family("contexts/digits") == []
    assert len(harness.store.list_family("contexts/digits2")) == 1


def test_erasing_deletes_contexts_with_a_write_in_flight() -> None:
    harness = ContextsHarness()
    harness.get_state()
    harness.run_until_idle()
    harness.observe(1)
    harness.contexts.remove_application("digits", erase=True)
    harness.tick()
    assert [type(message) for message in harness.requests] == [WriteRecords, TrimFamily]
    harness.run_until_idle()
    assert harness.store.list_family("contexts/digits") == []


def test_a_new_declaration_keeps_states_in_memory_and_in_the_store() -> None:
    harness = ContextsHarness()
    harness.observe(1)
    harness.run_until_idle()
    harness.active = make_active_application(revision=2)
    assert harness.get_state() == RecordedLosses([1])
    fresh = ContextsHarness(harness.store, "selector/0#2", active=make_active_application(revision=3))
    fresh.get_state()
    fresh.run_until_idle()
    assert fresh.get_state() == RecordedLosses([1])
