"""The whole system as processes of this machine, from a private folder of sockets to the moment it can serve."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from horologe_cli.local.supervisor import Supervisor
from horologe_cli.local.topology import build_topology
from horologe_common.service.settings import SettingsError
from horologe_common.status import HorologeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from horologe_cli.local.stop_signal import StopSignal
    from horologe_cli.local.supervisor import ChildExit
    from horologe_cli.local.topology import SystemOptions
    from horologe_common.wire import Description, ModelState

SOCKET_PATH_LIMIT = 80
"""A Unix socket's path has at most 107 bytes; this leaves room for the names within the folder."""
LINES_KEPT = 12
ASK_S = 0.5
POLL_S = 0.05
HTTP_OK = 200


class NotReady(HorologeError):
    """The system did not come up; the reason carries the last words of what failed."""


class LocalSystem:
    """Starts on entry and ends on exit. `on_line(process, line)` gets what the processes log."""

    def __init__(self, options: SystemOptions, on_line: Callable[[str, str], None]) -> None:
        self._folder = _private_folder()
        try:
            self.topology = build_topology(options, self._folder)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._on_line = on_line
        self._recent_lines = {child.name: deque[str](maxlen=LINES_KEPT) for child in self.topology.children}
        self._failed: ChildExit | None = None
        self._ready = threading.Event()
        self.supervisor = Supervisor(self.topology.children, self._on_child_line, self._on_child_exit)

    def __enter__(self) -> LocalSystem:
        self.supervisor.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.supervisor.abort()
        shutil.rmtree(self._folder, ignore_errors=True)

    def wait_ready(
        self, timeout_s: float, stop: StopSignal | None = None
    ) -> tuple[Description, list[ModelState]] | None:
        """Until every worker is there and no model is being loaded: the state of the cluster and the models.

        None if `stop` was set. Raises `NotReady` when a process ended by itself, or after `timeout_s`.
        """
        from horologe import Client

        end = time.monotonic() + timeout_s
        with Client(self.topology.clients[0], keys=self.topology.keys or None) as client:
            while time.monotonic() < end and not (stop and stop.is_set()):
                if self._failed:
                    raise NotReady(self._failure_reason(self._failed))
                if found := self._read_state(client):
                    self._ready.set()
                    return found
                time.sleep(POLL_S)
        if stop and stop.is_set():
            return None
        raise NotReady(f"not ready after {timeout_s:.0f} s; see the log above")

    def _read_state(self, client: object) -> tuple[Description, list[ModelState]] | None:
        from horologe import Client

        assert isinstance(client, Client)
        try:
            description, models = client.describe(timeout=ASK_S), client.models(timeout=ASK_S)
        except HorologeError:
            return None
        workers = {share.worker for share in description.shares}
        settled = all(state.state != "LOADING" for state in models)
        if len(workers) < self.topology.workers or not settled or not _http_ready(self.topology.http):
            return None
        return description, models

    def _on_child_line(self, name: str, line: str) -> None:
        self._recent_lines[name].append(line)
        self._on_line(name, line)

    def _on_child_exit(self, exit: ChildExit) -> None:
        if exit.expected:
            return
        if not self._ready.is_set() and exit.code > 0:
            self._failed = self._failed or exit
        how = f"killed by signal {-exit.code}" if exit.code < 0 else f"ended with {exit.code}"
        self._on_line("supervisor", f"{exit.name} {how}; starting it again")

    def _failure_reason(self, exit: ChildExit) -> str:
        lines = list(self._recent_lines[exit.name])
        said = lines[-1] if lines else "it said nothing"
        return f"{exit.name} ended with {exit.code} before it was ready: {said}"


def _private_folder() -> Path:
    """Mode 0700, short enough for the paths of Unix sockets."""
    for parent in (tempfile.gettempdir(), "/tmp"):
        if len(parent) + len("/horologe-12345678") <= SOCKET_PATH_LIMIT and Path(parent).is_dir():
            return Path(tempfile.mkdtemp(prefix="horologe-", dir=parent))
    raise SettingsError(f"TMPDIR: got {tempfile.gettempdir()!r}, wanted a folder with a shorter path")


def _http_ready(url: str) -> bool:
    """Asked without urllib: that would send a request for this machine through a proxy, were one set."""
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection(url.removeprefix("http://"), timeout=ASK_S)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == HTTP_OK
    except (HTTPException, OSError):
        return False
    finally:
        connection.close()
