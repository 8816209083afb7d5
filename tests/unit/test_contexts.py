"""States of contexts: read when wanted, saved behind, shared; nothing acknowledged is lost, nothing counts twice."""

from __future__ import annotations

from typing import Any

import pytest

from horologe_common.clock import ms, s
from horologe_selector.core.contexts.context import MIN_NAMES, observation_name
from horologe_selector.store import ReadRecords, TrimFamily, WriteRecords
from horologe_selector.stores.memory import MemoryStore
from learning import Seen, Shelf, a_running, kept, named

KEY = "contexts/digits\n"


def a_shelf(**settings: Any) -> Shelf:
    return Shelf(MemoryStore(), **settings)


def test_a_new_context_is_known_when_the_store_says_that_it_has_none() -> None:
    shelf = a_shelf()
    assert shelf.get("ann") is None
    assert list(shelf.asked) == [ReadRecords((KEY + "ann",))]
    shelf.serve()
    shelf.hear()
    assert shelf.contexts.pop_ready() == [("digits", "ann")]
    assert shelf.contexts.pop_ready() == []
    assert shelf.get("ann") == Seen()
    assert not shelf.asked


def test_observations_count_at_once_and_are_acknowledged_when_they_are_saved() -> None:
    shelf = a_shelf()
    shelf.get("ann")
    shelf.settle()
    shelf.observe(0.25, "ann")
    assert shelf.get("ann") == Seen([0.25])
    assert shelf.saved == []
    assert kept(shelf.store, KEY + "ann") == []
    shelf.serve()
    assert kept(shelf.store, KEY + "ann") == [0.25]
    assert shelf.saved == []
    shelf.hear()
    assert shelf.saved == [0.25]


def test_what_comes_while_a_write_is_under_way_goes_with_the_next_one() -> None:
    shelf = a_shelf()
    shelf.observe(1)
    shelf.settle()
    for loss in (2, 3, 4):
        shelf.observe(loss)
    assert len(shelf.asked) == 1
    shelf.serve()
    shelf.hear()
    assert shelf.saved == [1, 2]
    assert len(shelf.asked) == 1
    shelf.settle()
    assert shelf.saved == [1, 2, 3, 4]
    assert kept(shelf.store, KEY) == [1, 2, 3, 4]


def test_contexts_that_have_changed_together_are_one_write() -> None:
    shelf = a_shelf()
    for context in "abc":
        shelf.contexts.observe(0, shelf.running, context, shelf.running.policy.select(None, None), {"digits-a": 1.0}, 0)  # type: ignore[arg-type]
    shelf.tick()
    shelf.serve()
    shelf.hear()
    (write,) = shelf.asked
    assert isinstance(write, WriteRecords)
    assert len(write.changes) == 3


def test_an_observation_that_teaches_nothing_needs_no_write() -> None:
    shelf = a_shelf()
    shelf.get()
    shelf.settle()
    shelf.contexts.observe(0, shelf.running, "", shelf.running.policy.select(None, None), {"digits-b": 1.0}, "token")  # type: ignore[arg-type]
    shelf.tick()
    assert shelf.saved == ["token"]
    assert not shelf.asked


def test_a_state_that_is_not_read_in_time_is_taken_for_new_and_put_right_later() -> None:
    store = MemoryStore()
    before = Shelf(store)
    before.observe(1)
    before.settle()
    shelf = Shelf(store, "selector/0#2")
    assert shelf.get() is None
    assert shelf.contexts.wakeup_ns() == ms(20)
    shelf.tick(ms(20))
    assert shelf.contexts.pop_ready() == [("digits", "")]
    assert shelf.get() == Seen()
    shelf.observe(2)
    assert shelf.get() == Seen([2])
    shelf.settle()
    assert shelf.get() == Seen([1, 2])
    assert kept(store, KEY) == [1, 2]
    assert shelf.saved == [2]


def test_while_the_store_is_away_states_in_memory_go_on_and_others_begin_anew() -> None:
    shelf = a_shelf()
    shelf.observe(1, "ann")
    shelf.settle()
    shelf.get("bob")
    shelf.serve(done=False)
    shelf.hear()
    assert shelf.contexts.store_unavailable
    assert shelf.get("bob") == shelf.get("eve") == Seen()
    assert shelf.get("ann") == Seen([1])
    shelf.observe(2, "ann")
    shelf.observe(3, "eve")
    assert not shelf.asked, "it is left alone for a while"
    again_ns = shelf.contexts.wakeup_ns()
    assert again_ns == ms(500)
    assert shelf.get("ann") == Seen([1, 2])
    shelf.now_ns = again_ns
    shelf.settle()
    assert not shelf.contexts.store_unavailable
    assert shelf.saved == [1, 2, 3]
    assert kept(shelf.store, KEY + "ann") == [1, 2]
    assert kept(shelf.store, KEY + "eve") == [3]


def test_a_write_whose_answer_was_lost_is_tried_again_and_counts_once() -> None:
    shelf = a_shelf()
    shelf.observe(1)
    shelf.settle()
    shelf.observe(2)
    shelf.serve(told=False)
    shelf.observe(3)
    shelf.hear()
    shelf.settle()
    assert kept(shelf.store, KEY) == [1, 2, 3]
    assert shelf.saved == [1, 2, 3]


