"""Parts that all commands share: options, output, exit codes, errors and the client of a running system."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec
import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from horologe import Client

DEFAULT_ENDPOINT = "tcp://127.0.0.1:8003"


class ExitCode(IntEnum):
    """Exit codes, the same for every command."""

    OK = 0
    FAILED = 1
    """The server returned an error, or a check failed."""
    USAGE = 2
    """Wrong arguments, unreadable input or invalid settings."""
    UNREACHABLE = 3
    """No server answered at the endpoint."""


Endpoint = Annotated[
    str,
    typer.Option("--endpoint", "-e", envvar="HOROLOGE_ENDPOINT", help="Client endpoint of a frontend.", metavar="URL"),
]
Keys = Annotated[
    str,
    typer.Option("--keys", envvar="HOROLOGE_KEYS", help="Folder created by `horologe keys`.", metavar="DIR"),
]
Input = Annotated[
    str, typer.Option("--input", "-i", help="A .npy or .npz file, JSON text, or - for JSON on standard input.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output and nothing else.")]


def console() -> Console:
    """Return a console on standard output. In files and pipes it breaks and cuts no line."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def stderr_console() -> Console:
    """Return a console on standard error, for progress and hints that are not part of the result."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())


def is_silent(json: bool) -> bool:
    """Return whether to show no progress bar: with --json, and in files and pipes, where it would be an empty line."""
    return json or not sys.stderr.isatty()


@contextmanager
def progress_bar(text: str, json: bool) -> Iterator[Callable[..., None]]:
    """Show a progress bar. Yields a function of the share that is finished and, if it changes, the text."""
    from rich.progress import Progress

    with Progress(console=stderr_console(), transient=True, disable=is_silent(json)) as progress:
        task = progress.add_task(text, total=1.0)
        yield lambda done, text=text: progress.update(task, completed=done, description=text)


def command_group(help: str) -> typer.Typer:
    """Return a group of commands, such as `horologe pipeline`."""
    names = {"help_option_names": ["-h", "--help"]}
    return typer.Typer(help=help, no_args_is_help=True, rich_markup_mode=None, context_settings=names)


def print_json(document: Any) -> None:
    sys.stdout.write(json.dumps(document, default=_to_builtin) + "\n")
    sys.stdout.flush()


def show_bytes(value: bytes) -> str:
    r"""Return an element of a BYTES tensor as text. Bytes that are not UTF-8 are shown as `\xff`."""
    return value.decode(errors="backslashreplace")


def print_result(document: dict[str, Any], text: str, json: bool) -> None:
    """Print `document` if `json` is set, else `text`."""
    if json:
        print_json(document)
    else:
        console().print(text, markup=False)


def fail(message: str, code: ExitCode = ExitCode.FAILED) -> NoReturn:
    """End the command with one line on standard error."""
    sys.stderr.write(f"horologe: {message}\n")
    raise SystemExit(int(code))


def fail_with(error: Exception, endpoint: str) -> NoReturn:
    """End the command with the reason of a `HorologeError`, or the file of an OSError. Raise others again."""
    from horologe_common.service.settings import SettingsError
    from horologe_common.status import HorologeError, Lost

    if isinstance(error, SettingsError):
        fail(error.reason, ExitCode.USAGE)
    if isinstance(error, OSError) and error.filename:
        fail(f"{error.filename}: {error.strerror}", ExitCode.USAGE)
    if isinstance(error, Lost) and endpoint:
        fail(f"no answer from {endpoint}: {error}; is it running? (`horologe up`, --endpoint)", ExitCode.UNREACHABLE)
    if isinstance(error, HorologeError):
        retry = f"; retry after {-(-error.retry_after_ns // 1000) / 1000:g} ms" if error.retry_after_ns else ""
        fail(f"{error.status.name}: {error}{retry}")
    raise error


def open_client(endpoint: str, keys: str = "") -> Client:
    """Return a client of `endpoint`. End the command if the endpoint or the keys are invalid, or if nothing listens."""
    from horologe import Client
    from horologe_cli.refused_endpoints import is_refused
    from horologe_common.status import HorologeError, Lost

    if not endpoint.startswith(("tcp://", "ipc://")):
        fail(f"--endpoint: got {endpoint!r}, wanted tcp://HOST:PORT or ipc://PATH", ExitCode.USAGE)
    try:
        client = Client(endpoint, keys=keys or None)
    except (HorologeError, OSError, ValueError) as error:
        fail(f"--endpoint {endpoint}: {error}", ExitCode.USAGE)
    if is_refused(endpoint):
        client.close()
        fail_with(Lost("nothing listens there"), endpoint)
    return client


def call_server(endpoint: str, keys: str, call: Callable[[Client], Any]) -> Any:
    """Return the result of `call(client)`. End the command if the call raises a `HorologeError`."""
    with open_client(endpoint, keys) as client:
        try:
            return call(client)
        except Exception as error:
            fail_with(error, endpoint)


def _to_builtin(value: Any) -> Any:
    """Convert numpy values, strings of BYTES tensors, structs and paths for JSON."""
    if isinstance(value, bytes):
        return show_bytes(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    return msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else str(value)
