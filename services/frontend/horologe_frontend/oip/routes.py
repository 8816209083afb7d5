"""Routes of the HTTP API: the Open Inference Protocol with its extensions, applications, and the console."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

from horologe_frontend.http.http_messages import HttpError

GET, POST = ("GET", "HEAD"), ("POST",)
GET_OR_POST, RESOURCE = ("GET", "POST", "HEAD"), ("GET", "PUT", "DELETE", "HEAD")
LIVE, READY = "/v2/health/live", "/v2/health/ready"
CACHED_PATH = 256
"""Maximum length of a cached path, so that the cache takes at most a few hundred kilobytes."""


class HttpRoute(NamedTuple):
    """The operation that a path stands for, its methods, and the model (or application) and version in the path."""

    name: str
    methods: tuple[str, ...]
    model: str = ""
    version: str = ""
    """Empty: the path names no version."""


FIXED_ROUTES = {
    ("console",): HttpRoute("console", GET),
    ("console", "console.css"): HttpRoute("console_style", GET),
    ("console", "console.js"): HttpRoute("console_script", GET),
    ("console", "events"): HttpRoute("console_events", ("GET",)),
    ("v1", "applications"): HttpRoute("applications", GET),
    ("v2",): HttpRoute("server", GET),
    ("v2", "health", "live"): HttpRoute("live", GET),
    ("v2", "health", "ready"): HttpRoute("ready", GET),
    ("v2", "models"): HttpRoute("models", GET),
    ("v2", "models", "stats"): HttpRoute("all_stats", GET),
    ("v2", "logging"): HttpRoute("unsupported", GET_OR_POST),
    ("v2", "trace", "setting"): HttpRoute("unsupported", GET_OR_POST),
}


def method_not_allowed(route: HttpRoute, method: str) -> HttpError:
    allowed = ", ".join(route.methods)
    return HttpError(405, f"method: got {method[:20]}, wanted {allowed}", ((b"allow", allowed.encode()),))


def parse_route(path: str) -> HttpRoute:
    """Return the route of a path. Raise `HttpError` 404 for an unknown path."""
    try:
        segments = tuple([unquote(segment, errors="strict") for segment in path.strip("/").split("/")])
    except UnicodeDecodeError:  # with a replacement character, two different names would become equal
        segments = ()
    route = _match_segments(segments) if path.startswith("/") and segments else None
    if route is None:
        raise HttpError(404, "unknown path")
    return route


cached_route = lru_cache(maxsize=1024)(parse_route)
"""`parse_route` with a cache, for paths up to `CACHED_PATH`."""


def _match_segments(segments: tuple[str, ...]) -> HttpRoute | None:
    """Return the route, or None for an unknown path.

    Repository paths may hold the name of a repository, which is ignored because there is only one.
    """
    match segments:
        case "v1", "applications", name if name:
            return HttpRoute("application", RESOURCE, name)
        case "v1", "applications", name, ("predict" | "feedback" | "rollback") as operation if name:
            return HttpRoute(f"application_{operation}", POST, name)
        case "v2", "models", model, "versions", version, *rest if model and version:
            return _model_route(model, version, rest)
        case "v2", "models", model, *rest if model and segments not in FIXED_ROUTES:
            return _model_route(model, "", rest)
        case ("v2", "repository", "index") | ("v2", "repository", _, "index"):
            return HttpRoute("index", POST)
        case ("v2", "repository", "models", model, ("load" | "unload") as name) | (
            "v2",
            "repository",
            _,
            "models",
            model,
            ("load" | "unload") as name,
        ) if model:
            return HttpRoute(name, POST, model)
        case "v2", "systemsharedmemory" | "cudasharedmemory", *_:
            return HttpRoute("shared_memory", GET_OR_POST)
    return FIXED_ROUTES.get(segments)


def _model_route(model: str, version: str, rest: list[str]) -> HttpRoute | None:
    match rest:
        case []:
            return HttpRoute("metadata", GET, model, version)
        case ["infer"]:
            return HttpRoute("infer", POST, model, version)
        case ["ready"]:
            return HttpRoute("model_ready", GET, model, version)
        case [("config" | "stats") as name]:
            return HttpRoute(name, GET, model, version)
        case ["trace", "setting"] if not version:
            return HttpRoute("unsupported", GET_OR_POST)
    return None
