"""A model on a server of the Open Inference Protocol over HTTP or gRPC, or behind Horologe's SDK."""

from __future__ import annotations

import json
import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, quote, urlsplit

import msgspec

from horologe import Client
from horologe.core.encoding import Signature, choose_version, encode_inputs
from horologe_common.models import ModelSpec, TensorSpec
from horologe_common.status import InvalidInput, Lost, Unauthenticated, UnknownModel
from horologe_common.wire.frames import decode_array
from horologe_load.http_target import HttpTarget
from horologe_load.model_inputs import encode_oip, make_pool
from horologe_load.targets import ModelInput, SdkServerTarget

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from numpy.random import Generator

    from horologe_load.grpc_target import GrpcTarget
    from horologe_load.model_inputs import Inputs
    from horologe_load.targets import ServerTarget

PORTS = {"http": 80, "https": 443, "grpc": 8001, "grpcs": 8001}
SDK_SCHEMES = ("tcp", "ipc")
METADATA_TIMEOUT_S = 10.0
MAX_METADATA_BYTES = 16 << 20
MAX_CONNECTIONS = 4096
"""HTTP connections of a generator process."""


class ModelServer(msgspec.Struct, frozen=True):
    """The address of a model. `headers`: of each HTTP request, or metadata of each gRPC call."""

    endpoint: str
    model: str
    version: str = ""
    keys: str = ""
    """Folder of `horologe keys`, for the SDK."""
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def url(self) -> SplitResult:
        """Return the parts of the endpoint. Raises InvalidInput for an unknown scheme or an invalid port."""
        parts = urlsplit(self.endpoint)
        if parts.scheme not in (*PORTS, *SDK_SCHEMES):
            known = ", ".join(f"{scheme}://" for scheme in (*PORTS, *SDK_SCHEMES))
            raise InvalidInput(f"--endpoint: got {self.endpoint!r}, wanted one of {known}")
        try:
            _ = parts.port if parts.scheme in PORTS else 0
        except ValueError as error:
            raise InvalidInput(f"--endpoint: got {self.endpoint!r}: {error}") from None
        return parts

    @property
    def host(self) -> str:
        return self.url.hostname or "127.0.0.1"

    @property
    def port(self) -> int:
        return self.url.port or PORTS[self.url.scheme]

    @property
    def address(self) -> str:
        """Return host and port, with an address of IPv6 in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def path(self) -> str:
        """Return the path of the model over HTTP."""
        version = f"/versions/{quote(self.version, safe='')}" if self.version else ""
        return f"{self.url.path.rstrip('/')}/v2/models/{quote(self.model, safe='')}{version}"


class ModelMetadata(NamedTuple):
    """The signature of a model. `binary`: the server accepts binary tensors over HTTP."""

    spec: ModelSpec
    binary: bool = True


def read_metadata(server: ModelServer) -> ModelMetadata:
    """Ask the server for the inputs of the model. Raises HorologeError."""
    match server.url.scheme:
        case "http" | "https":
            return _read_over_http(server)
        case "grpc" | "grpcs":
            return ModelMetadata(_grpc_target().read_over_grpc(server))
    with Client(server.endpoint, keys=server.keys or None) as client:
        states = client.models(server.model)
    return ModelMetadata(choose_version(states, server.model, server.version))


def _grpc_target() -> ModuleType:
    """Return the module for gRPC, whose packages are an extra. Raises InvalidInput without them."""
    try:
        from horologe_load import grpc_target
    except ImportError as error:
        raise InvalidInput(f'gRPC: {error}: pip install "horologe[grpc]"') from error
    return grpc_target


def _read_over_http(server: ModelServer) -> ModelMetadata:
    secure = server.url.scheme == "https"
    connection = (HTTPSConnection if secure else HTTPConnection)(server.host, server.port, timeout=METADATA_TIMEOUT_S)
    try:
        document = _get(connection, server, server.path)
        try:
            extensions = _get(connection, server, f"{server.url.path.rstrip('/')}/v2").get("extensions") or ()
        except (InvalidInput, UnknownModel):  # some servers have no such path
            extensions = ()
    except (HTTPException, OSError) as error:
        raise Lost(f"{server.endpoint}: {error}") from error
    finally:
        connection.close()
    return ModelMetadata(make_spec(server, document), "binary_tensor_data" in extensions)


def _get(connection: HTTPConnection, server: ModelServer, path: str) -> dict[str, Any]:
    connection.request("GET", path, headers=dict(server.headers))
    answer = connection.getresponse()
    content = answer.read(MAX_METADATA_BYTES)
    said = f"GET {path}: got HTTP {answer.status}: {content[:200].decode(errors='replace')}"
    if answer.status in (401, 403):
        raise Unauthenticated(said)
    if answer.status == 404:
        raise UnknownModel(said)
    try:
        document = json.loads(content)
    except ValueError:
        document = None
    if answer.status != 200 or not isinstance(document, dict):
        raise InvalidInput(f"{said}, wanted metadata in JSON")
    return document


def make_spec(server: ModelServer, document: Mapping[str, Any]) -> ModelSpec:
    """Return the signature in a metadata document. Raises InvalidInput if it is none."""
    try:
        inputs, outputs = (
            tuple(
                TensorSpec(tensor["name"], tensor["datatype"], tuple(int(size) for size in tensor["shape"]))
                for tensor in document.get(kind) or ()
            )
            for kind in ("inputs", "outputs")
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"metadata of {server.model!r}: {error!r}") from error
    return ModelSpec(server.model, server.version, "", inputs, outputs)


def choose_inputs(
    spec: ModelSpec, shapes: Mapping[str, Sequence[int]], given: Any, rng: Generator
) -> list[Inputs | Any]:
    """Return the inputs to send: `given` alone, or a pool of distinct ones drawn at random.

    A first dimension that is variable counts rows, and is 1. `shapes` replace the shapes of the metadata. Raises
    InvalidInput for another variable dimension, an unknown name, a shape that does not fit, or a model without inputs.
    """
    if given is not None:
        return [given]
    if not spec.inputs:
        raise InvalidInput(f"metadata of {spec.name!r}: got no inputs, wanted some (--input FILE)")
    names = [tensor.name for tensor in spec.inputs]
    if unknown := set(shapes) - set(names):
        raise InvalidInput(f"--shape: got {', '.join(sorted(unknown))}, wanted one of {', '.join(names)}")
    fixed = tuple(TensorSpec(tensor.name, tensor.datatype, _shape(tensor, shapes)) for tensor in spec.inputs)
    return list(make_pool(ModelSpec(spec.name, spec.version, "", fixed, (), batched=False), rng).inputs)


def _shape(tensor: TensorSpec, shapes: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    if tensor.name in shapes:
        shape = tuple(shapes[tensor.name])
        fits = len(shape) == len(tensor.shape) and all(
            want in (-1, got) for got, want in zip(shape, tensor.shape, strict=True)
        )
        if not fits:
            raise InvalidInput(f"--shape {tensor.name}: got {list(shape)}, wanted {list(tensor.shape)}")
        return shape
    shape = (1, *tensor.shape[1:]) if tensor.shape[:1] == (-1,) else tensor.shape
    if -1 in shape:
        example = ",".join("16" if size == -1 else str(size) for size in shape)
        raise InvalidInput(
            f"input {tensor.name!r}: shape {list(tensor.shape)} is variable, wanted --shape {tensor.name}={example}"
        )
    return shape


class LoadedModel(msgspec.Struct, frozen=True):
    """All that a generator process needs. `requests`: bytes over HTTP and gRPC, inputs for the SDK, used in turn."""

    server: ModelServer
    requests: list[Any]
    slo_ns: int = 0
    """Deadline that is sent with each request; 0: none."""

    def make_target(self) -> ServerTarget:
        """Return a target that sends the requests in turn."""
        server = self.server
        match server.url.scheme:
            case "http" | "https":
                tls = ssl.create_default_context() if server.url.scheme == "https" else None
                return HttpTarget(server.host, server.port, self.request_at, MAX_CONNECTIONS, tls)
            case "grpc" | "grpcs":
                secure = server.url.scheme == "grpcs"
                kind: type[GrpcTarget] = _grpc_target().GrpcTarget
                return kind(server.address, self.request_at, self.slo_ns, server.headers, secure)

        def input_at(index: int) -> ModelInput:
            return ModelInput(server.model, self.request_at(index), version=server.version)

        return SdkServerTarget(server.endpoint, input_at, self.slo_ns, keys=server.keys)

    def request_at(self, index: int) -> Any:
        """Return request `index`."""
        return self.requests[index % len(self.requests)]


def load_model(server: ModelServer, metadata: ModelMetadata, inputs: Sequence[Any], slo_ns: int) -> LoadedModel:
    """Encode the requests of `inputs`. Raises InvalidInput for inputs that do not fit the signature."""
    signature, spec = Signature(metadata.spec), metadata.spec
    match server.url.scheme:
        case "http" | "https":
            requests: list[Any] = [_http_request(server, metadata, signature, given, slo_ns) for given in inputs]
        case "grpc" | "grpcs":
            encode = _grpc_target().encode_request
            requests = [encode(spec, *encode_inputs(signature, given)) for given in inputs]
        case _:
            requests = list(inputs)
    return LoadedModel(server, requests, slo_ns)


def _http_request(server: ModelServer, metadata: ModelMetadata, signature: Signature, given: Any, slo_ns: int) -> bytes:
    tensors, payloads = encode_inputs(signature, given)
    arrays = {tensor.name: decode_array(tensor, content) for tensor, content in zip(tensors, payloads, strict=True)}
    parameters = {"timeout": slo_ns // 1000} if slo_ns else {}
    if metadata.binary:
        parameters["binary_data_output"] = True
    datatypes = {tensor.name: tensor.datatype for tensor in tensors}
    headers, body = encode_oip(arrays, datatypes, metadata.binary, parameters)
    lines = [f"POST {server.path}/infer HTTP/1.1", f"Host: {server.url.netloc.rpartition('@')[2]}"]
    lines += [f"{name}: {value}" for name, value in (*headers.items(), *server.headers)]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body
