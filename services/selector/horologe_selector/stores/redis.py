"""State store in Redis, shared by several selectors.

A family is a hash of records and a sorted set of their versions. A group of changes is one script, so comparing and
setting are atomic. Durability depends on Redis: with `appendonly yes` and `appendfsync always`, Redis syncs its log to
disk before it replies.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from horologe_common.service.log import logger
from horologe_common.service.settings import SettingsError
from horologe_selector.store import STORE_TIMEOUT_NS, Record, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe_selector.settings import SelectorSettings
    from horologe_selector.store import RecordChange

PREFIX = "horologe:"
VERSION = PREFIX + "version"
CHANGES_A_SCRIPT = 1000
"""Limit for one script. Redis serves no other client while a script runs; 1,000 changes take about 5 ms."""
WRITE = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local last = tonumber(redis.call('GET', KEYS[1]) or '0')
local results = {}
for at = 1, #ARGV, 5 do
  local records, versions, name = ARGV[at], ARGV[at] .. ':versions', ARGV[at + 1]
  local there = redis.call('ZSCORE', versions, name) or '0'
  if tonumber(there) ~= tonumber(ARGV[at + 2]) then
    results[#results + 1] = {there, redis.call('HGET', records, name) or ''}
  elseif ARGV[at + 3] == 'del' then
    redis.call('HDEL', records, name)
    redis.call('ZREM', versions, name)
    results[#results + 1] = '0'
  else
    last = math.max(last + 1, now)
    local version = string.format('%.0f', last)
    redis.call('HSET', records, name, ARGV[at + 4])
    redis.call('ZADD', versions, version, name)
    results[#results + 1] = version
  end
end
redis.call('SET', KEYS[1], string.format('%.0f', last))
return results
"""
"""ARGV holds five values for each change: family, name, version, `set` or `del`, data. Versions are microseconds of
Redis' clock, incremented where that would repeat a version. They are below 2^53, so Lua's numbers are exact."""
TRIM = """
local surplus = redis.call('ZCARD', KEYS[2]) - ARGV[1]
if surplus <= 0 then return 0 end
local oldest = redis.call('ZPOPMIN', KEYS[2], surplus)
for at = 1, #oldest, 2 do redis.call('HDEL', KEYS[1], oldest[at]) end
return surplus
"""

log = logger("selector")


def open_redis(settings: SelectorSettings) -> RedisStore:
    """Make a store for `settings.redis`. Raises `SettingsError` for an invalid URL, or without the package `redis`."""
    try:
        return RedisStore(settings.redis, STORE_TIMEOUT_NS)
    except ImportError as error:
        raise SettingsError("setting selector.store: redis needs a package: pip install 'horologe[redis]'") from error
    except ValueError as error:
        raise SettingsError(f"setting selector.redis: got {settings.redis!r}: {error}") from error


def _to_record(key: str, version: bytes | float | None, data: bytes | None) -> Record:
    """Return a record of which Redis may have lost the data or the version, such as by the eviction of a key.

    Without data it is a damaged one. Without a valid version it has 0, with which the next write replaces it.
    """
    number = 0.0 if version is None else float(version)
    return Record(key, int(number) if 0 <= number <= 1 << 53 else 0, data or b"")


class RedisStore:
    """State store that connects on first use, and again after a failure. Raises `ValueError` for an invalid URL."""

    shared = True

    def __init__(self, url: str, timeout_ns: int) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        seconds = timeout_ns / 1e9
        self.name = url.rpartition("@")[2]
        self._failures = (redis.exceptions.RedisError, OSError)
        # No retries: a script whose reply was lost may have run, and must not silently run again.
        self._redis: Any = redis.Redis.from_url(
            url, socket_timeout=seconds, socket_connect_timeout=seconds, retry=Retry(NoBackoff(), 0)
        )
        self._write = self._redis.register_script(WRITE)
        self._trim = self._redis.register_script(TRIM)
        self._durability_checked = False

    def read_records(self, keys: Sequence[str]) -> list[Record | None]:
        families: dict[str, list[str]] = {}
        for key in keys:
            family, _, name = key.partition("\n")
            families.setdefault(family, []).append(name)
        with self._translated_errors(), self._redis.pipeline(transaction=True) as pipeline:
            for family, names in families.items():
                pipeline.hmget(PREFIX + family, names)
                pipeline.zmscore(f"{PREFIX}{family}:versions", names)
            replies = iter(pipeline.execute())
        records: dict[str, Record] = {}
        for family, names in families.items():
            for name, data, version in zip(names, next(replies), next(replies), strict=True):
                if data is not None or version is not None:
                    records[f"{family}\n{name}"] = _to_record(f"{family}\n{name}", version, data)
        return [records.get(key) for key in keys]

    def write_changes(self, changes: Sequence[RecordChange]) -> list[int | Record]:
        results: list[int | Record] = []
        for begin in range(0, len(changes), CHANGES_A_SCRIPT):
            results += self._run_write_script(changes[begin : begin + CHANGES_A_SCRIPT])
        return results

    def _run_write_script(self, changes: Sequence[RecordChange]) -> list[int | Record]:
        arguments: list[str | int | bytes] = []
        for change in changes:
            family, _, name = change.key.partition("\n")
            kind = "set" if change.data is not None else "del"
            arguments += (PREFIX + family, name, change.version, kind, change.data or b"")
        with self._translated_errors():
            if not self._durability_checked:
                self._check_durability()
            replies = self._write(keys=[VERSION], args=arguments)
        return [
            _to_record(change.key, reply[0], reply[1]) if isinstance(reply, list) else int(reply)
            for change, reply in zip(changes, replies, strict=True)
        ]

    def list_family(self, name: str) -> list[Record]:
        with self._translated_errors(), self._redis.pipeline(transaction=True) as pipeline:
            pipeline.hgetall(PREFIX + name)
            pipeline.zrange(f"{PREFIX}{name}:versions", 0, -1, withscores=True)
            records, versions = pipeline.execute()
        numbers = dict(versions)
        unversioned = [key for key in records if key not in numbers]
        return [
            _to_record(f"{name}\n{key.decode(errors='replace')}", numbers.get(key), records.get(key))
            for key in (*unversioned, *numbers)
        ]

    def trim_family(self, name: str, limit: int) -> int:
        with self._translated_errors():
            return int(self._trim(keys=[PREFIX + name, f"{PREFIX}{name}:versions"], args=[limit]))

    def close(self) -> None:
        self._redis.close()

    def _check_durability(self) -> None:
        """Log a warning, once, if Redis replies before a write is durable. Managed services may refuse to say."""
        import redis

        self._durability_checked = True
        with contextlib.suppress(redis.exceptions.ResponseError):
            config = {**self._redis.config_get("appendonly"), **self._redis.config_get("appendfsync")}
            if (config.get("appendonly"), config.get("appendfsync")) != ("yes", "always"):
                log.warning("feedback is acknowledged before it is durable", redis=self.name, **config)

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except self._failures as error:
            raise StoreUnavailable(f"{self.name}: {error or type(error).__name__}") from error
