"""Finds the operation of a request by its method and path."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import NamedTuple
from urllib.parse import unquote

from horologe_frontend.http.http_messages import HttpError
from horologe_frontend.oip.operations import OPERATIONS, Operation

CACHED_PATH = 256
"""Maximum length of a cached path, so that the cache takes at most a few hundred kilobytes."""


class HttpRoute(NamedTuple):
    """The operation of a request, with the model (or application) and the version in its path."""

    operation: Operation
    model: str = ""
    version: str = ""
    """Empty: the path names no version."""


def parse_route(method: str, path: str) -> HttpRoute:
    """Return the route of a request. Raise `HttpError` 404 for an unknown path, 405 for another method."""
    routes = _parse_path(path)
    route = routes.get(method)
    if route is None:
        allowed = ", ".join(routes)
        raise HttpError(405, f"method: got {method[:20]}, wanted {allowed}", ((b"allow", allowed.encode()),))
    return route


cached_route = lru_cache(maxsize=1024)(parse_route)
"""`parse_route` with a cache, for paths up to `CACHED_PATH`."""


def _parse_path(path: str) -> dict[str, HttpRoute]:
    """Return the routes of a path by method. Raise `HttpError` 404 for an unknown path."""
    try:
        segments = [unquote(segment, errors="strict") for segment in path.strip("/").split("/")]
    except UnicodeDecodeError:  # with a replacement character, two different names would become equal
        segments = []
    for template, operations in _templates().get(len(segments), {}).items() if path.startswith("/") else ():
        parameters = _match_segments(template, segments)
        if parameters is not None:
            model = parameters.get("{model}") or parameters.get("{application}", "")
            version = parameters.get("{version}", "")
            return {method: HttpRoute(operation, model, version) for method, operation in operations.items()}
    raise HttpError(404, "unknown path")


def _match_segments(template: tuple[str, ...], segments: list[str]) -> dict[str, str] | None:
    """Return the parameters in a path, which are not empty, or None if it does not match."""
    parameters = {}
    for wanted, segment in zip(template, segments, strict=True):
        if wanted[0] == "{" and segment:
            parameters[wanted] = segment
        elif wanted != segment:
            return None
    return parameters


@cache
def _templates() -> dict[int, dict[tuple[str, ...], dict[str, Operation]]]:
    """Return the operations by number of segments, path and method. Paths with fewer parameters come first."""
    pairs = [(path, operation) for group in OPERATIONS.values() for operation in group for path in operation.paths]
    templates: dict[int, dict[tuple[str, ...], dict[str, Operation]]] = {}
    for path, operation in sorted(pairs, key=lambda pair: pair[0].count("{")):
        segments = tuple(path.strip("/").split("/"))
        operations = templates.setdefault(len(segments), {}).setdefault(segments, {})
        operations |= dict.fromkeys(operation.methods, operation)
    return templates
