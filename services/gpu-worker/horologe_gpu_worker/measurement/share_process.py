"""Process of one share: `python -m horologe_gpu_worker.measurement.share_process SOCKET LIFELINE`.

Both arguments are inherited file descriptors. It opens the model of its job, and then follows commands.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import s
from horologe_common.service.parent_link import connect_to_parent
from horologe_common.status import HorologeError, describe_exception
from horologe_gpu_worker.measurement.share_connection import (
    Begin,
    Command,
    CommandDone,
    Failed,
    Measure,
    Rates,
    Reply,
    ShareJob,
    Stop,
    Trace,
)
from horologe_gpu_worker.measurement.share_runner import ShareRunner

if TYPE_CHECKING:
    from horologe_common.service.parent_link import PacketSocket


def main(arguments: list[str]) -> int:
    packets = connect_to_parent(*arguments)
    job = msgspec.json.decode(packets.receive()[0], type=ShareJob)
    try:
        runner = ShareRunner(job)
        send(packets, runner.open())
        serve(runner, packets)
    except Exception as error:
        send(packets, Failed(error.reason if isinstance(error, HorologeError) else describe_exception(error)))
        return 1
    return 0


def send(packets: PacketSocket, reply: Reply) -> None:
    packets.send([msgspec.json.encode(reply)])


def serve(runner: ShareRunner, packets: PacketSocket) -> None:
    """Follow commands until the parent closes the socket. Between them, run batches if Begin has started them."""
    with suppress(EOFError, ConnectionResetError):
        while True:
            if runner.running and not packets.has_arrived(0):
                runner.run_next()
            else:
                send(packets, _follow(runner, msgspec.json.decode(packets.receive()[0], type=Command)))
    runner.stop()


def _follow(runner: ShareRunner, command: Command) -> Reply:
    match command:
        case Measure(seconds):
            return runner.measure(s(seconds))
        case Trace():
            return runner.trace()
        case Rates():
            return runner.rates()
        case Begin(batch):
            runner.begin(batch)
        case Stop():
            runner.stop()
    return CommandDone()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
