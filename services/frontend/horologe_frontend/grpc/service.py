"""The methods of `inference.GRPCInferenceService`, through the same gateway as HTTP."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from google.protobuf import json_format

from horologe_common.status import UnknownModel
from horologe_frontend.audit import audited
from horologe_frontend.core.access import Scope
from horologe_frontend.grpc.infer_stream import InferStream
from horologe_frontend.grpc.inferences import Inferences
from horologe_frontend.grpc.messages import SERVICE, method_types, parameter_values, parse
from horologe_frontend.grpc.status_codes import fail
from horologe_frontend.http.http_messages import Unsupported
from horologe_frontend.oip.json_encoding import LONG_BYTES

if TYPE_CHECKING:
    from horologe_frontend.gateway import Gateway
    from horologe_frontend.grpc.calls import Call, Calls
    from horologe_frontend.grpc.rpc_server import Handler, Rpc
    from horologe_frontend.oip.model_documents import ModelDocuments

Describe: TypeAlias = Callable[["ModelDocuments", Any], Any]

OPEN = ("ServerLive", "ServerReady")
"""Methods that need no key, like the health checks of HTTP."""
NO_SHARED_MEMORY = "shared memory is not supported: send tensors in raw_input_contents"
NO_SETTINGS = "trace and logging settings are not supported over gRPC"
DESCRIPTIONS: dict[str, tuple[Scope, Describe]] = {
    "ServerLive": (Scope.KEY, lambda documents, request: {"live": True}),
    "ServerReady": (Scope.KEY, lambda documents, request: {"ready": documents.is_ready()}),
    "ServerMetadata": (Scope.KEY, lambda documents, request: documents.server()),
    "ModelReady": (Scope.READ, lambda documents, request: {"ready": _is_model_ready(documents, request)}),
    "ModelMetadata": (Scope.READ, lambda documents, request: documents.metadata(request.name, request.version)),
    "ModelConfig": (
        Scope.READ,
        lambda documents, request: {"config": documents.config(request.name, request.version)},
    ),
    "ModelStatistics": (
        Scope.OBSERVE,
        lambda documents, request: documents.statistics(request.name, request.version),
    ),
    "RepositoryIndex": (Scope.OBSERVE, lambda documents, request: {"models": documents.index(request.ready)}),
}
"""Methods that are answered at once, by a document of HTTP, and what they need on the model in `name`."""
LOADS = {"RepositoryModelLoad": "load", "RepositoryModelUnload": "unload"}


class InferenceService:
    """Serves the protocol. Every method reads its message after the call has been counted and its key checked."""

    def __init__(self, gateway: Gateway, documents: ModelDocuments, calls: Calls) -> None:
        self._documents = documents
        self._calls = calls
        self.inferences = Inferences(gateway)
        self.handlers: dict[str, Handler] = {
            f"/{SERVICE}/{name}": partial(self._answer, name, *types) for name, types in method_types().items()
        }
        """Handlers by the path of the method."""
        self.handlers[f"/{SERVICE}/ModelInfer"] = self._infer
        self.handlers[f"/{SERVICE}/ModelStreamInfer"] = self._infer_stream

    async def _answer(self, name: str, request_type: Any, reply_type: Any, rpc: Rpc) -> bytes | None:
        """Answer a method other than an inference."""
        try:
            with self._calls.begin(rpc, is_open=name in OPEN) as call:
                request = parse(request_type, await call.read())
                document = await self._document(name, call, request)
                reply = json_format.Parse(msgspec.json.encode(document), reply_type())
                content: bytes = reply.SerializeToString()
                call.hold_response(len(content))
                return content
        except Exception as error:
            fail(rpc, error, name)
            return None

    async def _document(self, name: str, call: Call, request: Any) -> Any:
        """Return the document from which the reply is made. Raise `HorologeError` or `Unsupported`."""
        if name in DESCRIPTIONS:
            scope, describe = DESCRIPTIONS[name]
            if name not in OPEN:
                call.check(scope, getattr(request, "name", ""))
            account = call.held.account
            return await account.turns.in_turn(account, describe, self._documents, request)
        if name in LOADS:
            return await self._load(LOADS[name], call, request)
        call.check(Scope.KEY)
        raise Unsupported(NO_SHARED_MEMORY if "SharedMemory" in name else NO_SETTINGS)

    async def _load(self, name: str, call: Call, request: Any) -> dict[str, Any]:
        """Load or unload a model. Clients of KServe send its name in the first field, and read the reply."""
        model, is_load = request.model_name or request.repository_name, name == "load"
        with audited(call.client, "grpc", name, model) as entry:
            call.check(Scope.MANAGE)
            if call.held.size > LONG_BYTES:  # files, which are copied
                call.held.grow_to(2 * call.held.size)
            parameters = parameter_values("parameters.", request.parameters)
            index = await self._documents.load(model, is_load, parameters, entry, call.grant())
        is_ready = any(entry.state == "READY" for entry in index)
        return {"model_name": model, "isLoaded": is_ready} if is_load else {"model_name": model, "isUnloaded": True}

    async def _infer(self, rpc: Rpc) -> bytes | None:
        """Answer ModelInfer. If the client cancels the call, its request is cancelled."""
        request_id = 0
        try:
            with self._calls.begin(rpc) as call:
                inference = await self.inferences.read(call, call.held, await call.read())
                answer, buffers = await self.inferences.predict(inference, call.client)
                request_id = answer.id
                content = await self.inferences.write(call.held, inference, answer, buffers)
                call.hold_response(len(content))
                return content
        except Exception as error:
            fail(rpc, error, "ModelInfer", request_id)
            return None

    async def _infer_stream(self, rpc: Rpc) -> None:
        """Answer the requests of a stream, in their order."""
        try:
            with self._calls.begin(rpc) as call:
                await InferStream(call, self.inferences).serve(self._calls)
        except Exception as error:
            fail(rpc, error, "ModelStreamInfer")


def _is_model_ready(documents: ModelDocuments, request: Any) -> bool:
    """Return whether a model is ready. An unknown one is not, as for Triton."""
    try:
        return documents.readiness(request.name, request.version).ready
    except UnknownModel:
        return False
