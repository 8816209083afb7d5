"""The bare chain: client, edge, worker and back over ipc, without any decision on the way.

It measures the limit of Python, ZeroMQ and msgspec on this machine, so that the cost of decisions can be compared with
it. Requests of 1x16 float32 are answered with their sums, in batches of up to 16, two batches ahead.

    python benchmarks/chain.py 1 64
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import tempfile
import time
from collections import deque
from typing import Any, NamedTuple

import msgspec
import numpy as np
import zmq

MAX_BATCH, AHEAD = 16, 2
STOP = b"stop"
_encode = msgspec.msgpack.encode


class ChainRequest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A request of the client."""

    id: int
    model: str
    budget_ns: int
    datatype: str
    shape: tuple[int, ...]


class BatchAction(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A batch for the worker."""

    action: int
    model: str
    ids: list[int]
    earliest_ns: int
    latest_ns: int


class BatchResult(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The times of a batch."""

    ids: list[int]
    begin_ns: int
    end_ns: int


class ChainReply(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The answer to a request; its outputs follow as bytes."""

    id: int
    status: int
    datatype: str
    shape: tuple[int, ...]


_decode_request = msgspec.msgpack.Decoder(ChainRequest).decode
_decode_action = msgspec.msgpack.Decoder(BatchAction).decode
_decode_result = msgspec.msgpack.Decoder(BatchResult).decode
_decode_reply = msgspec.msgpack.Decoder(ChainReply).decode


class ChainRow(NamedTuple):
    """Throughput and latency with `clients` requests in flight."""

    clients: int
    requests_s: float
    p50_ms: float
    p99_ms: float


def receive_all(socket: zmq.Socket[bytes]) -> list[list[bytes]]:
    """Return all packets that have arrived."""
    packets: list[list[bytes]] = []
    with contextlib.suppress(zmq.Again):
        while True:
            packets.append(socket.recv_multipart(zmq.NOBLOCK))
    return packets


def edge(front_at: str, back_at: str) -> None:
    """Number the requests of clients, send them to the worker in batches, return the answers."""
    context = zmq.Context()
    front, back, poller = context.socket(zmq.ROUTER), context.socket(zmq.ROUTER), zmq.Poller()
    front.bind(front_at)
    back.bind(back_at)
    poller.register(front, zmq.POLLIN)
    poller.register(back, zmq.POLLIN)
    requests: dict[int, tuple[bytes, int, bytes]] = {}
    waiting: deque[int] = deque()
    worker, running, serial = b"", 0, 0
    while True:
        poller.poll()
        for client, header, *body in receive_all(front):
            if header == STOP:
                back.send_multipart([worker, STOP])
                context.destroy(linger=1000)
                return
            serial += 1
            requests[serial] = (client, _decode_request(header).id, body[0])
            waiting.append(serial)
        for worker, header, *body in receive_all(back):  # noqa: B007 - the last sender is the worker
            if header:
                running -= 1
                ids = _decode_result(header).ids
                size = len(body[0]) // len(ids)
                for at, key in enumerate(ids):
                    client, id_, _ = requests.pop(key)
                    part = body[0][at * size : (at + 1) * size]
                    front.send_multipart([client, _encode(ChainReply(id_, 0, "FP32", (1,))), part])
        while waiting and worker and running < AHEAD:
            ids = [waiting.popleft() for _ in range(min(MAX_BATCH, len(waiting)))]
            now_ns = time.monotonic_ns()
            header = _encode(BatchAction(serial, "noop", ids, now_ns, now_ns + 10_000_000))
            back.send_multipart([worker, header, *(requests[key][2] for key in ids)])
            running += 1


def work(back_at: str) -> None:
    """Answer every batch with the sums of its rows."""
    socket = zmq.Context().socket(zmq.DEALER)
    socket.connect(back_at)
    socket.send(b"")
    while (packet := socket.recv_multipart())[0] != STOP:
        action, begin_ns = _decode_action(packet[0]), time.monotonic_ns()
        y = np.frombuffer(b"".join(packet[1:]), np.float32).reshape(len(action.ids), -1).sum(1)
        socket.send_multipart([_encode(BatchResult(action.ids, begin_ns, time.monotonic_ns())), y.tobytes()])


def drive(front_at: str, clients: int, seconds: float) -> ChainRow:
    """Keep `clients` requests in flight for `seconds`. All inputs differ; every 32nd answer is checked."""
    socket = zmq.Context().socket(zmq.DEALER)
    socket.connect(front_at)
    x = np.ones((1, 16), np.float32)
    sent_ns: list[int] = []
    took_ns: list[int] = []

    def send_request() -> None:
        x[0, 0] = len(sent_ns) % (1 << 20)
        header = _encode(ChainRequest(len(sent_ns), "noop", 25_000_000, "FP32", (1, 16)))
        sent_ns.append(time.monotonic_ns())
        socket.send_multipart([header, x.tobytes()])

    send_request()  # the first request meets cold sockets and is not counted
    socket.recv_multipart()
    start_ns = time.monotonic_ns()
    end_ns = start_ns + round(seconds * 1e9)
    for _ in range(clients):
        send_request()
    while len(took_ns) < len(sent_ns) - 1:
        header, body = socket.recv_multipart()
        now_ns, index = time.monotonic_ns(), _decode_reply(header).id
        took_ns.append(now_ns - sent_ns[index])
        if not index % 32 and np.frombuffer(body, np.float32)[0] != index % (1 << 20) + 15:
            raise RuntimeError(f"request {index}: got {np.frombuffer(body, np.float32)}")
        if now_ns < end_ns:
            send_request()
    elapsed_s = (time.monotonic_ns() - start_ns) / 1e9
    socket.send(STOP)
    took_ns.sort()
    p50_ns, p99_ns = took_ns[len(took_ns) // 2], took_ns[int(len(took_ns) * 0.99)]
    return ChainRow(clients, len(took_ns) / elapsed_s, p50_ns / 1e6, p99_ns / 1e6)


def measure(clients: int, seconds: float) -> ChainRow:
    """Run a chain of three processes; this process is the client."""
    with tempfile.TemporaryDirectory() as folder:
        front_at, back_at = f"ipc://{folder}/front", f"ipc://{folder}/back"
        start = multiprocessing.get_context("spawn").Process
        ends: list[Any] = [start(target=edge, args=(front_at, back_at)), start(target=work, args=(back_at,))]
        for process in ends:
            process.start()
        try:
            return drive(front_at, clients, seconds)
        finally:
            for process in ends:
                process.join(3)
                process.kill()


def main() -> None:
    for clients in [int(count) for count in sys.argv[1:]] or [1, 16, 64]:
        row = measure(clients, 2.0)
        print(
            f"clients={row.clients} requests/s={row.requests_s:.0f} p50_ms={row.p50_ms:.3f} p99_ms={row.p99_ms:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
