"""The files of the console: one page, its style and its script. They hold no data, so they need no key."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from horologe_frontend.http.http_messages import HttpResponse

FILES = {
    "console": ("console.html", b"text/html; charset=utf-8"),
    "console_style": ("console.css", b"text/css; charset=utf-8"),
    "console_script": ("console.js", b"text/javascript; charset=utf-8"),
}
"""Name of the route -> file and content type."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)


@cache
def console_file(route: str) -> HttpResponse:
    """Return a file of the console by the name of its route."""
    name, content_type = FILES[route]
    return HttpResponse(200, files(__package__).joinpath(name).read_bytes(), content_type, HEADERS)
