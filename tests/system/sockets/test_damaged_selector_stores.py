"""Damaged stores of the selector: SQLite files damaged in ten ways, rows and keys of wrong types, a full disk."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from harness.damaged_files import make_folder
from harness.redis_server import RedisServer, a_redis
from horologe_common.service.settings import SettingsError
from horologe_common.status import Status
from horologe_selector.settings import SelectorSettings
from horologe_selector.store import DamagedRecord, RecordChange, StoreUnavailable
from horologe_selector.stores import open_store
from horologe_selector.stores.sqlite import open_sqlite
from horologe_selector.stores.store_writer import StoreWriter
from selector.learning_selector import OK, LearningSelector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from horologe_selector.store import StateStore

server = pytest.fixture(scope="module", name="server")(a_redis)
FILE = "selector-0.sqlite"


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Any]:
    store = open_sqlite(SelectorSettings(store="sqlite", state=str(folder)), timeout_ns=0)
    yield store
    store.close()


def declare_two(store: StateStore) -> None:
    harness = LearningSelector(store)
    for name in ("digits", "letters"):
        assert harness.declare_application(name, ("a", "b"), policy="exp4").status == OK


def overwrite(path: Path, at: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)


def execute(path: Path, *queries: str) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        for query in queries:
            db.execute(query)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "a few bytes": lambda path: os.truncate(path, 50),
    "random bytes": lambda path: path.write_bytes(bytes((7 * at * at + 3) % 251 for at in range(8192))),
    "header": lambda path: overwrite(path, 0, b"SQLite format 4\0"),
    "disk image": lambda path: overwrite(path, 1024, b"\xff" * 4096),
    "wrong version": lambda path: execute(path, "PRAGMA user_version=99"),
    "another program": lambda path: execute(path, "PRAGMA application_id=1"),
    "without the table": lambda path: execute(path, "DROP TABLE records"),
    "another table": lambda path: execute(path, "DROP TABLE records", "CREATE TABLE records (a)"),
    "JSON": lambda path: path.write_bytes(b'{"records": []}' * 100),
    "folder": make_folder,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_selector_starts_with_a_damaged_file_and_serves(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        declare_two(store)
    DAMAGE[damage](tmp_path / FILE)
    with opened(tmp_path) as store:
        harness = LearningSelector(store)
        assert harness.declare_application("digits", ("a", "b"), policy="exp4").status == OK
        assert harness.query("digits").status == OK
    assert caplog.text.count("the state store is damaged") == 1
    assert len([*tmp_path.glob(f"{FILE}.damaged-*")]) >= 1
    caplog.clear()
    with opened(tmp_path) as store:
        assert LearningSelector(store).query("digits").status == OK
    assert "damaged" not in caplog.text


def test_an_empty_file_is_a_new_store(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"")
    with opened(tmp_path) as store:
        declare_two(store)


@pytest.mark.parametrize(
    "change",
    [
        "version = 'abc'", "version = -1", "version = 1.5e300", "version = 9223372036854775807", "version = x'00'",
        "data = 'text'", "data = 7", "data = 1.5", "data = x''", "data = zeroblob(3000000)",
        "key = x'61ff'", "key = 'applications' || char(10) || x'ff'", "key = 'contexts/digits'",
    ],
)  # fmt: skip
def test_a_row_of_another_type_does_not_hide_the_others(tmp_path: Path, change: str) -> None:
    with opened(tmp_path) as store:
        declare_two(store)
    execute(tmp_path / FILE, f"UPDATE records SET {change} WHERE key = 'applications' || char(10) || 'digits'")
    with opened(tmp_path) as store:
        harness = LearningSelector(store)
        assert harness.query("letters").status == OK
        wanted = {"v": OK, "d": Status.REFUSED, "k": Status.UNKNOWN_MODEL}[change[0]]
        assert harness.query("digits").status == wanted
        assert harness.declare_application("digits", ("a",), policy="static").status == OK
        assert harness.query("digits").status == OK


def test_a_full_disk_refuses_changes_and_serves(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        declare_two(store)
        store._db.execute(f"PRAGMA max_page_count={store._db.execute('PRAGMA page_count').fetchone()[0]}")
        harness = LearningSelector(store)
        big = {f"model-{number}": 1.0 for number in range(60)}
        reply = harness.declare_application("digits", tuple(big), policy="static", settings={"weights": big})
        assert reply.status == Status.REFUSED
        assert "full" in reply.reason
        assert harness.query("letters").status == OK


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write every file")
def test_a_file_without_permission_is_an_error_that_names_it(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        declare_two(store)
    (tmp_path / FILE).chmod(0)
    with pytest.raises(SettingsError, match=FILE), opened(tmp_path):
        pass
    (tmp_path / FILE).chmod(0o600)
    with opened(tmp_path) as store:
        assert LearningSelector(store).query("digits").status == OK


def test_a_folder_that_is_a_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(SettingsError, match=FILE), opened(tmp_path / "state"):
        pass


REDIS_DAMAGE: dict[str, list[tuple[Any, ...]]] = {
    "data evicted": [("HDEL", "horologe:applications", "digits")],
    "data of another type": [("HSET", "horologe:applications", "digits", "7")],
    "endless version": [("ZADD", "horologe:applications:versions", "inf", "digits")],
    "negative version": [("ZADD", "horologe:applications:versions", "-5", "digits")],
    "fractional version": [("ZADD", "horologe:applications:versions", "0.5", "digits")],
    "version evicted": [("ZREM", "horologe:applications:versions", "digits")],
    "all versions evicted": [("DEL", "horologe:applications:versions")],
    "further name": [("HSET", "horologe:applications", b"\xff\xfe", b"x")],
    "further version": [("ZADD", "horologe:applications:versions", "7", b"\xff\xfe")],
    "last version": [("SET", "horologe:version", "abc")],
}


@pytest.mark.parametrize("damage", REDIS_DAMAGE)
def test_damage_in_redis_does_not_hide_the_other_applications(server: RedisServer, damage: str) -> None:
    import redis

    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        store = open_store(SelectorSettings(store="redis", redis=server.url))
        declare_two(store)
        for command in REDIS_DAMAGE[damage]:
            client.execute_command(*command)
        harness = LearningSelector(store)
        assert harness.query("letters").status == OK
        lost = damage in ("data evicted", "data of another type")
        assert harness.query("digits").status == (Status.REFUSED if lost else OK)
        client.flushall()
        store.close()


def test_keys_of_another_type_in_redis_make_the_store_unavailable(server: RedisServer) -> None:
    import redis

    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        client.set("horologe:applications", "text")
        store = open_store(SelectorSettings(store="redis", redis=server.url))
        with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
            store.list_family("applications")
        with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
            store.write_changes([RecordChange("applications\ndigits", 0, b"1")])
        client.flushall()
        store.close()


def test_a_damaged_record_is_named_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as store:
        writer = StoreWriter(store, lambda reply: None, 10, 0)
        writer.deliver(DamagedRecord("applications\ndigits", "record: truncated"))
    (record,) = caplog.records
    assert record.getMessage() == "stored record damaged"
    assert record.__dict__["fields"]["key"] == "applications\ndigits"
