"""Paths: of the Open Inference Protocol and its extensions, and of applications."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

from horologe_frontend.http.responses import HttpError

GET, POST, EITHER, STORED = ("GET",), ("POST",), ("GET", "POST"), ("GET", "PUT", "DELETE")
LIVE, READY = "/v2/health/live", "/v2/health/ready"
CACHED_PATH = 256
"""Longer paths are parsed each time, so that the cache holds at most a few hundred kilobytes."""


class Route(NamedTuple):
    """What a path asks for, by which verbs, of which model (or application) and version (empty: not named)."""

    name: str
    verbs: tuple[str, ...]
    model: str = ""
    version: str = ""


def route(path: str, verb: str) -> Route:
    """Raises `HttpError` 404 for an unknown path and 405 for a verb it does not have. HEAD counts as GET."""
    found = _cached(path) if len(path) <= CACHED_PATH else _parse(path)
    if found is None:
        raise HttpError(404, "unknown path")
    if (verb if verb != "HEAD" else "GET") not in found.verbs:
        allowed = ", ".join((*found.verbs, "HEAD") if "GET" in found.verbs else found.verbs)
        raise HttpError(405, f"method: got {verb[:20]}, wanted {allowed}", ((b"allow", allowed.encode()),))
    return found


def _parse(path: str) -> Route | None:
    try:
        segments = [unquote(segment, errors="strict") for segment in path.strip("/").split("/")]
    except UnicodeDecodeError:  # two names that are no text must not become the same
        return None
    if segments[:2] == ["v1", "applications"] and path.startswith("/"):
        return _application(segments[2:])
    if segments[0] != "v2" or not path.startswith("/"):
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
            return _model(model, rest)
        case ["repository", *rest]:
            return _repository(rest)
        case ["systemsharedmemory" | "cudasharedmemory", *_]:
            return Route("shared_memory", EITHER)
        case ["logging"] | ["trace", "setting"]:
            return Route("unsupported", EITHER)
        case _:
            return None


_cached = lru_cache(maxsize=1024)(_parse)


def _model(model: str, rest: list[str]) -> Route | None:
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
            return Route("unsupported", EITHER)
        case _:
            return None


def _application(rest: list[str]) -> Route | None:
    match rest:
        case []:
            return Route("applications", GET)
        case [name] if name:
            return Route("application", STORED, name)
        case [name, ("predict" | "feedback" | "rollback") as verb] if name:
            return Route(f"application_{verb}", POST, name)
        case _:
            return None


def _repository(rest: list[str]) -> Route | None:
    """With or without the name of a repository in front; there is only one, so its name does not matter."""
    match rest:
        case ["index"] | [_, "index"]:
            return Route("index", POST)
        case ["models", model, name] | [_, "models", model, name] if model and name in ("load", "unload"):
            return Route(name, POST, model)
        case _:
            return None
