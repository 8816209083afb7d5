"""Requirements of a Python model: the lines that pip may install, and the line that an error of pip is about.

Only wheels are installed, because pip would run the code of a source package as the worker.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, NamedTuple

from horologe_common.service.user_files import read_file
from horologe_gpu_worker.repository.manifest import InvalidModel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OPTIONS_WITH_VALUE = ("--index-url", "-i", "--extra-index-url", "--find-links", "-f", "--trusted-host")
OPTIONS = (*OPTIONS_WITH_VALUE, "--no-index", "--only-binary=:all:", "--prefer-binary", "--pre", "--require-hashes")
_REQUIREMENT = re.compile(
    r"[A-Za-z0-9][\w.-]*\s*(\[[^\]]*\]\s*)?($|[<>=!~;(]|--hash=|@\s*(https?|file)://[^\s#?]+\.whl([#?\s]|$))"
)
_COMMENT = re.compile(r"(^|\s+)#.*$")
_VARIABLE = re.compile(r"\$\{\w+\}")
_ENCODING = re.compile(rb"\A([^\n]*\n)??#[^\n]*coding[:=]\s*([-\w.]+)")
"""Declaration in the first two lines by which pip decodes the file."""


class RequirementLine(NamedTuple):
    number: int
    text: str

    @property
    def name(self) -> str:
        """Return the name of the package, as pip writes it in errors."""
        return re.split(r"[^\w.-]", self.text, maxsplit=1)[0]


class RequirementsFile(NamedTuple):
    """A requirements file whose lines are checked."""

    path: Path
    content: bytes
    lines: tuple[RequirementLine, ...]

    def place_of(self, error: str) -> str:
        """Return path and number of the line whose package an error names; the path alone if it names none."""
        for line in self.lines:
            named = rf"(?<![\w.-]){re.escape(line.name)}(?![\w-])"
            if not line.text.startswith("-") and re.search(named, error, re.IGNORECASE):
                return f"{self.path} line {line.number}: {line.text[:100]}"
        return str(self.path)


def read_requirements(folder: Path, name: str) -> RequirementsFile:
    """Read a requirements file in a version's folder, else beside it.

    Raises `InvalidModel` naming line, got and wanted for a line that would install anything but wheels.
    """
    path = next((path for path in (folder / name, folder.parent / name) if path.is_file()), folder / name)
    try:
        content = read_file(path)
        if (declared := _ENCODING.match(content)) and declared[2].lower() not in (b"utf-8", b"utf8"):
            raise ValueError(f"coding: got {declared[2].decode()}, wanted utf-8")
        lines = tuple(_lines(content.decode("utf-8-sig")))
    except (OSError, ValueError) as error:  # ValueError: too large, or not UTF-8
        raise InvalidModel(f"{path}: {error}") from error
    for line in lines:
        if not _is_allowed(line.text):
            raise InvalidModel(
                f"{path} line {line.number}: got {line.text[:200]!r}, wanted a package with versions and hashes, the "
                f"URL of a wheel (`NAME @ URL`), or one of the options {', '.join(OPTIONS)}"
            )
    return RequirementsFile(path, content, lines)


def _lines(text: str) -> Iterator[RequirementLine]:
    """Iterate over the requirements and options. As in pip, a backslash joins the next line, except after a comment."""
    begin, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        begin = begin or number
        parts.append(line.removesuffix("\\"))
        if not line.endswith("\\") or _COMMENT.match(line):
            if joined := _COMMENT.sub("", " ".join(parts)).strip():
                yield RequirementLine(begin, joined)
            begin, parts = 0, []
    if joined := " ".join(parts).strip():
        yield RequirementLine(begin, joined)


def _is_allowed(text: str) -> bool:
    """Return whether a line can neither run code nor read the worker's environment variables.

    pip reads options anywhere in a line, and replaces `${NAME}` by variables.
    """
    try:
        words = shlex.split(text.replace("--only-binary ", "--only-binary="))
    except ValueError:
        return False
    options = [word for word in words if word.startswith("-")]
    if _VARIABLE.search(text):
        return False
    if text.startswith("-"):
        return all(word in OPTIONS or word.partition("=")[0] in OPTIONS_WITH_VALUE for word in options)
    return _REQUIREMENT.match(text) is not None and all(word.startswith("--hash=") for word in options)
