"""Messages between the worker and a process that inspects models: msgpack over a socket. Nothing is unpickled."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from horologe_gpu_worker.repository.content import HashedFile
from horologe_gpu_worker.repository.version_inspector import VersionReport
from horologe_gpu_worker.runtime import DeviceConfig

READING = "reading its files"
"""Progress of an inspection that has begun."""


class InspectionSetup(msgspec.Struct, tag="setup", array_like=True, frozen=True):
    """First message to the process."""

    repository: bytes
    """Path, as the file system encodes it."""
    cache: bytes
    device: DeviceConfig
    unmeasured: tuple[str, ...] = ()
    """Runtimes whose models are only read: the worker measures them, because they need its device."""


class Inspect(msgspec.Struct, tag="inspect", array_like=True, frozen=True):
    """Request to inspect the version in `folder`."""

    folder: bytes
    content_hash: str = ""
    """Content that the worker serves. Nothing but the files is read if they still have it."""


class Progress(msgspec.Struct, tag="progress", array_like=True, frozen=True):
    """What the process does now. `timeout_ns`: limit of the whole inspection."""

    text: str
    timeout_ns: int


class Inspected(msgspec.Struct, tag="inspected", array_like=True, frozen=True):
    """Result, with the hashes of the files, so that the worker need not read them again."""

    result: VersionReport
    files: tuple[HashedFile, ...] = ()


ToProcess: TypeAlias = InspectionSetup | Inspect
FromProcess: TypeAlias = Progress | Inspected

encode = msgspec.msgpack.Encoder().encode
decode_to_process = msgspec.msgpack.Decoder(ToProcess).decode
decode_from_process = msgspec.msgpack.Decoder(FromProcess).decode
