"""Processes of hostile drivers: the selector restarts them with a reason, and starts the others."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from harness.pipeline_folders import CHAIN, write_pipelines
from horologe_common.wire import DriverReady
from horologe_selector.driver import DriverEnded
from horologe_selector.drivers import driver_processes
from horologe_selector.drivers.driver_processes import START_S, DriverProcesses
from horologe_selector.drivers.pipeline_folder import read_pipelines
from horologe_selector.settings import SelectorSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from horologe_selector.driver import PipelineDefinition


def first_messages(
    folder: Path,
    drivers: dict[str, str],
    kinds: Iterable[type],
    on_loop: Callable[[], None] = lambda: None,
    start_s: float = START_S,
) -> dict[str, Any]:
    """Return the first message of one of these kinds from each driver. The loop calls `on_loop` after a while."""
    write_pipelines(folder, drivers)
    messages: dict[str, Any] = {}

    async def main() -> None:
        done = asyncio.Event()

        def post(sender: str, core: str, message: Any, buffers: Any) -> None:
            if isinstance(message, tuple(kinds)):
                messages.setdefault(sender.removeprefix("driver/"), message)
            if messages.keys() == drivers.keys():
                done.set()

        reactor: Any = SimpleNamespace(loop=asyncio.get_running_loop(), attach=lambda address, deliver: None, post=post)
        processes = DriverProcesses("selector/0", SelectorSettings(pipelines=str(folder)), start_s=start_s)
        task = asyncio.ensure_future(processes.run(reactor))
        asyncio.get_running_loop().call_later(0.2, on_loop)
        await asyncio.wait_for(done.wait(), 60)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    return messages


def test_the_end_of_a_process_has_a_reason(tmp_path: Path) -> None:
    """Real-time signals have no name in `signal.Signals`."""
    drivers = {"signal": "import os\nos.kill(os.getpid(), 40)", "exit": "import os\nos._exit(3)"}
    messages = first_messages(tmp_path, drivers, [DriverEnded])
    assert (messages["signal"].reason, messages["exit"].reason) == ("signal 40", "exit code 3")


def test_a_module_that_is_never_imported_does_not_hold_up_the_others(tmp_path: Path) -> None:
    drivers = {"endless": "while True: pass", "good": CHAIN, "strange": "raise OSError(chr(0xDCFF))"}
    messages = first_messages(tmp_path, drivers, [DriverEnded, DriverReady], start_s=3.0)
    assert messages["good"] == DriverReady()
    assert messages["strange"].reason == "strange.py: line 1: OSError: ?"
    assert messages["endless"].reason == "the driver's module was not imported within 3 s"


def test_the_loop_runs_while_the_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looped = threading.Event()

    def read(folder: Path) -> tuple[PipelineDefinition, ...]:
        assert looped.wait(10)
        return read_pipelines(folder)

    monkeypatch.setattr(driver_processes, "read_pipelines", read)
    messages = first_messages(tmp_path, {"good": CHAIN}, [DriverReady], looped.set)
    assert messages["good"] == DriverReady()


def test_a_folder_for_which_there_is_no_thread_is_read_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures, genuine = [2], asyncio.to_thread

    async def to_thread(*arguments: Any) -> Any:
        if failures[0]:
            failures[0] -= 1
            raise RuntimeError("can't start new thread")
        return await genuine(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    assert first_messages(tmp_path, {"good": CHAIN}, [DriverReady])["good"] == DriverReady()
