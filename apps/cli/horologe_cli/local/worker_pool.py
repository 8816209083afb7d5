"""Workers that start and drain while the system runs, and the control socket by which the tuner asks for them.

A request is a line `{"workers": {"v100": 3}}` in JSON: run so many workers of these hardware types. With a list
`"shares"` of `WantedShare`, run exactly these shares of devices besides. The answer is a line `{"workers": {"cpu": 1,
"v100": 3}, "shares": ["left"]}`, with all workers and shares that do not drain, or `{"error": "..."}`.
"""

from __future__ import annotations

import socketserver
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.wanted_shares import WantedShare, check_shares

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horologe_cli.local.supervisor import ChildSpec, Supervisor

MAX_WORKERS = 256
"""Limit of all workers of one machine."""
REQUEST_BYTES = 256 << 10
TIMEOUT_S = 5.0
ACCEPT_REST_S = 0.1


class ControlRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A line of a request."""

    workers: dict[str, int]
    shares: tuple[WantedShare, ...] | None = None
    """None: as they are."""


class WorkerPool:
    """The workers of a supervisor by hardware type, and those that own shares.

    `create_spec(number, hardware)` and `create_share(share)` return the specification of a new worker's process.
    Numbers are never used twice: a drained worker may still be connected under its name.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        running: Mapping[str, str],
        create_spec: Callable[[int, str], ChildSpec],
        create_share: Callable[[WantedShare], ChildSpec],
    ) -> None:
        self._supervisor = supervisor
        self._hardware = dict(running)
        """Name -> hardware type of the workers that do not drain, oldest first."""
        self._create_spec = create_spec
        self._create_share = create_share
        self._shares: dict[str, WantedShare] = {}
        """Share by the name of its worker, whose process is `worker-NAME`."""
        self._last_number = len(running) - 1
        self._lock = threading.Lock()

    def count_workers(self) -> dict[str, int]:
        """Return the number of workers of each hardware type, without those that drain."""
        counts: dict[str, int] = {}
        for hardware in self._hardware.values():
            counts[hardware] = counts.get(hardware, 0) + 1
        return counts

    def set_workers(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """Start workers, or drain the newest ones, until these numbers run. Return all. Raises ValueError."""
        with self._lock:
            counts = self.count_workers()
            total = sum((counts | dict(wanted)).values()) + len(self._shares)
            if any(count < 0 for count in wanted.values()) or total > MAX_WORKERS:
                raise ValueError(
                    f"workers: got {dict(wanted)}, wanted at least 0 each and at most {MAX_WORKERS} in all"
                )
            for hardware, count in wanted.items():
                for _ in range(counts.get(hardware, 0), count):
                    self._start_worker(hardware)
                for _ in range(count, counts.get(hardware, 0)):
                    self._drain_newest(hardware)
            return self.count_workers()

    def shares(self) -> tuple[str, ...]:
        """Return the names of the workers that own shares, without those that drain."""
        return tuple(self._shares)

    def set_shares(self, wanted: Sequence[WantedShare]) -> tuple[str, ...]:
        """Start the workers of new shares, then drain those of other shares. Return all.

        Raises ValueError, and changes nothing, for shares that do not add up, for too many workers, and for a name that
        a worker with other settings has. Raises ValueError in the end if the last process of a name still drains.
        """
        with self._lock:
            check_shares(wanted)
            if (total := len(wanted) + len(self._hardware)) > MAX_WORKERS:
                raise ValueError(f"shares: got {len(wanted)}, wanted at most {MAX_WORKERS} workers in all, not {total}")
            missing = [share for share in wanted if not self._runs(share)]
            draining = [share.worker for share in missing if self._supervisor.is_draining(f"worker-{share.worker}")]
            for share in missing:
                if share.worker not in draining:
                    self._supervisor.add_child(self._create_share(share))
                    self._shares[share.worker] = share
            names = {share.worker for share in wanted}
            for name in [name for name in self._shares if name not in names]:
                del self._shares[name]
                self._supervisor.drain_child(f"worker-{name}")
            if draining:
                raise ValueError(f"shares: workers {', '.join(draining)}: their last processes have not ended yet")
            return self.shares()

    def _runs(self, share: WantedShare) -> bool:
        """Return whether the share has its worker. Raises ValueError if the worker has other settings."""
        if (running := self._shares.get(share.worker)) is None:
            return False
        if not share.has_settings_of(running):
            got, wanted = f"{share.percent:g}% of {share.device_id}", "a new name for another share"
            raise ValueError(f"share {share.worker!r}: worker: got {got}, wanted {wanted}: it runs with other settings")
        return True

    def _start_worker(self, hardware: str) -> None:
        self._last_number += 1
        spec = self._create_spec(self._last_number, hardware)
        self._supervisor.add_child(spec)
        self._hardware[spec.name] = hardware

    def _drain_newest(self, hardware: str) -> None:
        name = next(name for name in reversed(self._hardware) if self._hardware[name] == hardware)
        del self._hardware[name]
        self._supervisor.drain_child(name)


class ControlServer:
    """Serves the control socket at `path`, on threads of its own, until `close`."""

    def __init__(self, path: str, pool: WorkerPool) -> None:
        self._server = _Server(path, pool)
        self._thread = threading.Thread(target=self._server.serve_forever, name="control", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Answer no more requests."""
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, path: str, pool: WorkerPool) -> None:
        super().__init__(path, _Handler)
        self.pool = pool

    def get_request(self) -> Any:
        """Accept a connection. Without a descriptor, rest first: the connection stays readable."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(ACCEPT_REST_S)
            raise


class _Handler(socketserver.StreamRequestHandler):
    """Answers one line."""

    server: _Server
    timeout = TIMEOUT_S

    def handle(self) -> None:
        try:
            request = msgspec.json.decode(self.rfile.readline(REQUEST_BYTES), type=ControlRequest)
            pool = self.server.pool
            shares = pool.shares() if request.shares is None else pool.set_shares(request.shares)
            answer: dict[str, object] = {"workers": pool.set_workers(request.workers), "shares": shares}
        except (msgspec.MsgspecError, ValueError, RuntimeError) as error:  # RuntimeError: no thread for a worker now
            answer = {"error": str(error)}
        except OSError:  # the client sent nothing in time, or has closed the connection
            return
        self.wfile.write(msgspec.json.encode(answer) + b"\n")
