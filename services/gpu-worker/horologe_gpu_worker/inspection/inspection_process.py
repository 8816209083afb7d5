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

from horologe_common.service.parent_link import connect_to_parent
from horologe_common.service.standard_streams import install_lossy_streams
from horologe_gpu_worker.inspection.inspector import (
    READING,
    Inspect,
    Inspected,
    InspectionSetup,
    Progress,
    decode_to_process,
    encode,
)
from horologe_gpu_worker.repository.modelstore import ModelStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_gpu_worker.inspection.inspector import FromProcess


def main(arguments: list[str]) -> int:
    packets = connect_to_parent(*arguments)

    def send(message: FromProcess) -> None:
        packets.send([encode(message)])

    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        serve(lambda: decode_to_process(packets.receive()[0]), send)
    return 0


def serve(receive: Callable[[], InspectionSetup | Inspect], send: Callable[[FromProcess], None]) -> None:
    """Inspect the requested versions until `receive` raises EOFError."""
    setup = receive()
    assert isinstance(setup, InspectionSetup)
    timeout_ns = setup.device.load_timeout_ns

    def set_timeout(own_ns: int) -> None:
        nonlocal timeout_ns
        timeout_ns = own_ns or setup.device.load_timeout_ns
        send(Progress(READING, timeout_ns))

    store = ModelStore(
        Path(os.fsdecode(setup.repository)),
        Path(os.fsdecode(setup.cache)),
        report=lambda text: send(Progress(text, timeout_ns)),
        device=setup.device,
    )
    while True:
        request = receive()
        assert isinstance(request, Inspect)
        folder = Path(os.fsdecode(request.folder))
        result = store.inspect_version(folder, request.content_hash, set_timeout, setup.unmeasured)
        send(Inspected(result, store.hashed_files(folder)))


if __name__ == "__main__":
    install_lossy_streams()
    sys.exit(main(sys.argv[1:]))
