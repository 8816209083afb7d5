"""Routes of the HTTP API: the Open Inference Protocol with its extensions, and applications."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

from horologe_frontend.http.http_responses import HttpError

GET, POST = ("GET", "HEAD"), ("POST",)
GET_OR_POST, RESOURCE = ("GET", "POST", "HEAD"), ("GET", "PUT", "DELETE", "HEAD")
LIVE, READY = "/v2/health/live", "/v2/health/ready"
CACHED_PATH = 256
"""Maximum length of a cached path, so that the cache takes at most a few hundred kilobytes."""


class Route(NamedTuple):
    """The operation that a path stands for, its methods, and the model (or application) and version in the path."""

    name: str
    methods: tuple[str, ...]
    model: str = ""
    version: str = ""
    """Empty: the path names no version."""


def method_not_allowed(route: Route, method: str) -> HttpError:
    allowed = ", ".join(route.methods)
    return HttpError(405, f"method: got {method[:20]}, wanted {allowed}", ((b"allow", allowed.encode()),))


def parse_route(path: str) -> Route:
    """Return the route of a path. Raise `HttpError` 404 for an unknown path."""
    try:
        segments = [unquote(segment, errors="strict") for segment in path.strip("/").split("/")]
    except UnicodeDecodeError:  # with a replacement character, two different names would become equal
        segments = []
    route = _match_segments(segments) if path.startswith("/") and segments else None
    if route is None:
        raise HttpError(404, "unknown path")
    return route


cached_route = lru_cache(maxsize=1024)(parse_route)
"""`parse_route` with a cache, for paths up to `CACHED_PATH`."""


def _match_segments(segments: list[str]) -> Route | None:
    if segments[:2] == ["v1", "applications"]:
        return _application_route(segments[2:])
    if segments[0] != "v2":
        return None
    match segments[1:]:
        case []:
            return Route("server", GET)
        case ["health", ("live" | "ready") as name]:
            return Route(name, GET)
        case ["models"]:
            return Route("models", GET)
        case ["models", "stats"]:
            return Route("all_stats", GET)
        case ["models", model, *rest] if model:
            return _model_route(model, rest)
        case ["repository", *rest]:
            return _repository_route(rest)
        case ["systemsharedmemory" | "cudasharedmemory", *_]:
            return Route("shared_memory", GET_OR_POST)
        case ["logging"] | ["trace", "setting"]:
            return Route("unsupported", GET_OR_POST)
        case _:
            return None


def _model_route(model: str, rest: list[str]) -> Route | None:
    version = ""
    if len(rest) >= 2 and rest[0] == "versions" and rest[1]:
        version, rest = rest[1], rest[2:]
    match rest:
        case []:
            return Route("metadata", GET, model, version)
        case ["infer"]:
            return Route("infer", POST, model, version)
        case ["ready"]:
            return Route("model_ready", GET, model, version)
        case [("config" | "stats") as name]:
            return Route(name, GET, model, version)
        case ["trace", "setting"] if not version:
            return Route("unsupported", GET_OR_POST)
        case _:
            return None


def _application_route(rest: list[str]) -> Route | None:
    match rest:
        case []:
            return Route("applications", GET)
        case [name] if name:
            return Route("application", RESOURCE, name)
        case [name, ("predict" | "feedback" | "rollback") as operation] if name:
            return Route(f"application_{operation}", POST, name)
        case _:
            return None


def _repository_route(rest: list[str]) -> Route | None:
    """Accept the path with or without the name of a repository, which is ignored because there is only one."""
    match rest:
        case ["index"] | [_, "index"]:
            return Route("index", POST)
        case ["models", model, name] | [_, "models", model, name] if model and name in ("load", "unload"):
            return Route(name, POST, model)
        case _:
            return None
