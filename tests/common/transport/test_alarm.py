"""An alarm calls its callback once, not before its time, with timerfd and without."""

from __future__ import annotations

import asyncio
import os

import pytest

from horologe_common.clock import NEVER_NS, monotonic_ns, ms, us
from horologe_common.transport.alarm import Alarm


@pytest.fixture(params=["timerfd", "call_later"])
def _timer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "call_later":
        monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: object())


@pytest.mark.usefixtures("_timer")
@pytest.mark.parametrize("delay_ns", [0, us(300), ms(5)])
def test_it_calls_once_and_not_before_its_time(delay_ns: int) -> None:
    async def run() -> list[int]:
        calls, called = [], asyncio.Event()

        def callback() -> None:
            calls.append(monotonic_ns())
            called.set()

        alarm = Alarm(asyncio.get_running_loop(), callback)
        due_ns = monotonic_ns() + delay_ns
        alarm.set(due_ns)
        await called.wait()
        await asyncio.sleep(0.01)
        assert alarm.at_ns == NEVER_NS
        alarm.close()
        return [at_ns - due_ns for at_ns in calls]

    (late_ns,) = asyncio.run(run())
    assert late_ns >= 0


@pytest.mark.usefixtures("_timer")
def test_the_time_set_last_counts_and_none_after_close() -> None:
    async def run() -> list[int]:
        calls: list[int] = []
        alarm = Alarm(asyncio.get_running_loop(), lambda: calls.append(monotonic_ns()))
        alarm.set(monotonic_ns() + ms(1))
        second_ns = monotonic_ns() + ms(30)
        alarm.set(second_ns)
        await asyncio.sleep(0.1)
        assert calls[0] >= second_ns
        alarm.set(monotonic_ns() + ms(5))
        alarm.close()
        await asyncio.sleep(0.02)
        return calls

    files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert len(asyncio.run(run())) == 1
    assert not files or len(os.listdir("/proc/self/fd")) == files
