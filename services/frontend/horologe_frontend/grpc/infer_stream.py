"""ModelStreamInfer: the requests of a stream run beside each other, and are answered in the order of their arrival.

Triton keeps this order too, for models with one response to each request. The items of a model that streams are sent
as they come, beside the responses to other requests.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from horologe_common.status import Cancelled, InvalidInput, Refused
from horologe_frontend.grpc.calls import find_metadata
from horologe_frontend.grpc.messages import ModelInferRequest, ModelStreamInferResponse, parse
from horologe_frontend.grpc.status_codes import describe_failure
from horologe_frontend.http.client_accounts import RETRY_NS, HeldBytes

if TYPE_CHECKING:
    from horologe_frontend.grpc.calls import Call, Calls
    from horologe_frontend.grpc.inferences import Inferences
    from horologe_frontend.oip.predicts import InferenceRequest

STREAM_REQUESTS = 64
"""Maximum number of requests of a stream that run or whose responses are not sent. Then no further request is read."""
ENDS_KEY = "triton_grpc_error"
"""Metadata of a client that wants an error to end the stream, with its status."""


class StreamedRequest:
    """One request of a stream. `outcome` becomes its encoded response, or the exception that ended it.

    None: its items are sent as they come, and it ends with its task.
    """

    def __init__(self, held: HeldBytes) -> None:
        self.held = held
        self.id = ""
        self.outcome: asyncio.Future[bytes | Exception | None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None]


class InferStream:
    """One stream. Each of its requests counts for its client, and gets exactly one response or error message."""

    def __init__(self, call: Call, inferences: Inferences) -> None:
        self._call = call
        self._inferences = inferences
        self._ends_at_error = find_metadata(call.rpc, ENDS_KEY) == b"true"
        self._requests: asyncio.Queue[StreamedRequest | None] = asyncio.Queue()
        """The requests in their order. None: the last one has been read."""
        self._room = asyncio.Semaphore(STREAM_REQUESTS)
        self.open: dict[StreamedRequest, None] = {}
        """The requests whose responses are not sent."""
        self._writing = asyncio.Lock()
        """Held while a response is sent: gRPC accepts one after the other."""
        self._reader: asyncio.Task[None]
        self._failure: Exception | None = None
        """Error of a request with items that ends the stream."""
        self._is_draining = False

    async def serve(self, calls: Calls) -> None:
        """Answer the requests until the client has ended its side. Raise `Cancelled` at a shutdown of the server."""
        self._reader = asyncio.create_task(self._read_requests())
        calls.streams[self] = None
        try:
            while (request := await self._requests.get()) is not None:
                if (outcome := await request.outcome) is not None:
                    await self._send_response(request, outcome)
                    self._finish(request)
            if self._failure is None:
                await asyncio.gather(*(request.task for request in self.open))
            if self._failure is not None:
                raise self._failure
            if self._is_draining:
                raise Cancelled("the server is stopping: this stream reads no further requests", RETRY_NS)
            await self._reader
        finally:
            del calls.streams[self]
            tasks = [self._reader, *(request.task for request in self.open)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for request in list(self.open):
                self._finish(request)

    def drain(self) -> None:
        """Read no further request, and end after the responses to those that were read."""
        self._is_draining = True
        self._reader.cancel()

    async def _read_requests(self) -> None:
        account = self._call.held.account
        try:
            while True:
                await self._room.acquire()
                if (message := await self._call.rpc.read()) is None:
                    return
                request = StreamedRequest(HeldBytes(account))
                is_counted = account.try_begin(0)
                self.open[request] = None
                request.task = asyncio.create_task(self._respond(request, message, is_counted))
                if is_counted:  # a task that is cancelled before it begins runs no `finally`
                    request.task.add_done_callback(lambda _: account.finish(0))
                self._requests.put_nowait(request)
        finally:
            self._requests.put_nowait(None)

    async def _respond(self, request: StreamedRequest, message: bytes, is_counted: bool) -> None:
        """Set the outcome: the encoded response, or the exception that ended the request. Or send its items."""
        held, outcome = request.held, request.outcome
        try:
            if not is_counted:
                raise Refused(f"{held.account.total.requests} requests are in flight already", RETRY_NS)
            held.grow_to(len(message))
            inference = await self._inferences.read(self._call, held, message)
            if inference.predict.stream is not None:
                outcome.set_result(None)
                await self._send_items(request, inference)
                return
            answer, outputs = await self._inferences.predict(inference, self._call.client)
            response = await self._inferences.write(held, inference, answer, outputs, in_stream=True)
            held.grow_to(held.size + len(response))
            outcome.set_result(response)
        except Exception as error:
            request.id = find_id(message)
            if not outcome.done():
                outcome.set_result(error)
                return
            if self._ends_at_error:
                self._failure = error
                self._requests.put_nowait(None)
            else:
                await self._send_response(request, error)
        finally:
            if outcome.done() and outcome.result() is None:
                self._finish(request)

    async def _send_items(self, request: StreamedRequest, inference: InferenceRequest) -> None:
        """Send each item as a response of its own. Raise the `HorologeError` that ends them."""
        with self._inferences.stream(inference, self._call.client) as stream:
            async for answer, outputs in stream:
                response = await self._inferences.write(request.held, inference, answer, outputs, in_stream=True)
                if answer.outputs or inference.form.empty_final:
                    await self._send_response(request, response)

    async def _send_response(self, request: StreamedRequest, outcome: bytes | Exception) -> None:
        if isinstance(outcome, Exception):
            if self._ends_at_error:
                raise outcome
            outcome = _error_message(request.id, outcome)
        async with self._writing:
            try:
                await self._call.rpc.write(outcome)
            except ConnectionError:
                raise asyncio.CancelledError from None

    def _finish(self, request: StreamedRequest) -> None:
        del self.open[request]
        request.held.__exit__()
        self._room.release()


def find_id(message: bytes) -> str:
    """Return the client's id of a request, empty if the message has none."""
    try:
        return str(parse(ModelInferRequest, message).id)
    except InvalidInput:
        return ""


def _error_message(request_id: str, error: Exception) -> bytes:
    _, name, reason = describe_failure(error, "ModelStreamInfer")
    response: Any = ModelStreamInferResponse(error_message=f"{name}: {reason}")
    response.infer_response.id = request_id
    encoded: bytes = response.SerializeToString()
    return encoded
