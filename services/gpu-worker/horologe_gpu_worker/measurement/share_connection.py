"""Parent's side of a share process: start it, send commands, wait for replies, end it."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack, suppress
from typing import TypeVar

import msgspec

from horologe_common.clock import s
from horologe_common.service.parent_link import PacketSocket
from horologe_common.service.processes import start_isolated, start_patiently
from horologe_common.status import HorologeError
from horologe_gpu_worker.measurement.share_messages import Command, Failed, Reply, ShareJob

MODULE = "horologe_gpu_worker.measurement.share_process"
REPLY_NS = s(180)
"""Timeout of a reply. To import PyTorch from a cold disk and to capture the graphs of a large model takes a minute."""
END_S = 5.0
"""Seconds that a process has to end by itself."""
LOG_BYTES = 2000

Wanted = TypeVar("Wanted", bound=Reply)


class ShareFailed(HorologeError):
    """A share process failed, ended or did not reply."""


class ShareConnection:
    """A share process. Call `start` first. Every method raises ShareFailed."""

    def __init__(self, job: ShareJob) -> None:
        self._job = job

    def start(self) -> None:
        """Start the process, which opens its model. Does not wait for it."""
        with ExitStack() as opened:
            self._log = opened.enter_context(tempfile.TemporaryFile())
            try:
                self._child = start_patiently(
                    self._name, lambda: start_isolated(MODULE, os.environ, output=self._log.fileno())
                )
            except OSError as error:
                raise ShareFailed(f"{self._name}: could not be started: {error}") from error
            opened.pop_all()
        self._packets = PacketSocket(self._child.sock)
        self.send(self._job)

    def send(self, message: ShareJob | Command) -> None:
        """Send a command. Does not wait for its reply."""
        with suppress(BrokenPipeError):  # the next reply raises
            self._packets.send([msgspec.json.encode(message)])

    def wait_reply(self, kind: type[Wanted], timeout_ns: int = REPLY_NS) -> Wanted:
        """Return the next reply, of this kind."""
        if not self._packets.has_arrived(timeout_ns):
            raise ShareFailed(f"{self._name}: no reply after {timeout_ns / 1e9:g} s")
        try:
            reply = msgspec.json.decode(self._packets.receive()[0], type=Reply)
        except (EOFError, ConnectionResetError):
            raise ShareFailed(f"{self._name}: {self._describe_end()}") from None
        if isinstance(reply, kind):
            return reply
        raise ShareFailed(f"{self._name}: {reply.reason if isinstance(reply, Failed) else f'got {reply}'}")

    def close(self) -> None:
        """End the process."""
        self._packets.close()
        self._child.end(END_S)
        self._log.close()

    @property
    def _name(self) -> str:
        return f"{self._job.folder} at {self._job.settings.share_percent:g}%"

    def _describe_end(self) -> str:
        """Return exit code or signal, and the last line of the log."""
        end = self._child.describe_end(END_S)
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - LOG_BYTES))
        lines = self._log.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no log")
        return f"ended with {end}: {last}"
