"""A server on gRPC's C core: calls with a task each, whose messages are bytes.

It uses the C core as the synchronous server of grpcio does. The server of `grpc.aio` would need three tasks for a call,
and a wake-up of the loop for each event (docs/adr/0037-grpc-in-the-edge.md).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from grpc import StatusCode
from grpc._cython import cygrpc

from horologe_common.service.log import logger
from horologe_frontend.grpc.completion_events import CompletionEvents

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REQUESTED_CALLS = 32
"""Calls that the C core may hand over at once."""
NO_DEADLINE_S = 1e9
"""Beyond this remaining time, a call has no deadline."""
log = logger("grpc")


class Rpc:
    """One call: its metadata, messages and status. Used on the loop only."""

    __slots__ = (
        "_batches", "_call", "_deadline_s", "_has_begun", "_reading", "_server", "_task",
        "is_ended", "metadata", "on_done",
    )  # fmt: skip

    def __init__(self, server: RpcServer, event: Any) -> None:
        self._server = server
        self._call = event.call
        self._deadline_s: float = event.call_details.deadline
        self.metadata: Sequence[tuple[str, str | bytes]] = event.invocation_metadata
        self._batches = 0
        """Batches of operations whose event has not come."""
        self._has_begun = False
        """The initial metadata has been sent."""
        self._reading: asyncio.Future[bytes | None] | None = None
        self.is_ended = False
        """A status has been sent, or the call was cancelled."""
        self.on_done: Callable[[], None] | None = None
        """Called once gRPC has sent everything."""
        self._task: asyncio.Task[None] | None = None
        """Runs the handler. None: it has ended."""

    def peer(self) -> str:
        """Return the address of the client, such as `ipv4:10.0.0.1:55000`."""
        name: bytes = self._call.peer()
        return name.decode()

    def remaining_s(self) -> float | None:
        """Return the time to the deadline of the call, at least 0. None: no deadline."""
        remaining_s = self._deadline_s - time.time()
        return None if remaining_s > NO_DEADLINE_S else max(0.0, remaining_s)

    async def read(self) -> bytes | None:
        """Return the next message, or None after the last one."""
        reading: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._reading = reading
        self._start((cygrpc.ReceiveMessageOperation(0),), partial(self._on_message, reading))
        message = await reading
        self._reading = None
        return message

    def fail_read(self, error: Exception) -> None:
        """Let a `read` that waits raise an error."""
        if self._reading is not None and not self._reading.done():
            self._reading.set_exception(error)

    def _on_message(self, reading: asyncio.Future[bytes | None], event: Any) -> None:
        if not reading.done():
            reading.set_result(event.batch_operations[0].message())
        self._on_event(event)

    async def write(self, message: bytes) -> None:
        """Send a message, and wait until another one may be sent. Raise `ConnectionError` if the client has left."""
        if self.is_ended:
            raise ConnectionError("the call has ended")
        writing: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._start((*self._begin(), cygrpc.SendMessageOperation(message, 0)), partial(self._on_written, writing))
        if not await writing:
            raise ConnectionError("the client has left")

    def _on_written(self, writing: asyncio.Future[bool], event: Any) -> None:
        if not writing.done():
            writing.set_result(event.success)
        self._on_event(event)

    def finish(self, message: bytes | None = None) -> None:
        """End the call with the status OK, after a last message if one is given. No effect if it has ended."""
        self._end(() if message is None else (cygrpc.SendMessageOperation(message, 0),), StatusCode.OK, "", ())

    def fail(self, code: StatusCode, details: str, trailing: Sequence[tuple[str, str | bytes]] = ()) -> None:
        """End the call with an error. No effect if it has ended."""
        self._end((), code, details, trailing)

    def _end(self, last: tuple[Any, ...], code: StatusCode, details: str, trailing: Any) -> None:
        if not self.is_ended:
            self.is_ended = True
            status = cygrpc.SendStatusFromServerOperation(trailing, code.value[0], details.encode(), 0)
            self._start((*self._begin(), *last, status), self._on_event)

    def _begin(self) -> tuple[Any, ...]:
        if self._has_begun:
            return ()
        self._has_begun = True
        return (cygrpc.SendInitialMetadataOperation(None, 0),)

    def run(self, handler: Handler) -> None:
        """Begin the task of the handler."""
        self._task = task = asyncio.get_running_loop().create_task(self._run(handler))
        task.add_done_callback(self._on_task_done)  # a task that is cancelled before it begins runs no `finally`

    async def _run(self, handler: Handler) -> None:
        try:
            self.finish(await handler(self))
        except asyncio.CancelledError:
            if not self.is_ended:
                self.is_ended = True
                self._call.cancel()
        except Exception:
            log.exception("call fault")
            self.fail(StatusCode.INTERNAL, "internal error")

    def watch_end(self) -> None:
        """Cancel the task if the client cancels the call, or its deadline passes."""
        self._start((cygrpc.ReceiveCloseOnServerOperation(0),), self._on_close)

    def _on_close(self, event: Any) -> None:
        if event.batch_operations[0].cancelled() and not self.is_ended:
            self.is_ended = True
            if self._task is not None:
                self._task.cancel()
        self._on_event(event)

    def _start(self, operations: tuple[Any, ...], on_event: Callable[[Any], None]) -> None:
        if error := self._call.start_server_batch(operations, on_event):
            raise RuntimeError(f"operations of a call: gRPC reports the error {error}")
        self._batches += 1

    def _on_event(self, event: Any) -> None:
        self._batches -= 1
        self._remove_if_done()

    def _on_task_done(self, task: object) -> None:
        self._task = None
        self._remove_if_done()

    def _remove_if_done(self) -> None:
        if self.is_ended and not self._batches and self._task is None:
            if self.on_done is not None:
                self.on_done()
            self._server.remove(self)


Handler: TypeAlias = Callable[[Rpc], Awaitable[bytes | None]]
"""Serves a call. Returns its response, or None if it has written its responses or ended the call."""


class RpcServer:
    """Serves the methods in `handlers`, by path. Call `listen` and `start`, then `stop`.

    `options`: of the C core. Beyond `max_calls` in progress, a call ends as RESOURCE_EXHAUSTED.
    """

    def __init__(self, handlers: Mapping[str, Handler], options: Any, max_calls: int) -> None:
        self._handlers = {path.encode(): handler for path, handler in handlers.items()}
        self._max_calls = max_calls
        self._events = events = CompletionEvents(asyncio.get_running_loop())
        self._server: Any = cygrpc.Server(options, False)
        self._server.register_completion_queue(events.queue)
        self._rpcs: dict[Rpc, None] = {}
        self._requested = 0
        """Calls that the C core was asked for."""
        self._is_stopping = self._is_shut_down = False
        self._has_ended = asyncio.Event()

    def listen(self, address: str, credentials: Any = None) -> int:
        """Open a port, and return its number. Raise `OSError` if the address is not available."""
        certificates = () if credentials is None else (credentials._credentials,)
        try:
            port: int = self._server.add_http2_port(address.encode(), *certificates)
        except RuntimeError:
            port = 0
        if not port:
            raise OSError(f"{address}: the address is in use or cannot be used")
        return port

    def start(self) -> None:
        """Accept calls."""
        self._server.start()
        for _ in range(REQUESTED_CALLS):
            self._request_call()
        self._events.start()

    async def stop(self, grace_s: float) -> None:
        """Accept no call, wait for those in progress, and cancel the others after `grace_s`."""
        if not self._is_stopping:
            self._is_stopping = True
            self._server.shutdown(self._events.queue, self._on_shutdown)
        try:
            async with asyncio.timeout(grace_s):
                await self._has_ended.wait()
        except TimeoutError:
            self._server.cancel_all_calls()
            await self._has_ended.wait()

    def remove(self, rpc: Rpc) -> None:
        """Forget a call that is done."""
        del self._rpcs[rpc]
        self._end_if_idle()

    def _request_call(self) -> None:
        self._requested += 1
        self._server.request_call(self._events.queue, self._events.queue, self._on_call)

    def _on_call(self, event: Any) -> None:
        self._requested -= 1
        if not self._is_stopping:
            self._request_call()
        if not event.success:
            self._end_if_idle()
            return
        rpc, handler = Rpc(self, event), self._handlers.get(event.call_details.method)
        self._rpcs[rpc] = None
        if handler is None:
            rpc.fail(StatusCode.UNIMPLEMENTED, "unknown method")
        elif len(self._rpcs) > self._max_calls:
            rpc.fail(StatusCode.RESOURCE_EXHAUSTED, f"{self._max_calls} calls are in progress already")
        else:
            rpc.run(handler)
        rpc.watch_end()

    def _on_shutdown(self, event: Any) -> None:
        self._is_shut_down = True
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._is_shut_down and not self._rpcs and not self._requested:
            self._server.destroy()
            self._events.close()
            self._has_ended.set()
