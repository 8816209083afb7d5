"""Work that another thread gives to the loop: it runs between turns, on the loop's thread."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from harness.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


def test_work_of_another_thread_runs_on_the_thread_of_the_loop(start: Any, tmp_path: Path) -> None:
    running = start("controller", bind=(f"ipc://{tmp_path}/c",))
    threads: list[threading.Thread] = []
    until(lambda: running.reactor.is_running)
    running.reactor.call_between_turns(lambda: threads.append(threading.current_thread()), 5)
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()


def test_errors_of_the_work_reach_the_caller_and_a_stalled_loop_is_a_timeout(start: Any, tmp_path: Path) -> None:
    running = start("controller", bind=(f"ipc://{tmp_path}/c",))
    until(lambda: running.reactor.is_running)
    with pytest.raises(ZeroDivisionError):
        running.reactor.call_between_turns(lambda: 1 // 0, 5)
    with pytest.raises(TimeoutError):
        running.reactor.call_between_turns(lambda: time.sleep(0.3), 0.01)


def test_nothing_runs_in_a_loop_that_has_ended(start: Any, tmp_path: Path) -> None:
    running = start("controller", bind=(f"ipc://{tmp_path}/c",))
    until(lambda: running.reactor.is_running)
    running.stop()
    done: list[int] = []
    running.reactor.call_between_turns(lambda: done.append(1), 5)
    assert not done
