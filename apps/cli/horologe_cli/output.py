"""What commands share: where they speak, how they fail, and the client they ask with."""

from __future__ import annotations

import json
import sys
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from horologe import Client

DEFAULT_ENDPOINT = "tcp://127.0.0.1:8003"


class ExitCode(IntEnum):
    """Exit codes, the same for every command."""

    OK = 0
    FAILED = 1
    """The answer was an error, or a promise did not hold."""
    USAGE = 2
    """Wrong arguments, unreadable input, impossible settings."""
    UNREACHABLE = 3
    """Nobody answered at the endpoint."""


Endpoint = Annotated[
    str,
    typer.Option("--endpoint", "-e", envvar="HOROLOGE_ENDPOINT", help="Where a frontend takes clients.", metavar="URL"),
]
Keys = Annotated[
    str,
    typer.Option("--keys", envvar="HOROLOGE_KEYS", help="Folder made by `horologe keys`.", metavar="DIR"),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, nothing else.")]


def console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


def stderr_console() -> Console:
    """For people only: what is said here goes to standard error."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def print_json(document: Any) -> None:
    sys.stdout.write(json.dumps(document, default=_plain) + "\n")
    sys.stdout.flush()


def fail(message: str, code: ExitCode = ExitCode.FAILED) -> NoReturn:
    """End the command with one line on standard error."""
    sys.stderr.write(f"horologe: {message}\n")
    raise SystemExit(int(code))


def open_client(endpoint: str, keys: str = "") -> Client:
    """A client of `endpoint`. Ends the command where it cannot be one."""
    from horologe import Client
    from horologe_common.status import HorologeError

    if not endpoint.startswith(("tcp://", "ipc://")):
        fail(f"--endpoint: got {endpoint!r}, wanted tcp://HOST:PORT or ipc://PATH", ExitCode.USAGE)
    try:
        return Client(endpoint, keys=keys or None)
    except (HorologeError, OSError, ValueError) as error:
        fail(f"--endpoint {endpoint}: {error}", ExitCode.USAGE)


def fail_with(error: Exception, endpoint: str) -> NoReturn:
    """End the command with what a `HorologeError` says."""
    from horologe_common.service.settings import SettingsError
    from horologe_common.status import HorologeError, Lost

    if isinstance(error, SettingsError):
        fail(error.reason, ExitCode.USAGE)
    if isinstance(error, Lost) and endpoint:
        fail(f"no answer from {endpoint}: {error}; is it running? (`horologe up`, --endpoint)", ExitCode.UNREACHABLE)
    if isinstance(error, HorologeError):
        again = f"; possible in {error.retry_after_ns / 1e6:.1f} ms" if error.retry_after_ns else ""
        fail(f"{error.status.name}: {error}{again}")
    raise error


def call_server(endpoint: str, keys: str, question: Callable[[Client], Any]) -> Any:
    """What the server answers; ends the command if that is an error."""
    with open_client(endpoint, keys) as client:
        try:
            return question(client)
        except Exception as error:
            fail_with(error, endpoint)


def print_result(document: dict[str, Any], words: str, json: bool) -> None:
    """What a command says that has done what it was to do."""
    if json:
        print_json(document)
    else:
        console().print(words, markup=False)


def _plain(value: Any) -> Any:
    """numpy scalars and arrays, structs and paths as JSON can say them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "__struct_fields__"):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    return str(value)
