"""Store writer: queued messages form one group; failures are logged once; retries wait for an interval."""

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


def make_write(key: str, version: int = 0, data: bytes | None = b"1") -> WriteRecords:
    return WriteRecords((RecordChange(key, version, data),))


class BlockingStore(MemoryStore):
    """Store whose writes wait for `may_finish`, and fail with `failure` if it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.started = threading.Semaphore(0)
        self.may_finish = threading.Semaphore(0)
        self.groups: list[int] = []
        self.failure = ""
        self.closed = False

    def write_changes(self, changes: Sequence[RecordChange]) -> list[int | Record]:
        self.groups.append(len(changes))
        self.started.release()
        assert self.may_finish.acquire(timeout=WAIT_S)
        if self.failure == "bug":
            raise RuntimeError("a bug")
        if self.failure:
            raise StoreUnavailable(self.failure)
        return super().write_changes(changes)

    def close(self) -> None:
        self.closed = True


class WriterHarness:
    def __init__(self, limit: int = 100, retry_ns: int = 0) -> None:
        self.store = BlockingStore()
        self.replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.writer = StoreWriter(self.store, self.replies.put, limit, retry_ns)
        self.writer.start()

    def next_reply(self) -> Any:
        return self.replies.get(timeout=WAIT_S)

    def write_key(self, key: str) -> RecordsWritten:
        self.writer.deliver(make_write(key))
        self.store.may_finish.release()
        reply = self.next_reply()
        assert isinstance(reply, RecordsWritten)
        return reply


@pytest.fixture
def harness() -> Iterator[WriterHarness]:
    harness = WriterHarness()
    yield harness
    for _ in range(10):
        harness.store.may_finish.release()
    assert harness.writer.stop(WAIT_S)
    assert harness.store.closed


def test_a_group_writes_before_it_reads_but_keeps_the_place_of_trims_and_lists() -> None:
    store = MemoryStore()
    replies = execute_messages(
        store,
        [
            ReadRecords(("f\na", "f\nb")),
            make_write("f\na"),
            make_write("f\nb"),
            ListFamily("f"),
            make_write("f\nc"),
            TrimFamily("f", 0),
            ReadRecords(("f\nc",)),
            make_write("f\nd"),
        ],
    )
    written, read = [RecordsWritten], [RecordsRead]
    assert [type(reply) for reply in replies] == written * 2 + read + [FamilyListed] + written * 2 + read
    assert [record.key for record in replies[3].records or ()] == ["f\na", "f\nb"]  # type: ignore[union-attr]
    assert replies[6] == RecordsRead(("f\nc",), [None])
    assert [record.key for record in store.list_family("f")] == ["f\nd"]


def test_messages_queued_during_a_write_form_the_next_group(harness: WriterHarness) -> None:
    harness.writer.deliver(make_write("f\n0"))
    assert harness.store.started.acquire(timeout=WAIT_S)
    for number in range(1, 6):
        harness.writer.deliver(make_write(f"f\n{number}"))
    harness.writer.deliver(ReadRecords(("f\n3",)))
    harness.store.may_finish.release()
    harness.store.may_finish.release()
    replies = [harness.next_reply() for _ in range(7)]
    assert harness.store.groups == [1, 5]
    assert [reply.changes[0].key for reply in replies[:6]] == [f"f\n{number}" for number in range(6)]
    assert replies[6].records[0].data == b"1"


@pytest.mark.parametrize(
    ("failure", "reason", "logged", "times"),
    [("unplugged", "unplugged", "the state store is unavailable", 1), ("bug", "a bug", "state store fault", 3)],
)
def test_an_unavailable_store_is_logged_once_and_again_when_it_is_available(
    harness: WriterHarness, caplog: pytest.LogCaptureFixture, failure: str, reason: str, logged: str, times: int
) -> None:
    caplog.set_level("INFO")
    harness.store.failure = failure
    for _ in range(3):
        reply = harness.write_key("f\na")
        assert (reply.results, reply.reason) == (None, reason)
    assert caplog.text.count(logged) == times
    harness.store.failure = ""
    assert harness.write_key("f\na").results == [1]
    assert caplog.text.count("the state store is available again") == 1


def test_messages_during_the_retry_interval_are_answered_at_once() -> None:
    harness = WriterHarness(retry_ns=s(3600))
    harness.store.failure = "unplugged"
    harness.write_key("f\na")
    for message in (make_write("f\nb"), ReadRecords(("f\na",)), ListFamily("f"), TrimFamily("f", 0)):
        harness.writer.deliver(message)
    assert [harness.next_reply() for _ in range(3)] == [
        RecordsWritten(make_write("f\nb").changes, None, "unplugged"),
        RecordsRead(("f\na",), None),
        FamilyListed("f", None),
    ]
    assert harness.store.groups == [1]
    assert harness.writer.stop(WAIT_S)


def test_messages_beyond_the_queue_limit_are_refused() -> None:
    harness = WriterHarness(limit=2)
    harness.writer.deliver(make_write("f\n0"))
    assert harness.store.started.acquire(timeout=WAIT_S)
    for number in range(1, 4):
        harness.writer.deliver(make_write(f"f\n{number}"))
    reply = harness.next_reply()
    assert (reply.changes[0].key, reply.reason) == ("f\n3", "2 messages wait for the state store")
    for _ in range(3):
        harness.store.may_finish.release()
    assert [harness.next_reply().results for _ in range(3)] == [[1], [2], [3]]
    assert harness.writer.stop(WAIT_S)


def test_stop_executes_queued_messages_without_posting_replies() -> None:
    harness = WriterHarness()
    harness.writer.deliver(make_write("f\n0"))
    assert harness.store.started.acquire(timeout=WAIT_S)
    harness.writer.deliver(make_write("f\n1"))
    assert not harness.writer.stop(0)
    harness.store.may_finish.release()
    harness.store.may_finish.release()
    assert harness.writer.stop(WAIT_S)
    assert harness.replies.empty()
    assert len(harness.store.list_family("f")) == 2
    assert harness.store.closed
