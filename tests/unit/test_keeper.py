"""The keeper: everything that waits is one group; a store that is away is said once, and never waited for twice."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

import pytest

from horologe_common.clock import s
from horologe_selector.store import (
    FamilyListed,
    ListFamily,
    ReadRecords,
    Record,
    RecordChange,
    RecordsRead,
    RecordsWritten,
    StoreUnavailable,
    TrimFamily,
    WriteRecords,
)
from horologe_selector.stores.memory import MemoryStore
from horologe_selector.stores.store_writer import StoreWriter, execute_messages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WAIT_S = 10


def a_write(key: str, version: int = 0, data: bytes | None = b"1") -> WriteRecords:
    return WriteRecords((RecordChange(key, version, data),))


class Slow(MemoryStore):
    """Begins to write when it is let; `away` says why not."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Semaphore(0)
        self.let = threading.Semaphore(0)
        self.groups: list[int] = []
        self.away = ""
        self.closed = False

    def write_changes(self, changes: Sequence[RecordChange]) -> list[int | Record]:
        self.groups.append(len(changes))
        self.begun.release()
        assert self.let.acquire(timeout=WAIT_S)
        if self.away == "bug":
            raise RuntimeError("a bug")
        if self.away:
            raise StoreUnavailable(self.away)
        return super().write_changes(changes)

    def close(self) -> None:
        self.closed = True


class House:
    def __init__(self, limit: int = 100, pause_ns: int = 0) -> None:
        self.store = Slow()
        self.replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.keeper = StoreWriter(self.store, self.replies.put, limit, pause_ns)
        self.keeper.start()

    def reply(self) -> Any:
        return self.replies.get(timeout=WAIT_S)

    def write(self, key: str) -> RecordsWritten:
        self.keeper.deliver(a_write(key))
        self.store.let.release()
        reply = self.reply()
        assert isinstance(reply, RecordsWritten)
        return reply


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    for _ in range(10):
        house.store.let.release()
    assert house.keeper.stop(WAIT_S)
    assert house.store.closed


def test_a_group_is_written_then_read_but_not_past_a_trim_or_a_list() -> None:
    store = MemoryStore()
    replies = execute_messages(
        store,
        [
            ReadRecords(("f\na", "f\nb")),
            a_write("f\na"),
            a_write("f\nb"),
            ListFamily("f"),
            a_write("f\nc"),
            TrimFamily("f", 0),
            ReadRecords(("f\nc",)),
            a_write("f\nd"),
        ],
    )
    kinds = [type(reply) for reply in replies]
    assert kinds == [
        RecordsWritten,
        RecordsWritten,
        RecordsRead,
        FamilyListed,
        RecordsWritten,
        RecordsWritten,
        RecordsRead,
    ]
    assert [record.key for record in replies[3].records or ()] == ["f\na", "f\nb"]  # type: ignore[union-attr]
    assert replies[6] == RecordsRead(("f\nc",), [None])
    assert [record.key for record in store.list_family("f")] == ["f\nd"]


def test_what_waits_while_a_group_is_written_is_the_next_group(house: House) -> None:
    house.keeper.deliver(a_write("f\n0"))
    assert house.store.begun.acquire(timeout=WAIT_S)
    for number in range(1, 6):
        house.keeper.deliver(a_write(f"f\n{number}"))
    house.keeper.deliver(ReadRecords(("f\n3",)))
    house.store.let.release()
    house.store.let.release()
    replies = [house.reply() for _ in range(7)]
    assert house.store.groups == [1, 5]
    assert [reply.changes[0].key for reply in replies[:6]] == [f"f\n{number}" for number in range(6)]
    assert replies[6].records[0].data == b"1"


def test_a_store_that_is_away_is_told_of_once_and_again_when_it_is_back(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    house.store.away = "unplugged"
    for _ in range(3):
        reply = house.write("f\na")
        assert (reply.results, reply.reason) == (None, "unplugged")
    assert caplog.text.count("the state store is unavailable") == 1
    house.store.away = ""
    assert house.write("f\na").results == [1]
    assert caplog.text.count("the state store is available again") == 1


def test_it_is_left_alone_for_a_pause_and_whoever_asks_is_told_at_once() -> None:
    house = House(pause_ns=s(3600))
    house.store.away = "unplugged"
    house.write("f\na")
    for message in (a_write("f\nb"), ReadRecords(("f\na",)), ListFamily("f"), TrimFamily("f", 0)):
        house.keeper.deliver(message)
    assert [house.reply() for _ in range(3)] == [
        RecordsWritten(a_write("f\nb").changes, None, "unplugged"),
        RecordsRead(("f\na",), None),
        FamilyListed("f", None),
    ]
    assert house.store.groups == [1]
    assert house.keeper.stop(WAIT_S)


def test_a_bug_in_a_store_is_logged_and_answered_and_not_the_end(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.store.away = "bug"
    assert house.write("f\na").reason == "a bug"
    assert "state store fault" in caplog.text
    house.store.away = ""
    assert house.write("f\na").results == [1]


def test_beyond_its_bound_it_refuses() -> None:
    house = House(limit=2)
    house.keeper.deliver(a_write("f\n0"))
    assert house.store.begun.acquire(timeout=WAIT_S)
    for number in range(1, 4):
        house.keeper.deliver(a_write(f"f\n{number}"))
    reply = house.reply()
    assert (reply.changes[0].key, reply.reason) == ("f\n3", "2 messages wait for the state store")
    for _ in range(3):
        house.store.let.release()
    assert [house.reply().results for _ in range(3)] == [[1], [2], [3]]
    assert house.keeper.stop(WAIT_S)


def test_at_the_end_it_does_what_waits_and_posts_nothing_any_more() -> None:
    house = House()
    house.keeper.deliver(a_write("f\n0"))
    assert house.store.begun.acquire(timeout=WAIT_S)
    house.keeper.deliver(a_write("f\n1"))
    assert not house.keeper.stop(0)
    house.store.let.release()
    house.store.let.release()
    assert house.keeper.stop(WAIT_S)
    assert house.replies.empty()
    assert len(house.store.list_family("f")) == 2
    assert house.store.closed
