"""Parent's side of a share process: start it, send commands, wait for replies, end it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from typing import TypeVar

import msgspec

from horologe_common.clock import monotonic_ns, s
from horologe_common.service.isolation import describe_exit
from horologe_common.service.process_start import start_patiently
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
        try:
            start_patiently(self._name, self._spawn)
        except OSError as error:
            raise ShareFailed(f"{self._name}: could not be started: {error}") from error
        self._poll = select.poll()
        assert self._process.stdout is not None
        self._poll.register(self._process.stdout, select.POLLIN)
        self._received = b""

    def _spawn(self) -> None:
        """Start the process. Raises OSError, and leaves nothing open then."""
        with ExitStack() as ours, ExitStack() as theirs:
            lifeline, self._lifeline = os.pipe()
            theirs.callback(os.close, lifeline)
            ours.callback(os.close, self._lifeline)
            self._log = ours.enter_context(tempfile.TemporaryFile())
            command = [sys.executable, "-m", MODULE, str(lifeline), msgspec.json.encode(self._job).decode()]
            self._process = subprocess.Popen(
                command, pass_fds=(lifeline,), stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=self._log, start_new_session=True,
            )  # fmt: skip
            ours.pop_all()

    def send(self, command: Command) -> None:
        """Send a command. Does not wait for its reply."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the next reply raises
            self._process.stdin.write(msgspec.json.encode(command) + b"\n")
            self._process.stdin.flush()

    def wait_reply(self, kind: type[Wanted], timeout_ns: int = REPLY_NS) -> Wanted:
        """Return the next reply, of this kind."""
        reply = msgspec.json.decode(self._read_line(timeout_ns), type=Reply)
        if isinstance(reply, kind):
            return reply
        raise ShareFailed(f"{self._name}: {reply.reason if isinstance(reply, Failed) else f'got {reply}'}")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        os.close(self._lifeline)
        self._log.close()

    @property
    def _name(self) -> str:
        return f"{self._job.folder} at {self._job.settings.share_percent:g}%"

    def _read_line(self, timeout_ns: int) -> bytes:
        assert self._process.stdout is not None
        end_ns = monotonic_ns() + timeout_ns
        while b"\n" not in self._received:
            if not self._poll.poll(max(0, end_ns - monotonic_ns()) / 1e6):
                raise ShareFailed(f"{self._name}: no reply after {timeout_ns / 1e9:g} s")
            received = os.read(self._process.stdout.fileno(), 1 << 16)
            if not received:
                raise ShareFailed(f"{self._name}: {self._describe_end()}")
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _describe_end(self) -> str:
        """Return exit code or signal, and the last line of the log."""
        code = self._process.wait(END_S)
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - LOG_BYTES))
        lines = self._log.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no log")
        return f"ended with {describe_exit(code)}: {last}"
