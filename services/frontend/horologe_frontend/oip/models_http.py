"""Server and models over HTTP: metadata, configuration, statistics, repository index, load and unload."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from horologe_common.clock import monotonic_ns
from horologe_common.models import natural_sort_key
from horologe_common.status import InvalidInput, Status, TooLarge, UnknownModel, error_for
from horologe_common.wire import Admit, ModelState
from horologe_frontend.core.model_versions import check_read
from horologe_frontend.core.stats import ModelStats
from horologe_frontend.http.http_messages import HttpError, HttpResponse, json_response
from horologe_frontend.oip.known_parameters import LOAD, check_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.models import ModelSpec, TensorSpec
    from horologe_frontend.gateway import Gateway
    from horologe_frontend.http.http_messages import HttpRequest
    from horologe_frontend.oip.routes import HttpRoute

EXTENSIONS = ("binary_tensor_data", "classification", "model_configuration", "model_repository", "statistics")
UNSUPPORTED = {
    "shared_memory": "shared memory is not supported: send tensors as binary data",
    "unsupported": "trace and logging settings are not supported over HTTP",
}
PLATFORMS = {"onnx": "onnxruntime_onnx", "pytorch": "pytorch_libtorch", "torchscript": "pytorch_libtorch"}
"""Platform name of Triton for each runtime. Other runtimes keep their own name."""
BACKENDS = {"onnx": "onnxruntime", "torchscript": "pytorch"}
OPTIONAL_BYTES = 64 << 10
"""Maximum size of JSON without tensors."""
T = TypeVar("T")


class IndexJson(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a request for the repository index."""

    ready: bool = False


