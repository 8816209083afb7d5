"""Any bytes: every decoder returns a value or raises its documented error, and nothing stays allocated.

`FUZZ_SECONDS=3600 pytest tests/fuzz` runs for an hour instead of 12 s.
"""

from __future__ import annotations

import asyncio
import struct
import tempfile
import zlib
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from fakes.gateway import FLOATS, FakeGateway, a_model
from fuzz.fuzzing import fuzz
from horologe_common.models import TensorSpec
from horologe_common.status import HorologeError
from horologe_common.transport.clients.zmtp import (
    FRAME_OVERHEAD,
    GREETING,
    PARTS_MAX,
    PING,
    READY,
    MessageReader,
    ProtocolError,
    pong,
)
from horologe_common.transport.streams import Stream
from horologe_common.wire import HEADER_LIMIT
from horologe_common.wire.frames import decode_array, tensors, unpack
from horologe_frontend.http.compression import inflate
from horologe_frontend.http.connection import HttpConnection
from horologe_frontend.http.http_messages import HttpError
from horologe_frontend.http.server import HttpServer
from horologe_frontend.http.settings import HttpSettings
from horologe_frontend.http.steps import run_at_once
from horologe_frontend.oip.applications_http import read_application, read_feedback
from horologe_frontend.oip.handler import OipHandler
from horologe_frontend.oip.inference import read_request
from horologe_frontend.oip.known_requests import KnownRequests
from horologe_gpu_worker.repository.manifest import InvalidModel, read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_frontend.oip.predicts import InferenceRequest

LIMIT = 1 << 20
ZMTP_LIMIT = 1 << 10
SPECS = [
    a_model("echo", FLOATS),
    a_model("text", TensorSpec("in", "BYTES", (-1,))),
    a_model("two", TensorSpec("in", "INT8", (-1, 2)), TensorSpec("in2", "BOOL", (-1,))),
]
SEPARATOR = b"\n--\n"
"""Between the parts of an input: reads of a connection, frames of a packet, header length and body."""
JSON_TOKENS = (*rb'[ ] {} " null NaN 1e400 -0.0 \u0000 \ , "data":'.split(), b"\xff")
HTTP_TOKENS = (
    b"\r\n", b"\r\n\r\n", b"\n", b" ", b":", b"0\r\n\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\n", b"Content-Encoding: gzip\r\n",
    b"Accept-Encoding: gzip\r\n", b"Inference-Header-Content-Length: 0\r\n", SEPARATOR, b"\x00", b"\xff",
)  # fmt: skip
LARGEST_ARRAY, LARGEST_TEXT, LARGEST_NUMBER = b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xcf" + b"\xff" * 8
WIRE_TOKENS = (SEPARATOR, b"\x90", b"\x91", b"\xc0", LARGEST_ARRAY, LARGEST_TEXT, LARGEST_NUMBER)
STREAM_TOKENS = (*WIRE_TOKENS, struct.pack("<I", 1), struct.pack("<Q", 1 << 62))
EMPTY_FRAMES = (b"\x00\x00", b"\x01\x00", b"\x02" + bytes(8))
ZMTP_TOKENS = (SEPARATOR, GREETING, READY, PING, *EMPTY_FRAMES, b"\x03" + b"\xff" * 8, b"\x04\xff")
TOML_TOKENS = (b"\n", b"=", b"[", b"]", b"'", b'"', b"-1", b"1e309", b"nan", b"\xff", b"[[inputs]]\n", b"{a=1}")


def check_http(data: bytes) -> None:
    """Every connection is answered or ignored, whatever the reads, and releases everything."""
    asyncio.run(_serve(data.split(SEPARATOR)))


async def _serve(reads: list[bytes]) -> None:
    settings = HttpSettings()
    server = HttpServer(settings, OipHandler(FakeGateway(), settings))
    faults: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    account = server.clients.add_connection("10.0.0.1")
    assert account is not None
    connection, written = HttpConnection(server, account), bytearray()
    methods = ("close", "abort", "pause_reading", "resume_reading", "is_closing", "write_eof")
    nothing = dict.fromkeys(methods, lambda: None)
    transport: Any = SimpleNamespace(
        write=written.extend, writelines=lambda parts: written.extend(b"".join(parts)), can_write_eof=lambda: True,
        **nothing,
    )  # fmt: skip
    connection.connection_made(transport)
    for read in reads:
        connection.data_received(read)
        for _ in range(4):
            await asyncio.sleep(0)
    connection.connection_lost(None)
    for _ in range(4):
        await asyncio.sleep(0)
    total = server.clients.total
    assert (total.connections, total.requests, total.held_bytes) == (0, 0, 0)
    assert not written or written.startswith(b"HTTP/1.1 ")
    assert b"internal error" not in written
    assert not faults, faults