def test_what_has_a_name_counts_once_though_it_comes_again_after_a_restart() -> None:
    store = MemoryStore()
    before = Shelf(store)
    for number in range(20):
        before.observe(number, name=named(number))
    before.settle()
    shelf = Shelf(store, "selector/0#2")
    shelf.observe(19, name=named(19))
    shelf.observe(20, name=named(20))
    shelf.settle()
    shelf.observe(18, name=named(18))
    assert shelf.saved == [19, 20, 18]
    assert kept(store, KEY) == [*range(21)]


def test_names_are_bounded_and_of_a_record_without_them_nothing_is_one() -> None:
    store = MemoryStore()
    shelf = Shelf(store)
    shelf.observe(0)
    shelf.settle()
    for number in range(1, 2 + MIN_NAMES):
        shelf.observe(number, name=named(number))
        shelf.settle()
    shelf.observe(1, name=named(1))
    shelf.observe(2, name=named(2))
    shelf.settle()
    assert kept(store, KEY) == [*range(2 + MIN_NAMES), 1]


def test_a_name_is_the_nonce_of_a_prediction_or_a_hash_of_what_a_client_has_made_up() -> None:
    assert observation_name(bytes(range(44))) == bytes(range(4, 12))
    assert len({observation_name(b"order-%d" % number) for number in range(1000)}) == 1000
    assert {len(observation_name(b"order-1")), len(observation_name(b"x" * 64))} == {8}
    assert observation_name(b"") == b""


def test_a_store_of_ones_own_is_read_once() -> None:
    shelf = a_shelf()
    shelf.get()
    shelf.settle()
    shelf.now_ns += s(3600)
    shelf.get()
    assert not shelf.asked


def test_memory_is_bounded_and_what_had_to_go_is_read_again() -> None:
    shelf = a_shelf(contexts_memory=3)
    for number in range(10):
        shelf.observe(number, str(number))
    shelf.settle()
    assert shelf.contexts.count_contexts("digits") <= 3
    assert shelf.get("0") is None
    shelf.settle()
    assert shelf.get("0") == Seen([0])
    assert shelf.contexts.count_contexts("digits") <= 3
    assert shelf.contexts.count_contexts("other") == 0


def test_what_is_being_saved_stays_in_memory() -> None:
    shelf = a_shelf(contexts_memory=1)
    for number in range(5):
        shelf.observe(number, str(number))
    assert shelf.contexts.unsaved == 5
    shelf.settle()
    assert sorted(shelf.saved) == [0, 1, 2, 3, 4]


def test_an_application_has_so_many_contexts_in_the_store_and_the_oldest_go() -> None:
    shelf = Shelf(MemoryStore(), running=a_running(contexts=32))
    for number in range(100):
        shelf.observe(number, str(number))
        shelf.settle()
    records = shelf.store.list_family("contexts/digits")
    assert 32 <= len(records) <= 34
    assert {record.key for record in records} >= {f"{KEY}{number}" for number in range(68, 100)}


def test_a_context_that_was_deleted_to_make_room_comes_back_with_what_is_in_memory() -> None:
    shelf = a_shelf()
    shelf.observe(1)
    shelf.settle()
    shelf.store.trim_family("contexts/digits", 0)
    shelf.observe(2)
    shelf.settle()
    assert kept(shelf.store, KEY) == [1, 2]


def test_a_withdrawn_application_is_forgotten_and_feedback_on_it_is_told() -> None:
    shelf = a_shelf()
    shelf.observe(1, "ann")
    shelf.observe(2, "bob")
    other = a_running("digits2")
    shelf.contexts.observe(0, other, "", other.policy.select(None, None), {"digits-a": 1.0}, "other")  # type: ignore[arg-type]
    shelf.contexts.remove_application("digits", erase=True)
    assert sorted(shelf.contexts.failed) == [(one, "application 'digits' was withdrawn") for one in (1, 2)]
    shelf.settle()
    assert shelf.saved == ["other"]
    assert shelf.contexts.count_contexts("digits") == 0
    assert shelf.store.list_family("contexts/digits") == []
    assert len(shelf.store.list_family("contexts/digits2")) == 1


def test_erasing_deletes_what_was_being_written() -> None:
    shelf = a_shelf()
    shelf.get()
    shelf.settle()
    shelf.observe(1)
    shelf.contexts.remove_application("digits", erase=True)
    shelf.tick()
    assert [type(message) for message in shelf.asked] == [WriteRecords, TrimFamily]
    shelf.settle()
    assert shelf.store.list_family("contexts/digits") == []


def test_a_new_declaration_carries_over_what_was_learned_in_memory_and_in_the_store() -> None:
    shelf = a_shelf()
    shelf.observe(1)
    shelf.settle()
    shelf.running = a_running(revision=2)
    assert shelf.get() == Seen([1])
    fresh = Shelf(shelf.store, "selector/0#2", running=a_running(revision=3))
    fresh.get()
    fresh.settle()
    assert fresh.get() == Seen([1])


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\x01\x80\xa1x", b"\x90"])
def test_a_record_that_cannot_be_read_is_as_good_as_none_and_replaced(data: bytes) -> None:
    from horologe_selector.store import RecordChange

    shelf = a_shelf()
    shelf.store.write_changes([RecordChange(KEY, 0, data)])
    shelf.observe(1)
    shelf.settle()
    assert shelf.get() == Seen([1])
    assert kept(shelf.store, KEY) == [1]
