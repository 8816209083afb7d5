"""Process of one share: `python -m horologe_gpu_worker.measurement.share_process LIFELINE JOB`.

It opens a model and then follows the commands on standard input. Standard output has the replies and nothing else.
LIFELINE is an inherited file descriptor: the process is killed when the other end closes.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import s
from horologe_common.service.isolation import kill_with_parent
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
    kill_with_parent(int(arguments[0]))
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # libraries print to standard output
    job = msgspec.json.decode(arguments[1], type=ShareJob)
    commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()

    def send(reply: Reply) -> None:
        replies.write(msgspec.json.encode(reply) + b"\n")

    try:
        runner = ShareRunner(job)
        send(runner.open())
        threading.Thread(target=_read_commands, args=(commands,), daemon=True).start()
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


def _read_commands(commands: queue.SimpleQueue[Command | None]) -> None:
    for line in sys.stdin.buffer:
        commands.put(msgspec.json.decode(line, type=Command))
    commands.put(None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
