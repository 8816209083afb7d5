"""The probe for a Docker engine: a machine without a usable engine skips container tests, and no socket stays open."""

from __future__ import annotations

import gc
import os
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import TYPE_CHECKING, Any

import pytest

from compose import engine, stack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

EXAMPLE_VERSION = b'{"ApiVersion": "1.45", "MinAPIVersion": "1.24"}'


class Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True


@contextmanager
def server_of(path: Path, answers: dict[str, bytes] | None) -> Iterator[None]:
    """Listen on a Unix socket. Answer each path with a body, any other path with 500; None: never answer."""
    stopping = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if answers is None:
                stopping.wait()
                return
            body = next((body for path, body in answers.items() if path in self.path), None)
            self.send_response(500 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        do_HEAD = do_GET

        def log_message(self, format: str, *args: Any) -> None: ...

    with Server(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            server.shutdown()
            thread.join()


def socket_without_listener(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    return f"unix://{path}"


def socket_in_a_private_folder(path: Path) -> str:
    """Return a socket that an ordinary user may not open. For root, it is a socket without a listener."""
    path.mkdir()
    host = socket_without_listener(path / "s")
    path.chmod(0)
    return host


HOSTS: dict[str, Callable[[Path], str]] = {
    "nothing listens": socket_without_listener,
    "no permission": socket_in_a_private_folder,
    "closed port": lambda path: "tcp://127.0.0.1:1",
    "unknown protocol": lambda path: "pigeon://here",
}


@pytest.mark.parametrize("host", HOSTS)
def test_an_engine_that_cannot_be_reached_has_a_reason_and_leaves_no_socket(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", HOSTS[host](tmp_path / "s"))
    before = set(os.listdir("/proc/self/fd"))
    assert engine.explain_no_engine(5)
    gc.collect()  # an open socket that is collected is a warning, and warnings are errors
    assert set(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("answers", [None, {}, {"/version": b"<html>"}], ids=["silent", "errors", "not Docker"])
def test_a_server_that_is_no_working_engine_has_a_reason(
    answers: dict[str, bytes] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/s")
    with server_of(tmp_path / "s", answers):
        assert engine.explain_no_engine(1)


def test_an_engine_that_answers_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/s")
    with server_of(tmp_path / "s", {"/version": EXAMPLE_VERSION, "/_ping": b"OK"}):
        assert engine.explain_no_engine(5) == ""


def test_without_an_engine_every_container_test_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_claim_engine", lambda: ("connection refused", None))
    for use in (engine.require_engine, stack.compose_command, lambda: engine.open_engine().__enter__()):
        with pytest.raises(pytest.skip.Exception, match="connection refused"):
            use()


def test_one_process_at_a_time_uses_the_engine(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with engine.lock_engine(path):
        assert engine.lock_engine(path) is None
    path.chmod(0o444)  # of another user
    with engine.lock_engine(path) as file:
        assert file


@pytest.mark.parametrize(
    ("programs", "command"),
    [
        ({"docker": 0}, "docker compose"),
        ({"docker": 1, "docker-compose": 0}, "docker-compose"),
        ({"docker": 1}, ""),
    ],
)
def test_the_command_of_compose_is_one_that_works(
    programs: dict[str, int], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_claim_engine", lambda: ("", None))
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, code in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    if command:
        assert stack.compose_command() == command.split()
    else:
        with pytest.raises(pytest.skip.Exception, match="docker compose"):
            stack.compose_command()
