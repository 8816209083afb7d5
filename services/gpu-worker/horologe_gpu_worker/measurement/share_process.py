"""Process of one share: `python -m horologe_gpu_worker.measurement.share_process SOCKET LIFELINE`.

Both arguments are inherited file descriptors. It opens the model of its job, and then follows commands.
"""

from __future__ import annotations

import queue
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import s
from horologe_common.service.parent_link import PacketSocket, connect_to_parent
from horologe_common.status import HorologeError, describe_exception
from horologe_gpu_worker.measurement.share_messages import (
    Begin,
    Command,
    Failed,
    Measure,
    Rates,
    Reply,
    Running,
    ShareJob,
    Stopped,
    Trace,
)
from horologe_gpu_worker.measurement.share_runner import ShareRunner

if TYPE_CHECKING:
    from collections.abc import Callable


def main(arguments: list[str]) -> int:
    packets = connect_to_parent(*arguments)
    job = msgspec.json.decode(packets.receive()[0], type=ShareJob)
    commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()

    def send(reply: Reply) -> None:
        packets.send([msgspec.json.encode(reply)])

    try:
        runner = ShareRunner(job)
        send(runner.open())
        threading.Thread(target=_read_commands, args=(packets, commands), daemon=True).start()
        serve(runner, commands, send)
    except Exception as error:
        send(Failed(error.reason if isinstance(error, HorologeError) else describe_exception(error)))
        return 1
    return 0


def serve(runner: ShareRunner, commands: queue.SimpleQueue[Command | None], send: Callable[[Reply], None]) -> None:
    """Follow commands until None. Between commands, run batches if Begin has started them."""
    while True:
        try:
            command = commands.get(block=not runner.running)
        except queue.Empty:
            runner.run_next()
            continue
        if command is None:
            runner.stop()
            return
        send(_follow(runner, command))


def _follow(runner: ShareRunner, command: Command) -> Reply:
    match command:
        case Begin(batch):
            runner.begin(batch)
            return Running()
        case Measure(seconds):
            return runner.measure(s(seconds))
        case Trace():
            return runner.trace()
        case Rates():
            return runner.rates()
    runner.stop()
    return Stopped()


def _read_commands(packets: PacketSocket, commands: queue.SimpleQueue[Command | None]) -> None:
    with suppress(EOFError, ConnectionResetError):
        while True:
            commands.put(msgspec.json.decode(packets.receive()[0], type=Command))
    commands.put(None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