class LoadJson(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a request to load or unload a model."""

    parameters: dict[str, Any] | None = None


class ModelsHandler:
    """Handle the routes of the server and its models. Errors are raised, and `OipHandler` answers them.

    `find_spec` returns the model or the signature of the application that a route names. `is_ready` returns whether
    this server accepts requests. `version` is that of the server.
    """

    def __init__(
        self, gateway: Gateway, find_spec: Callable[[HttpRoute], ModelSpec], is_ready: Callable[[], bool], version: str
    ) -> None:
        self._gateway = gateway
        self._catalogue, self._stats_by_model = gateway.core.catalogue, gateway.core.stats_by_model
        self._find_spec = find_spec
        self._is_ready = is_ready
        self._version = version

    async def handle_route(self, route: HttpRoute, request: HttpRequest, body: bytes) -> HttpResponse:
        """Return the response. Raise `HorologeError` or `HttpError` if the operation fails."""
        if route.name in ("load", "unload"):
            return await self._load(route, body)
        return await request.account.turns.in_turn(request.account, self._describe, route, body)

    async def _load(self, route: HttpRoute, body: bytes) -> HttpResponse:
        """Load or unload a model of the repository. A load is answered with the index of the model."""
        parameters = _decode_optional(body, LoadJson).parameters
        for name in parameters or ():
            if name == "config" or name.startswith("file:"):
                raise HttpError(501, f"parameters.{name}: not supported: models come from the repository on disk")
        check_parameters("parameters.", parameters, LOAD)
        models = await self._gateway.call(Admit(0, route.model, "", route.name == "load"))
        if models.status != Status.OK:
            raise error_for(models.status, models.reason)
        return json_response(repository_index(models.models, False)) if route.name == "load" else HttpResponse(200)

    def _describe(self, route: HttpRoute, body: bytes) -> HttpResponse:
        match route.name:
            case "index":
                return json_response(
                    repository_index(self._catalogue.model_states(), _decode_optional(body, IndexJson).ready)
                )
            case "server":
                return json_response({"name": "horologe", "version": self._version, "extensions": EXTENSIONS})
            case "models":
                return json_response({"models": sorted({state.spec.name for state in self._catalogue.model_states()})})
            case "all_stats":
                return self._statistics(self._catalogue.model_states())
            case "shared_memory" | "unsupported":
                raise HttpError(501, UNSUPPORTED[route.name])
        return self._model(route)

    def _model(self, route: HttpRoute) -> HttpResponse:
        states = self._catalogue.model_states(route.model) or [ModelState(self._find_spec(route))]
        state = choose_version(states, route.model, route.version)
        if route.name in ("metadata", "config"):
            check_read(state)
        match route.name:
            case "metadata":
                return json_response(model_metadata(state.spec, states))
            case "model_ready":
                ready = state.state == "READY" and self._is_ready()
                document = {"name": route.model, "ready": ready, "state": state.state, "reason": state.reason}
                return json_response(document, 200 if ready else 503)
            case "config":
                return json_response(model_config(state.spec))
            case _:
                return self._statistics([state] if route.version else states)

    def _statistics(self, states: Sequence[ModelState]) -> HttpResponse:
        offset_ns = time.time_ns() - monotonic_ns()
        specs = [state.spec for state in states]
        elements = [
            model_statistics(spec, self._stats_by_model.get(spec.key) or ModelStats(), offset_ns) for spec in specs
        ]
        return json_response({"model_stats": elements})


def _decode_optional(body: bytes, kind: type[T]) -> T:
    """Decode a JSON object. The body may be empty: tritonclient requests the index without one. Raise `TooLarge`."""
    if len(body) > OPTIONAL_BYTES:
        raise TooLarge(f"body: got {len(body)} bytes of JSON, at most {OPTIONAL_BYTES}")
    try:
        return msgspec.json.decode(body.strip() or b"{}", type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(f"body: {error}") from error


def _version_key(state: ModelState) -> tuple[tuple[int, int, str], ...]:
    return natural_sort_key(state.spec.version)


def choose_version(states: Sequence[ModelState], model: str, version: str) -> ModelState:
    """Return the requested version, or else the newest READY one, or else the newest. Raise `UnknownModel`."""
    candidates = sorted((state for state in states if version in ("", state.spec.version)), key=_version_key)
    ready = [state for state in candidates if state.state == "READY"]
    if not candidates:
        raise UnknownModel(f"model {model!r}{f' version {version!r}' if version else ''} is unknown")
    return (ready or candidates)[-1]


def model_metadata(spec: ModelSpec, states: Sequence[ModelState]) -> dict[str, Any]:
    """Return the response to `GET /v2/models/{m}`. `states`: all versions of the model."""
    return {
        "name": spec.name,
        "versions": [state.spec.version for state in sorted(states, key=_version_key) if state.spec.version],
        "platform": PLATFORMS.get(spec.runtime, spec.runtime),
        "inputs": [_tensor(tensor) for tensor in spec.inputs],
        "outputs": [_tensor(tensor) for tensor in spec.outputs],
    }


def _tensor(tensor: TensorSpec) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}


def model_config(spec: ModelSpec) -> dict[str, Any]:
    """Return the response to `GET /v2/models/{m}/config`: the fields of Triton's ModelConfig that apply here."""
    content: dict[str, Any] = {
        "name": spec.name,
        "platform": PLATFORMS.get(spec.runtime, ""),
        "backend": BACKENDS.get(spec.runtime, spec.runtime),
        "max_batch_size": spec.max_batch if spec.batched else 0,
        "input": [_io(tensor, spec.batched) for tensor in spec.inputs],
        "output": [_io(tensor, spec.batched) for tensor in spec.outputs],
        "response_cache": {"enable": spec.cache},
        "parameters": {
            "slo_ns": {"string_value": str(spec.slo_ns)},
            "content_hash": {"string_value": spec.content_hash},
        },
    }
    if spec.notes:
        content["parameters"]["notes"] = {"string_value": "; ".join(spec.notes)}
    if spec.batched:
        content["dynamic_batching"] = {"preferred_batch_size": spec.batch_sizes}
    return content


def _io(tensor: TensorSpec, batched: bool) -> dict[str, Any]:
    kind = "STRING" if tensor.datatype == "BYTES" else tensor.datatype
    return {"name": tensor.name, "data_type": f"TYPE_{kind}", "dims": tensor.shape[1:] if batched else tensor.shape}


def repository_index(states: Sequence[ModelState], ready_only: bool) -> list[dict[str, str]]:
    """Return the response to `POST /v2/repository/index`. The reason also has the notes about the model."""
    return [
        {
            "name": state.spec.name,
            "version": state.spec.version,
            "state": state.state,
            "reason": "; ".join(filter(None, (state.reason, *state.spec.notes))),
        }
        for state in sorted(states, key=lambda state: (state.spec.name, _version_key(state)))
        if state.state == "READY" or not ready_only
    ]


def model_statistics(spec: ModelSpec, stats: ModelStats, epoch_minus_monotonic_ns: int) -> dict[str, Any]:
    """Return one element of `model_stats` (Triton's docs/protocol/extension_statistics.md).

    `compute_input` and `compute_output` have the count of `compute_infer`, as perf_analyzer demands. Their durations
    are 0, because the time of the transfers is part of `queue`.
    """
    last_ns = stats.last_ns and stats.last_ns + epoch_minus_monotonic_ns
    return {
        "name": spec.name,
        "version": spec.version,
        "last_inference": last_ns // 1_000_000,
        "inference_count": stats.rows,
        "execution_count": round(sum(batch.executions for batch in stats.batches.values())),
        "inference_stats": {
            "success": stats.success,
            "fail": stats.fail,
            "queue": stats.queue,
            **_compute(stats.compute_infer.count, stats.compute_infer.ns),
            "cache_hit": stats.cache_hit,
            "cache_miss": stats.cache_miss,
        },
        "response_stats": {},
        "batch_stats": [
            {"batch_size": size, **_compute(round(batch.executions), round(batch.exec_ns))}
            for size, batch in sorted(stats.batches.items())
        ],
        "memory_usage": [],
    }


def _compute(count: int, infer_ns: int) -> dict[str, Any]:
    transfer = {"count": count, "ns": 0}
    return {"compute_input": transfer, "compute_infer": {"count": count, "ns": infer_ns}, "compute_output": transfer}
