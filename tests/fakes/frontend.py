"""A fake frontend: one thread that accepts clients, describes a few models, and returns inputs as outputs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeAlias

import zmq

from horologe_cli.local.ports import free_port
from horologe_common.models import ModelSpec, TensorSpec
from horologe_common.status import HorologeError, Status
from horologe_common.transport.keys import KeyHolders, service_keys
from horologe_common.wire import (
    PROTOCOL,
    Admit,
    Answer,
    Cancel,
    Describe,
    Description,
    Envelope,
    Hello,
    ModelInfo,
    Models,
    ModelState,
    Predict,
    Rejected,
    Tensor,
    Welcome,
)
from horologe_common.wire.frames import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

ECHO = ModelSpec("echo", "1", "emulated", (TensorSpec("x", "FP32", (-1, 4)),), (TensorSpec("y", "FP32", (-1, 4)),))
PAIR = ModelSpec(
    "pair",
    "1",
    "emulated",
    (TensorSpec("a", "FP32", (-1, 2)), TensorSpec("b", "INT64", (-1, 3))),
    (TensorSpec("a", "FP32", (-1, 2)), TensorSpec("b", "INT64", (-1, 3))),
)
WORDS = ModelSpec("words", "1", "python", (TensorSpec("s", "BYTES", (-1,)),), (TensorSpec("s", "BYTES", (-1,)),))

Replies: TypeAlias = "list[tuple[Any, Sequence[Any]]]"


class FakeFrontend:
    """Serve in a thread until `stop`. `react` may return replies to a message, or None for the default replies."""

    def __init__(
        self,
        endpoint: str,
        *,
        react: Callable[[Any, Sequence[Any]], Replies | None] = lambda message, buffers: None,
        keys: Path | None = None,
        protocol: int = PROTOCOL,
        models: Sequence[ModelSpec] = (ECHO, PAIR, WORDS),
    ) -> None:
        self.endpoint = endpoint
        self.react = react
        self.keys = keys
        self.protocol = protocol
        self.models = models
        self.seen: list[Any] = []
        """Every message received."""
        self.packets: list[list[bytes]] = []
        """Every packet received, undecoded."""
        self.clients: dict[bytes, None] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._bound = threading.Event()

    def __enter__(self) -> FakeFrontend:
        self._thread.start()
        assert self._bound.wait(5), "the fake frontend did not bind"
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop without answering pending requests."""
        self._stopping.set()
        self._thread.join(5)

    def named(self, kind: type[Any]) -> list[Any]:
        """Return the received messages of one type."""
        return [message for message in list(self.seen) if isinstance(message, kind)]

    def _run(self) -> None:
        context = zmq.Context()
        authenticator = KeyHolders(context, self.keys) if self.keys else None
        sock = context.socket(zmq.ROUTER)
        sock.setsockopt(zmq.LINGER, 0)
        if self.keys:
            sock.curve_publickey, sock.curve_secretkey = service_keys(self.keys)
            sock.curve_server = True
            sock.zap_domain = b"clients"
        sock.bind(self.endpoint)
        self._bound.set()
        while not self._stopping.is_set():
            if sock.poll(10):
                identity, *frames = sock.recv_multipart()
                self.clients[identity] = None
                self._packet(sock, identity, frames)
        sock.close()
        if authenticator:
            authenticator.stop()
        context.term()

    def _packet(self, sock: zmq.Socket[bytes], identity: bytes, frames: list[bytes]) -> None:
        self.packets.append(frames)
        messages: list[Any] = []
        payloads: list[Any] = []
        try:
            arrivals = unpack(frames, 64 << 10)
        except HorologeError as error:
            sock.send_multipart([identity, *pack([Envelope("", "", [Rejected(error.status, error.reason)])], ())])
            return
        for _, _, message, buffers in arrivals:
            self.seen.append(message)
            replies = self.react(message, buffers)
            for reply, tensors in self._default_replies(message, buffers) if replies is None else replies:
                if isinstance(reply, bytes):
                    sock.send_multipart([identity, reply])
                else:
                    messages.append(reply)
                    payloads.extend(tensors)
        if messages:
            sock.send_multipart([identity, *pack([Envelope("", "", messages)], payloads)])

    def _default_replies(self, message: Any, buffers: Sequence[Any]) -> Replies:
        match message:
            case Hello() if self.protocol != message.protocol:
                return [(Rejected(Status.PROTOCOL, f"protocol: got {message.protocol}, wanted {self.protocol}"), ())]
            case Hello():
                return [(Welcome(self.protocol, ()), ())]
            case ModelInfo():
                states = tuple(ModelState(spec) for spec in self.models if message.model in ("", spec.name))
                if not states:
                    return [(Models(message.id, (), Status.UNKNOWN_MODEL, f"model: got {message.model!r}"), ())]
                return [(Models(message.id, states), ())]
            case Admit():
                return [(Models(message.id, (ModelState(ECHO, "READY" if message.admitted else "UNAVAILABLE"),)), ())]
            case Describe():
                return [(Description(message.id, (), "edf", 0), ())]
            case Predict():
                return [echo(message, buffers)]
            case Cancel():
                return []
        return []


def echo(message: Predict, buffers: Sequence[Any]) -> tuple[Answer, Sequence[Any]]:
    """Return an answer whose outputs are the inputs."""
    outputs = tuple(Tensor(tensor.name, tensor.datatype, tensor.shape, tensor.nbytes) for tensor in message.inputs)
    return Answer(message.id, Status.OK, outputs, "", 0, message.model, "1", 10, 20, 1), buffers


def stay_silent(message: Any, buffers: Sequence[Any]) -> Replies | None:
    """Answer no request. Other messages get their default replies."""
    return [] if isinstance(message, Predict) else None


def free_endpoint() -> str:
    """Return a TCP endpoint of this machine that is not in use."""
    return f"tcp://127.0.0.1:{free_port('127.0.0.1')}"
