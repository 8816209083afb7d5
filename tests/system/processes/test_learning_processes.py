"""Learning processes that are killed or lose their store: acknowledged observations survive and count once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from harness.redis_server import RedisServer, a_redis
from horologe_common.clock import ms
from horologe_selector.settings import SelectorSettings
from horologe_selector.store import TIMES, StoreTimes
from horologe_selector.stores import open_store
from selector.contexts_harness import stored_losses

if TYPE_CHECKING:
    from collections.abc import Sequence

LEARNER = Path(__file__).parents[2] / "selector" / "contexts_process.py"
CONTEXTS = 5

server = pytest.fixture(name="server")(a_redis)


def a_learner(
    settings: SelectorSettings, number: int, first: int, count: int, times: StoreTimes = TIMES
) -> subprocess.Popen[bytes]:
    texts = [msgspec.json.encode(options).decode() for options in (settings, times)]
    arguments: list[Any] = [sys.executable, LEARNER, *texts, f"selector/{number}#0", first, count, CONTEXTS]
    return subprocess.Popen([*map(str, arguments)], stdout=subprocess.PIPE)


def numbers(process: subprocess.Popen[bytes], count: int = 1 << 60) -> list[int]:
    """Return the next `count` numbers that the process has acknowledged, or all until it ends."""
    assert process.stdout
    acknowledged: list[int] = []
    while len(acknowledged) < count and (line := process.stdout.readline()):
        acknowledged.append(int(line))
    return acknowledged


def in_store(settings: SelectorSettings) -> list[int]:
    """Return the stored observations of all contexts."""
    store = open_store(settings)
    found = [int(loss) for context in range(CONTEXTS) for loss in stored_losses(store, f"contexts/digits\n{context}")]
    store.close()
    return found


def assert_each_once(stored: Sequence[int], wanted: Sequence[int]) -> None:
    assert len(stored) == len(set(stored))
    assert sorted(stored) == sorted(wanted)


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    settings = SelectorSettings(store="sqlite", state=str(tmp_path), unsaved=40)
    with a_learner(settings, 0, 0, 100_000) as process:
        acknowledged = numbers(process, 300)
        process.kill()
        acknowledged += numbers(process)
    found = in_store(settings)
    assert len(acknowledged) >= 300
    assert len(found) == len(set(found))
    assert set(acknowledged) <= set(found)


def test_two_selectors_on_one_redis_lose_no_update(server: RedisServer) -> None:
    settings = SelectorSettings(store="redis", redis=server.url, unsaved=40)
    times = StoreTimes(refresh_ns=ms(5))
    with a_learner(settings, 0, 0, 250, times) as first, a_learner(settings, 1, 1000, 250, times) as second:
        acknowledged = numbers(first), numbers(second)
    assert [sorted(found) for found in acknowledged] == [[*range(250)], [*range(1000, 1250)]]
    assert_each_once(in_store(settings), [*range(250), *range(1000, 1250)])


def test_redis_may_be_killed_and_restarted(server: RedisServer) -> None:
    settings = SelectorSettings(store="redis", redis=server.url, unsaved=40)
    times = StoreTimes(retry_ns=ms(20))
    with a_learner(settings, 0, 0, 300, times) as first, a_learner(settings, 1, 1000, 300, times) as second:
        for _ in range(3):
            numbers(first, 60)
            server.stop()
            server.start()
        numbers(first)
        numbers(second)
    assert (first.returncode, second.returncode) == (0, 0)
    assert_each_once(in_store(settings), [*range(300), *range(1000, 1300)])
