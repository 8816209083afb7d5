"""Runs the whole system as processes of this machine, with sockets in a private folder, until a signal stops it."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from horologe_cli.local.supervisor import Supervisor
from horologe_cli.local.topology import build_topology
from horologe_cli.local.worker_pool import ControlServer, WorkerPool
from horologe_common.pipelines import PIPELINE_RUNTIME
from horologe_common.service.settings import SettingsError
from horologe_common.status import HorologeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from horologe import Client
    from horologe_cli.local.supervisor import ChildExit
    from horologe_cli.local.topology import SystemOptions
    from horologe_common.wire import Description, ModelState

SOCKET_PATH_LIMIT = 80
"""Bytes. The path of a Unix socket has at most 107 bytes; the rest is for the names within the folder."""
REQUEST_TIMEOUT_S = 0.5
POLL_S = 0.05
SIGNAL_POLL_S = 0.1
"""The kernel may deliver a signal to any thread, and Python runs the handler when the main thread runs next. A main
thread that waits without a timeout would never run it."""
SIGNAL_GROUP_S = 0.5
"""Some programs signal the process and then its group. Signals within this time are one request to stop."""
HTTP_OK = 200


class NotReady(HorologeError):
    """The system did not start. The reason includes the last log line of the process that failed."""


class StopSignal:
    """Set by the first SIGINT, SIGTERM or SIGHUP. The second one ends this process, and its children with it."""

    def __init__(self) -> None:
        self._requested_s: float | None = None

    def install_handlers(self) -> StopSignal:
        """Install the signal handlers. Call this from the main thread."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        return self

    def is_set(self) -> bool:
        return self._requested_s is not None

    def wait(self) -> None:
        while self._requested_s is None:
            time.sleep(SIGNAL_POLL_S)

    def _on_signal(self, number: int, _: object) -> None:
        """Store the first signal; exit on a second one. Takes no lock: the interrupted code may hold it."""
        now_s = time.monotonic()
        if self._requested_s is None:
            self._requested_s = now_s
        elif now_s > self._requested_s + SIGNAL_GROUP_S:
            os._exit(128 + number)


class LocalSystem:
    """All processes of a local system. Use it as a context manager, which starts and kills them.

    `on_line(process, line)` is called for every log line. Raises SettingsError for invalid settings.
    """

    def __init__(self, options: SystemOptions, on_line: Callable[[str, str], None]) -> None:
        self._folder = _private_folder()
        try:
            self.topology = build_topology(options, self._folder)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._on_line = on_line
        self._last_lines: dict[str, str] = {}
        self._failed: ChildExit | None = None
        self._ready = threading.Event()
        self.supervisor = Supervisor(self.topology.children, self._on_child_line, self._on_child_exit)
        self._control: ControlServer | None = None

    def __enter__(self) -> LocalSystem:
        if self.topology.control:
            running = {worker.name: self.topology.hardware for worker in self.topology.layout.workers}
            pool = WorkerPool(self.supervisor, running, self.topology.create_worker, self.topology.create_share)
            self._control = ControlServer(self.topology.control, pool)
            self._control.start()
        self.supervisor.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._control:
            self._control.close()
        self.supervisor.abort()
        shutil.rmtree(self._folder, ignore_errors=True)

    def wait_ready(
        self, timeout_s: float, stop: StopSignal | None = None, *, accept_loading: bool = False
    ) -> tuple[Description, list[ModelState]] | None:
        """Wait until all workers and the tuner are connected and no model is loading; return cluster and models.

        Return None if `stop` is set first. Raises NotReady if a process fails, or after `timeout_s` seconds. With
        `accept_loading`, models may still be loading then.
        """
        from horologe import Client

        end = time.monotonic() + timeout_s
        with Client(self.topology.clients[0], keys=self.topology.keys or None) as client:
            while time.monotonic() < end and not (stop and stop.is_set()):
                if failed := self._failed:
                    last_line = self._last_lines.get(failed.name, "it logged nothing")
                    raise NotReady(f"{failed.name} ended with exit code {failed.code} before it was ready: {last_line}")
                if state := self._read_state(client):
                    self._ready.set()
                    return state
                time.sleep(POLL_S)
            if stop and stop.is_set():
                return None
            if accept_loading and (state := self._read_state(client, is_partial=True)):
                self._ready.set()
                return state
        raise NotReady(f"not ready after {timeout_s:.0f} s; see the log above")

    def _read_state(self, client: Client, *, is_partial: bool = False) -> tuple[Description, list[ModelState]] | None:
        try:
            description, models = client.describe(timeout=REQUEST_TIMEOUT_S), client.models(timeout=REQUEST_TIMEOUT_S)
            if self.topology.control:
                client.tune("status", timeout=REQUEST_TIMEOUT_S)  # LOST until the tuner is connected
        except HorologeError:
            return None
        workers = {share.worker for share in description.shares}
        loaded = is_partial or not any(is_loading(state) for state in models)
        are_registered = len(workers) >= len(self.topology.layout.workers)
        if not (are_registered and loaded and (is_partial or _http_ready(self.topology.http))):
            return None
        return description, models

    def _on_child_line(self, name: str, line: str) -> None:
        if self._failed is None:  # else the command has printed its last line, the reason
            self._last_lines[name] = line
            self._on_line(name, line)

    def _on_child_exit(self, exit: ChildExit) -> None:
        if exit.expected or self._failed:
            return
        cause = f"killed by signal {-exit.code}" if exit.code < 0 else f"ended with exit code {exit.code}"
        self._on_line("supervisor", f"{exit.name} {cause}; restarting it")
        if not self._ready.is_set() and exit.code > 0:
            self._failed = exit  # last: `wait_ready` ends the command, whose last line is the reason


def is_loading(state: ModelState) -> bool:
    """Return whether a model may still be served soon. The others serve without a pipeline whose driver has failed."""
    has_failed = state.spec.runtime == PIPELINE_RUNTIME and bool(state.reason)
    return state.state == "LOADING" and not has_failed


def _private_folder() -> Path:
    """Create a folder with mode 0700 and a path short enough for Unix sockets."""
    for parent in (tempfile.gettempdir(), "/tmp"):
        if len(parent) + len("/horologe-12345678") <= SOCKET_PATH_LIMIT and Path(parent).is_dir():
            return Path(tempfile.mkdtemp(prefix="horologe-", dir=parent))
    raise SettingsError(f"TMPDIR: got {tempfile.gettempdir()!r}, wanted a folder with a shorter path")


def _http_ready(url: str) -> bool:
    """Return whether HTTP serves. urllib would send this request to a proxy if one is configured."""
    import ssl
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    scheme, _, address = url.partition("://")
    connection = HTTPConnection(address, timeout=REQUEST_TIMEOUT_S)
    if scheme == "https":  # its name is that of the machine, not that of a loopback address
        connection = HTTPSConnection(address, timeout=REQUEST_TIMEOUT_S, context=ssl._create_unverified_context())
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == HTTP_OK
    except (ConnectionRefusedError, TimeoutError):
        return False
    except (HTTPException, OSError):  # with TLS, it may serve but demand a certificate of its clients
        return scheme == "https"
    finally:
        connection.close()
