"""Contract of every state store, with a real Redis server, and failures of SQLite's file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.redis_server import RedisServer, a_redis
from horologe_common.service.settings import SettingsError
from horologe_selector.settings import SelectorSettings
from horologe_selector.store import Record, RecordChange, StoreUnavailable
from horologe_selector.stores import STORES, open_store
from selector.contexts_harness import ContextsHarness, observation_name_of, stored_losses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from horologe_selector.store import StateStore

    Open = Callable[[], StateStore]

server = pytest.fixture(scope="module", name="server")(a_redis)


@pytest.fixture(params=STORES)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> SelectorSettings:
    url = ""
    if request.param == "redis":
        redis: RedisServer = request.getfixturevalue("server")
        url = f"{redis.url}?db={abs(hash(str(tmp_path))) % 16}"
    return SelectorSettings(store=request.param, state=str(tmp_path), redis=url)


@pytest.fixture
def store(settings: SelectorSettings) -> Iterator[StateStore]:
    opened = open_store(settings)
    for family in ("f", "g", "all", "contexts/digits"):
        opened.trim_family(family, 0)
    yield opened
    opened.close()


def change_record(store: StateStore, key: str, version: int, data: bytes | None) -> int | Record:
    (result,) = store.write_changes([RecordChange(key, version, data)])
    return result


def create_record(store: StateStore, key: str, data: bytes = b"1") -> int:
    version = change_record(store, key, 0, data)
    assert isinstance(version, int)
    return version


def test_records_are_read_in_the_order_of_the_keys_and_missing_ones_are_none(store: StateStore) -> None:
    first, second = create_record(store, "f\none", b"1"), create_record(store, "f\ntwo \u2665", bytes(range(256)))
    assert 0 < first < second
    assert store.read_records(["f\ntwo \u2665", "f\nthree", "f\none", "g\none"]) == [
        Record("f\ntwo \u2665", second, bytes(range(256))),
        None,
        Record("f\none", first, b"1"),
        None,
    ]
    assert store.read_records([]) == []
    assert store.write_changes([]) == []


def test_only_the_last_version_can_be_replaced(store: StateStore) -> None:
    first = create_record(store, "f\nk", b"1")
    assert change_record(store, "f\nk", 0, b"x") == Record("f\nk", first, b"1")
    assert change_record(store, "f\nk", first + 1, b"x") == Record("f\nk", first, b"1")
    second = change_record(store, "f\nk", first, b"2")
    assert isinstance(second, int)
    assert second > first
    assert change_record(store, "f\nk", first, b"x") == Record("f\nk", second, b"2")
    assert store.read_records(["f\nk"]) == [Record("f\nk", second, b"2")]


def test_each_change_of_a_group_succeeds_or_fails_on_its_own(store: StateStore) -> None:
    there = create_record(store, "f\nthere", b"old")
    results = store.write_changes(
        [
            RecordChange("f\nnew", 0, b"1"),
            RecordChange("f\nthere", 0, b"no"),
            RecordChange("f\nthere", there, b"yes"),
            RecordChange("g\ngone", 5, b"no"),
            RecordChange("g\nfresh", 0, b""),
        ]
    )
    assert [isinstance(result, int) for result in results] == [True, False, True, False, True]
    assert results[3] == Record("g\ngone", 0, b"")
    read = store.read_records(["f\nnew", "f\nthere", "g\ngone", "g\nfresh"])
    assert [record and record.data for record in read] == [b"1", b"yes", None, b""]


def test_two_changes_of_one_key_in_a_group_are_applied_in_order(store: StateStore) -> None:
    first, second = store.write_changes([RecordChange("f\nk", 0, b"1"), RecordChange("f\nk", 0, b"2")])
    assert isinstance(first, int)
    assert isinstance(second, Record)
    assert second.version == first


def test_an_observation_sent_again_after_a_restart_counts_once(store: StateStore) -> None:
    for incarnation in range(3):
        harness = ContextsHarness(store, f"selector/0#{incarnation}")
        for number in range(incarnation + 1):
            harness.observe(number, name=observation_name_of(number))
        harness.run_until_idle()
        assert sorted(harness.saved) == [*range(incarnation + 1)]
    assert stored_losses(store, "contexts/digits\n") == [0, 1, 2]


def test_a_deleted_key_never_gets_an_old_version_again(store: StateStore) -> None:
    first = create_record(store, "f\nk")
    assert change_record(store, "f\nk", first + 1, None) == Record("f\nk", first, b"1")
    assert change_record(store, "f\nk", first, None) == 0
    assert store.read_records(["f\nk"]) == [None]
    again = create_record(store, "f\nk")
    assert again > first
    assert isinstance(change_record(store, "f\nk", first, b"stale"), Record)


def test_a_family_contains_the_keys_with_its_name_before_the_newline(store: StateStore) -> None:
    for key in ("f\na", "f\n", "f\nb\nc", "fa\na", "f/\na", "e\nf"):
        create_record(store, key)
    assert sorted(record.key for record in store.list_family("f")) == ["f\n", "f\na", "f\nb\nc"]
    assert store.list_family("none") == []
    for family in ("fa", "f/", "e"):
        assert store.trim_family(family, 0) == 1


def test_trimming_keeps_the_records_written_last(store: StateStore) -> None:
    versions = {f"f\n{number}": create_record(store, f"f\n{number}") for number in range(20)}
    create_record(store, "g\nother")
    assert isinstance(change_record(store, "f\n3", versions["f\n3"], b"again"), int)
    assert store.trim_family("f", 5) == 15
    assert sorted(record.key for record in store.list_family("f")) == ["f\n16", "f\n17", "f\n18", "f\n19", "f\n3"]
    assert store.trim_family("f", 5) == 0
    assert store.trim_family("none", 5) == 0
    assert len(store.list_family("g")) == 1
    assert store.trim_family("f", 0) == 5
    assert store.read_records(["f\n3"]) == [None]


def test_a_large_group_is_written_and_read(store: StateStore) -> None:
    changes = [RecordChange(f"all\n{number}", 0, b"%d" % number) for number in range(2500)]
    versions = store.write_changes(changes)
    assert all(isinstance(version, int) for version in versions)
    assert len({*map(str, versions)}) == len(changes)
    records = store.read_records([change.key for change in changes])
    assert [record and record.data for record in records] == [change.data for change in changes]
    assert store.trim_family("all", 3) == 2497


@pytest.mark.parametrize("settings", ["sqlite", "redis"], indirect=True)
def test_records_survive_closing_and_later_versions_are_greater(settings: SelectorSettings) -> None:
    store = open_store(settings)
    first = create_record(store, "f\nkept", b"1")
    store.close()
    store = open_store(settings)
    assert store.read_records(["f\nkept"]) == [Record("f\nkept", first, b"1")]
    assert create_record(store, "f\nnext") > first
    store.trim_family("f", 0)
    store.close()


def sqlite_settings(folder: Path) -> SelectorSettings:
    return SelectorSettings(store="sqlite", state=str(folder))


def read_aside(folder: Path) -> bytes:
    """Return the content of the only file that was kept aside."""
    (aside,) = folder.glob("selector-0.sqlite.damaged-????????")
    return aside.read_bytes()


def test_the_readable_records_of_a_damaged_file_are_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(sqlite_settings(tmp_path))
    keys = [f"f\n{number:04}" for number in range(1000)]
    store.write_changes([RecordChange(key, 0, key.encode() * 20) for key in keys])
    before = {record.key: record for record in store.list_family("f")}
    store.close()
    path = tmp_path / "selector-0.sqlite"
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 - len(content) // 2 % 1024
    content[middle : middle + 8192] = b"\xff" * 8192
    path.write_bytes(content)
    store = open_store(sqlite_settings(tmp_path))
    after = {record.key: record for record in store.list_family("f")}
    assert 500 < len(after) < 1000
    assert all(before[key] == record for key, record in after.items())
    assert create_record(store, "f\nnew") > max(record.version for record in after.values())
    store.close()
    assert "the state store is damaged" in caplog.text
    assert len(read_aside(tmp_path)) == len(content)


def test_a_file_that_another_selector_has_open_is_an_error(tmp_path: Path) -> None:
    store = open_store(sqlite_settings(tmp_path))
    with pytest.raises(SettingsError, match="locked: another selector uses it"):
        open_store(sqlite_settings(tmp_path))
    store.close()
    open_store(sqlite_settings(tmp_path)).close()


def test_a_failed_transaction_is_reported_and_rolled_back(tmp_path: Path) -> None:
    store = open_store(sqlite_settings(tmp_path))
    store._db.execute("PRAGMA max_page_count=10")  # type: ignore[attr-defined]
    with pytest.raises(StoreUnavailable, match="full"):
        store.write_changes([RecordChange(f"f\n{number}", 0, bytes(4000)) for number in range(100)])
    assert store.list_family("f") == []
    create_record(store, "f\nsmall")
    store.close()


@pytest.mark.parametrize("other", [False, True])
def test_a_deleted_or_replaced_sqlite_file_makes_the_store_unavailable(tmp_path: Path, other: bool) -> None:
    settings = sqlite_settings(tmp_path)
    store = open_store(settings)
    create_record(store, "contexts/a\nann")
    (path,) = tmp_path.rglob("*.sqlite")
    path.unlink()
    if other:
        path.write_bytes(b"")
    with pytest.raises(StoreUnavailable, match=r"selector-0\.sqlite"):
        create_record(store, "contexts/a\nbob")
    store.close()


def test_errors_name_unknown_stores_and_invalid_urls() -> None:
    with pytest.raises(SettingsError, match=r"selector\.store: got 'tape', wanted one of memory, sqlite, redis"):
        open_store(SelectorSettings(store="tape"))
    pytest.importorskip("redis")
    with pytest.raises(SettingsError, match=r"selector\.redis: got 'http://x'"):
        open_store(SelectorSettings(store="redis", redis="http://x"))


def test_an_unreachable_redis_makes_the_store_unavailable(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    store = open_store(SelectorSettings(store="redis", redis=f"unix://{tmp_path / 'none.sock'}"))
    for request in (
        lambda: store.read_records(["f\nk"]),
        lambda: create_record(store, "f\nk"),
        lambda: store.list_family("f"),
    ):
        with pytest.raises(StoreUnavailable, match=r"none\.sock"):
            request()
    with pytest.raises(StoreUnavailable):
        store.trim_family("f", 1)
    store.close()


def test_a_warning_is_logged_once_if_redis_is_not_durable(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    import redis

    with redis.Redis.from_url(server.url) as client:
        client.config_set("appendfsync", "everysec")
        for _ in range(2):
            store = open_store(SelectorSettings(store="redis", redis=server.url))
            change_record(store, "f\nk", 1, b"")
            change_record(store, "f\nk", 1, b"")
            store.close()
            assert caplog.text.count("before it is durable") == 1
            client.config_set("appendfsync", "always")
