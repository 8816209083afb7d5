"""Where models come from: `worker.repository` is a folder or a URL, of a repository or of one model."""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

from horologe_common.service.settings import SettingsError

EXTRAS = {"s3": "s3", "gs": "gs", "az": "az", "hf": "hf", "http": "remote", "https": "remote"}
"""Protocol of a URL -> the extra with the packages that read it."""
_NAMED = re.compile(r"([^/=:\s#]+)=(.+)", re.DOTALL)
_URL = re.compile(r"[a-z0-9]+://")


class Source(NamedTuple):
    """A repository, or the model `name`, in the folder or at the URL `place`."""

    name: str
    place: str

    @property
    def is_remote(self) -> bool:
        return is_url(self.place)


def is_url(text: str) -> bool:
    return _URL.match(text) is not None


def parse_source(text: str) -> Source:
    """Return the source that `worker.repository` names: `PLACE` or `NAME=PLACE`.

    Raises `SettingsError` for a URL that no package can read.
    """
    named = None if os.path.isdir(text) else _NAMED.fullmatch(text)
    source = Source(named[1], named[2]) if named else Source("", text)
    if source.is_remote:
        try:
            check_url(source.place)
        except ValueError as error:
            raise SettingsError(f"setting worker.repository: {error}") from error
    return source


def check_url(url: str) -> None:
    """Raise ValueError for a URL whose protocol is not known, or that contains a password."""
    protocol = url.partition("://")[0]
    if protocol not in EXTRAS:
        raise ValueError(f"got {shown_url(url)!r}, wanted a URL of {', '.join(EXTRAS)}")
    if urlsplit(url).password is not None:
        raise ValueError(f"got a password in {shown_url(url)!r}, wanted it in the environment of the worker")


def shown_url(url: str) -> str:
    """Return a URL without user, password and query, which may be secret."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
