"""The table of the HTTP API: the Open Inference Protocol with its extensions, applications, and the console.

Requests are routed by it, the handlers choose by the names in it, and the OpenAPI document is written from it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from horologe_frontend.core.access import Scope
from horologe_frontend.oip.applications_json import (
    ApplicationJson,
    ApplicationsJson,
    DeclareJson,
    FeedbackJson,
    FeedbackStatusJson,
    PredictionJson,
)
from horologe_frontend.oip.inference_response import AnswerJson
from horologe_frontend.oip.json_encoding import InferJson
from horologe_frontend.oip.models_http import IndexJson, LoadJson, UnloadJson
from horologe_frontend.oip.response_json import (
    ConfigJson,
    IndexEntryJson,
    LiveJson,
    MetadataJson,
    ModelNamesJson,
    ReadinessJson,
    ReadyJson,
    ServerJson,
    StatisticsJson,
)

KEY, INFER, READ, OBSERVE, MANAGE = Scope


class Operation(NamedTuple):
    """An operation of the API, and what the OpenAPI document says about it."""

    name: str
    method: str
    path: str
    """Segments in braces are parameters. The part in brackets may be missing."""
    summary: str
    answer: Any = None
    """Type of the JSON of the response. None: the response has no body, or not JSON."""
    body: Any = None
    """Type of the JSON of the request. If None is part of the type, the body may be missing."""
    errors: tuple[int, ...] = ()
    """Statuses of errors beside those that every operation may have."""
    scope: Scope | None = MANAGE
    """What the key of the client must permit, on the model or application in the path. None: it needs no key."""
    has_binary: bool = False
    """Request and response may have binary data."""
    has_unready: bool = False
    """The response with status 503 has the document of the answer."""
    query: tuple[str, ...] = ()
    is_events: bool = False
    """The response has server-sent events."""

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the accepted methods: GET stands for HEAD too, except for a stream, which has no end."""
        return ("GET", "HEAD") if self.method == "GET" and not self.is_events else (self.method,)

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the path without and with its optional part."""
        before, bracket, rest = self.path.partition("[")
        optional, _, after = rest.partition("]")
        return (before + after, before + optional + after) if bracket else (self.path,)


MODEL, APPLICATION = "/v2/models/{model}[/versions/{version}]", "/v1/applications/{application}"
REPOSITORY = "/v2/repository[/{repository}]"
"""The name of a repository is ignored, because there is only one."""
EXECUTION, REQUEST = (501, 503, 504), (503,)
"""Errors of operations that execute or load a model, and of those that ask another service."""
NO_SHARED_MEMORY = "shared memory is not supported: send tensors as binary data"
NO_PROTOCOL_V1 = "protocol v1 is not supported: use /v2/models"
NO_SETTINGS = "trace and logging settings are not supported over HTTP"


def _unsupported(reason: str, *operations: str) -> tuple[Operation, ...]:
    """Return operations of other servers, each as `METHOD path`. They are answered with 501 and the reason."""
    pairs = [operation.split() for operation in operations]
    return tuple(Operation("unsupported", method, path, reason, errors=(501,), scope=KEY) for method, path in pairs)


def _shared_memory(regions: str) -> tuple[Operation, ...]:
    paths = f"GET {regions}[/region/{{region}}]/status", f"POST {regions}[/region/{{region}}]/unregister"
    return _unsupported(NO_SHARED_MEMORY, *paths, f"POST {regions}/region/{{region}}/register")


def _settings(path: str) -> tuple[Operation, ...]:
    return _unsupported(NO_SETTINGS, f"GET {path}", f"POST {path}")


# fmt: off
OPERATIONS: dict[str, tuple[Operation, ...]] = {
    "server": (
        Operation("live", "GET", "/v2/health/live", "Is the server running?", LiveJson, scope=None),
        Operation("ready", "GET", "/v2/health/ready", "Does the server accept requests?", ReadyJson, scope=None,
                  has_unready=True),
        Operation("server", "GET", "/v2", "Get name, version and extensions of the server", ServerJson, scope=KEY),
        Operation("openapi", "GET", "/v2/openapi.json", "Get this document", dict[str, Any], scope=KEY),
    ),
    "models": (
        Operation("models", "GET", "/v2/models", "Get the names of all models", ModelNamesJson, scope=OBSERVE),
        Operation("metadata", "GET", MODEL, "Get versions, inputs and outputs of a model", MetadataJson, scope=READ),
        Operation("model_ready", "GET", f"{MODEL}/ready", "Does a model accept requests?", ReadinessJson,
                  has_unready=True, scope=READ),
        Operation("infer", "POST", f"{MODEL}/infer", "Get a prediction", AnswerJson, InferJson, EXECUTION,
                  has_binary=True, scope=INFER),
        Operation("generate", "POST", f"{MODEL}/generate", "Get the only item of a stream", dict[str, Any],
                  dict[str, Any], EXECUTION, scope=INFER),
        Operation("generate_stream", "POST", f"{MODEL}/generate_stream", "Get the items of a stream, as events", None,
                  dict[str, Any], EXECUTION, scope=INFER, is_events=True),
        Operation("config", "GET", f"{MODEL}/config", "Get the configuration of a model", ConfigJson, scope=READ),
        Operation("stats", "GET", f"{MODEL}/stats", "Get counts and durations of a model", StatisticsJson,
                  scope=OBSERVE),
        Operation("all_stats", "GET", "/v2/models/stats", "Get counts and durations of all models", StatisticsJson,
                  scope=OBSERVE),
    ),
    "repository": (
        Operation("index", "POST", f"{REPOSITORY}/index", "Get all versions of all models", list[IndexEntryJson],
                  IndexJson | None, scope=OBSERVE),
        Operation("load", "POST", f"{REPOSITORY}/models/{{model}}/load", "Load a model from the repository again",
                  list[IndexEntryJson], LoadJson | None, EXECUTION, MANAGE),
        Operation("unload", "POST", f"{REPOSITORY}/models/{{model}}/unload", "Unload a model", None,
                  UnloadJson | None, EXECUTION, MANAGE),
    ),
    "applications": (
        Operation("applications", "GET", "/v1/applications", "Get all applications", ApplicationsJson, None, REQUEST,
                  scope=OBSERVE),
        Operation("application", "GET", APPLICATION, "Get an application, with statistics of its models",
                  ApplicationJson, None, REQUEST, query=("context",), scope=OBSERVE),
        Operation("application_declare", "PUT", APPLICATION, "Create or replace an application", ApplicationJson,
                  DeclareJson, REQUEST, MANAGE),
        Operation("application_withdraw", "DELETE", APPLICATION, "Delete an application and its learned state",
                  dict[str, Any], None, REQUEST, MANAGE),
        Operation("application_rollback", "POST", f"{APPLICATION}/rollback", "Restore the last declaration",
                  ApplicationJson, None, REQUEST, MANAGE),
        Operation("application_predict", "POST", f"{APPLICATION}/predict", "Get a prediction", PredictionJson,
                  InferJson, EXECUTION, has_binary=True, scope=INFER),
        Operation("application_feedback", "POST", f"{APPLICATION}/feedback", "Store what was true",
                  FeedbackStatusJson, FeedbackJson, (410, *EXECUTION), scope=INFER),
    ),
    "not supported": (
        *_shared_memory("/v2/systemsharedmemory"), *_shared_memory("/v2/cudasharedmemory"), *_settings("/v2/logging"),
        *_settings("/v2/trace/setting"), *_settings("/v2/models/{model}/trace/setting"),
        *_unsupported(NO_PROTOCOL_V1, "GET /v1/models/{model}", "POST /v1/models/{model}"),
    ),
    "console": (
        Operation("console", "GET", "/console", "The page", scope=None),
        Operation("console_style", "GET", "/console/console.css", "Its style", scope=None),
        Operation("console_script", "GET", "/console/console.js", "Its script", scope=None),
        Operation("console_events", "GET", "/console/events", "Its data, as server-sent events", scope=OBSERVE,
                  is_events=True),
    ),
}
# fmt: on
"""Operations by group."""
OPEN_PATHS = frozenset(
    operation.path for group in OPERATIONS.values() for operation in group if operation.scope is None
)
