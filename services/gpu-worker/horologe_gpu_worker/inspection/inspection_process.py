"""Process that inspects and measures models: `python -m horologe_gpu_worker.inspection.inspection_process SOCKET LIFELINE`.

Both arguments are inherited file descriptors. A model may loop in C code, exhaust the memory or end its process. The
worker then kills this process, and serves the other models meanwhile.
"""  # noqa: E501 - the command

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from horologe_common.clock import monotonic_ns
from horologe_common.service.parent_link import connect_to_parent
from horologe_common.service.standard_streams import install_lossy_streams
from horologe_common.status import HorologeError, describe_exception
from horologe_gpu_worker.fetching.mirror import Mirror
from horologe_gpu_worker.inspection.inspector import (
    READING,
    Inspect,
    Inspected,
    InspectionSetup,
    Progress,
    decode_to_process,
    encode,
)
from horologe_gpu_worker.repository.modelstore import unreadable_report
from horologe_gpu_worker.repository.version_inspector import VersionInspector, VersionReport

if TYPE_CHECKING:
    from horologe_common.service.parent_link import PacketSocket
    from horologe_gpu_worker.inspection.inspector import FromProcess, ToProcess


def main(arguments: list[str]) -> int:
    packets = connect_to_parent(*arguments)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        serve(packets)
    return 0


def serve(packets: PacketSocket) -> None:
    """Inspect the requested versions until the worker closes the socket."""

    def receive() -> ToProcess:
        message: ToProcess = decode_to_process(packets.receive()[0])
        return message

    def send(message: FromProcess) -> None:
        packets.send([encode(message)])

    setup = receive()
    assert isinstance(setup, InspectionSetup)
    timeout_ns = fetched_ns = 0

    def set_timeout(own_ns: int) -> None:
        nonlocal timeout_ns
        timeout_ns = fetched_ns + (own_ns or setup.settings.load_timeout_ns)
        send(Progress(READING, timeout_ns))

    def show(text: str) -> None:
        send(Progress(text, timeout_ns))

    cache = Path(os.fsdecode(setup.cache))
    mirror = Mirror(os.fsdecode(setup.repository), cache)
    inspector = VersionInspector(cache, report=show, settings=setup.settings)
    while True:
        request = receive()
        assert isinstance(request, Inspect)
        folder, begin_ns = Path(os.fsdecode(request.folder)), monotonic_ns()
        timeout_ns = setup.settings.fetch_timeout_ns
        try:
            fetched_ns = monotonic_ns() - begin_ns if mirror.fetch(folder, show) else 0
        except Exception as error:
            reason = error.reason if isinstance(error, HorologeError) else describe_exception(error)
            send(Inspected(VersionReport(unreadable_report(folder.parent.name, reason, folder.name))))
            continue
        result = inspector.inspect_version(folder, request.content_hash, set_timeout, setup.unmeasured)
        send(Inspected(result, inspector.contents.files_of(folder)))


if __name__ == "__main__":
    install_lossy_streams()
    sys.exit(main(sys.argv[1:]))