def check_inference(data: bytes) -> None:
    """A repeated request is read as the first is. The decompression of any body ends."""
    length, _, body = data.rpartition(SEPARATOR)
    for spec in SPECS:
        known, header_length = KnownRequests(LIMIT), length or None
        expected = outcome(partial(read_request, spec, "", body, header_length, LIMIT))
        for _ in range(2):
            assert outcome(partial(known.read, spec, "", body, header_length)) == expected
    for window in (31, 15, -15):
        with suppress(HorologeError, zlib.error):
            run_at_once(inflate(body, window, LIMIT))


def outcome(read: Callable[[], InferenceRequest]) -> Any:
    """Return the content of a request, or the error. Tensors can be decoded."""
    try:
        request = read()
    except (HorologeError, HttpError) as error:
        return type(error), str(error)
    for tensor, buffer in zip(request.predict.inputs, request.buffers, strict=True):
        with suppress(HorologeError):
            decode_array(tensor, buffer)
    return request.predict, [bytes(buffer) for buffer in request.buffers], request.form.outputs, request.form.default


def check_applications(data: bytes) -> None:
    """Declarations and feedback are valid or refused."""
    with suppress(HorologeError, HttpError):
        read_application("digits", data)
    with suppress(HorologeError, HttpError):
        read_feedback(data, lambda: SPECS[0])


def check_wire(data: bytes) -> None:
    """A packet is decoded or refused."""
    try:
        arrivals = unpack(data.split(SEPARATOR), HEADER_LIMIT)
    except HorologeError:
        return
    for _, _, message, buffers in arrivals:
        for tensor, buffer in zip(tensors(message), buffers, strict=True):
            with suppress(HorologeError):
                decode_array(tensor, buffer)


def check_streams(data: bytes) -> None:
    """Packets do not depend on the reads. A stream that is not closed holds at most what has arrived."""
    whole = _packets([data.replace(SEPARATOR, b"")])
    parts = _packets(data.split(SEPARATOR))
    assert parts[: len(whole)] == whole


def _packets(reads: list[bytes]) -> list[list[bytes]]:
    packets: list[list[bytes]] = []

    def store(_: Stream, arrived: list[list[memoryview]]) -> None:
        packets.extend([bytes(frame) for frame in frames] for frames in arrived)

    streams: Any = SimpleNamespace(max_frame_bytes=LIMIT, on_packets=store)
    stream = Stream(streams)
    closed: list[bool] = []
    stream._transport = SimpleNamespace(abort=lambda: closed.append(True))  # type: ignore[assignment]
    for read in reads:
        if not closed:
            stream.data_received(read)
    return packets


def check_zmtp(data: bytes) -> None:
    """Messages do not depend on the reads. What is held of a message has arrived, and is within the limit."""
    whole, parts = _messages([data.replace(SEPARATOR, b"")]), _messages(data.split(SEPARATOR))
    assert parts == whole


def _messages(reads: list[bytes]) -> tuple[list[tuple[list[bytes], bool]], bool]:
    """Return the messages, and whether the connection was closed."""
    reader, arrived = MessageReader(ZMTP_LIMIT, ZMTP_LIMIT // 2), 0
    closed = False
    with suppress(ProtocolError):
        closed = True
        for read in filter(None, reads):
            arrived += len(read)
            reader.feed(read)
            assert 0 <= reader.held_bytes <= min(arrived, ZMTP_LIMIT) + PARTS_MAX * FRAME_OVERHEAD
        closed = False
    for ping in reader.pings:
        assert len(pong(ping)) <= ZMTP_LIMIT
    return [([bytes(frame) for frame in frames], dropped) for frames, dropped in reader.messages], closed


def check_manifest(data: bytes) -> None:
    """A model.toml is valid, or the error names the file."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.toml").write_bytes(data)
        with suppress(InvalidModel):
            read_manifest(Path(folder))


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("name", "check", "tokens", "share"),
    [
        ("http", check_http, HTTP_TOKENS, 0.25),
        ("inference", check_inference, (*JSON_TOKENS, SEPARATOR), 0.2),
        ("applications", check_applications, JSON_TOKENS, 0.1),
        ("wire", check_wire, WIRE_TOKENS, 0.15),
        ("streams", check_streams, STREAM_TOKENS, 0.1),
        ("zmtp", check_zmtp, ZMTP_TOKENS, 0.1),
        ("manifest", check_manifest, TOML_TOKENS, 0.1),
    ],
)
def test_any_bytes(name: str, check: Callable[[bytes], None], tokens: tuple[bytes, ...], share: float) -> None:
    fuzz(name, check, tokens, share)
