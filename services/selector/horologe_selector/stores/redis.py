"""A state store in Redis, which several selectors share.

A family is a hash of its records, and a sorted set of their versions. A group of changes is one script, so that
comparing and setting cannot be parted. What is acknowledged is as durable as Redis makes it: with `appendonly yes` and
`appendfsync always`, Redis syncs its log before it answers.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from horologe_common.service.log import logger
from horologe_common.service.settings import SettingsError
from horologe_selector.store import Away, Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe_selector.settings import SelectorSettings
    from horologe_selector.store import Change

PREFIX = "horologe:"
VERSION = PREFIX + "version"
CHANGES_A_SCRIPT = 1000
"""Redis does nothing else meanwhile: 1,000 changes take it about 5 ms."""
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
"""ARGV: for each change family, name, version, `set` or `del`, data. Versions are microseconds of Redis' clock, pushed
on where that would give one twice; they are exact, being less than 2^53."""
TRIM = """
local surplus = redis.call('ZCARD', KEYS[2]) - ARGV[1]
if surplus <= 0 then return 0 end
local oldest = redis.call('ZPOPMIN', KEYS[2], surplus)
for at = 1, #oldest, 2 do redis.call('HDEL', KEYS[1], oldest[at]) end
return surplus
"""

log = logger("selector")


def open_redis(settings: SelectorSettings) -> Redis:
    """Raises `SettingsError` for a URL that is none, and where the package `redis` is not installed."""
    try:
        return Redis(settings.redis, settings.store_timeout_ns)
    except ImportError as error:
        raise SettingsError("setting selector.store: redis needs a package: pip install 'horologe[redis]'") from error
    except ValueError as error:
        raise SettingsError(f"setting selector.redis: got {settings.redis!r}: {error}") from error


class Redis:
    """Connects when it is first asked, and again after every failure. Raises `ValueError` for a URL that is none."""

    shared = True

    def __init__(self, url: str, timeout_ns: int) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        seconds = timeout_ns / 1e9
        self.name = url.rpartition("@")[2]
        self._failures = (redis.exceptions.RedisError, OSError)
        # One try each: a script that ran, but whose answer was lost, must not run again unseen.
        self._redis: Any = redis.Redis.from_url(
            url, socket_timeout=seconds, socket_connect_timeout=seconds, retry=Retry(NoBackoff(), 0)
        )
        self._write = self._redis.register_script(WRITE)
        self._trim = self._redis.register_script(TRIM)
        self._looked = False

    def read(self, keys: Sequence[str]) -> list[Record | None]:
        """See `StateStore`, as for all others."""
        families: dict[str, list[str]] = {}
        for key in keys:
            family, _, name = key.partition("\n")
            families.setdefault(family, []).append(name)
        with self._away(), self._redis.pipeline(transaction=True) as pipeline:
            for family, names in families.items():
                pipeline.hmget(PREFIX + family, names)
                pipeline.zmscore(f"{PREFIX}{family}:versions", names)
            answers = iter(pipeline.execute())
        found: dict[str, Record] = {}
        for family, names in families.items():
            for name, data, version in zip(names, next(answers), next(answers), strict=True):
                if data is not None and version is not None:
                    found[f"{family}\n{name}"] = Record(f"{family}\n{name}", int(version), data)
        return [found.get(key) for key in keys]

    def write(self, changes: Sequence[Change]) -> list[int | Record]:
        results: list[int | Record] = []
        for begin in range(0, len(changes), CHANGES_A_SCRIPT):
            results += self._script(changes[begin : begin + CHANGES_A_SCRIPT])
        return results

    def _script(self, changes: Sequence[Change]) -> list[int | Record]:
        arguments: list[str | int | bytes] = []
        for change in changes:
            family, _, name = change.key.partition("\n")
            kind = "set" if change.data is not None else "del"
            arguments += (PREFIX + family, name, change.version, kind, change.data or b"")
        with self._away():
            if not self._looked:
                self._look()
            answers = self._write(keys=[VERSION], args=arguments)
        return [
            Record(change.key, int(answer[0]), answer[1]) if isinstance(answer, list) else int(answer)
            for change, answer in zip(changes, answers, strict=True)
        ]

    def family(self, name: str) -> list[Record]:
        with self._away(), self._redis.pipeline(transaction=True) as pipeline:
            pipeline.hgetall(PREFIX + name)
            pipeline.zrange(f"{PREFIX}{name}:versions", 0, -1, withscores=True)
            records, versions = pipeline.execute()
        return [Record(f"{name}\n{one.decode()}", int(version), records[one]) for one, version in versions]

    def trim(self, name: str, limit: int) -> int:
        with self._away():
            return int(self._trim(keys=[PREFIX + name, f"{PREFIX}{name}:versions"], args=[limit]))

    def close(self) -> None:
        self._redis.close()

    def _look(self) -> None:
        """Say once if Redis does not keep what it acknowledges. Managed ones may not tell."""
        import redis

        self._looked = True
        with contextlib.suppress(redis.exceptions.ResponseError):
            found = {**self._redis.config_get("appendonly"), **self._redis.config_get("appendfsync")}
            if (found.get("appendonly"), found.get("appendfsync")) != ("yes", "always"):
                log.warning("feedback is acknowledged before it is durable", redis=self.name, **found)

    @contextlib.contextmanager
    def _away(self) -> Iterator[None]:
        try:
            yield
        except self._failures as error:
            raise Away(f"{self.name}: {error or type(error).__name__}") from error
