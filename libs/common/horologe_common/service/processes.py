"""Processes that a service starts: their environment and user, their start and restart, and their end.

A process that cannot be started, because the machine has no process or descriptor to spare, is started again after a
growing delay. The variables of a service may hold passwords and tokens of other programs.
"""

from __future__ import annotations

import errno
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from horologe_common.service.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

FIRST_DELAY_S, MAX_DELAY_S = 0.1, 5.0
STEADY_S = 10.0
"""A process that ran at least this long was not in a crash loop."""
PATIENCE_S = 30.0
"""Default time for which `start_patiently` tries."""
SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""No process, memory or descriptor now."""

ALLOWED = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
        *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "XDG_CACHE_HOME"),
    }
)
"""Proxies (`https_proxy`) are not in the list: their URLs may contain a password."""
ALLOWED_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "CUBLAS_", "CUDNN_", "OMP_", "MKL_", "OPENBLAS_", "MALLOC_")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
FIXED = {"PYTHONUNBUFFERED": "1", "ORT_DISABLE_TELEMETRY": "1"}
GROUP_END_S, GROUP_POLL_S = 2.0, 0.01
"""Time that processes which a child has started get after a SIGTERM, and how often it is checked."""

T = TypeVar("T")
log = logger("processes")


class Backoff:
    """Delays before the next starts of a process that ends or cannot be started.

    The first `immediate` starts have no delay. After that, the delay doubles up to `MAX_DELAY_S`.
    """

    def __init__(self, immediate: int) -> None:
        self._immediate = immediate
        self._failures = 0

    def reset(self) -> None:
        """Begin anew, because a process has worked."""
        self._failures = 0

    def next_delay_s(self) -> float:
        """Count a failure and return the delay in seconds."""
        doublings = min(self._failures - self._immediate, 16)
        self._failures += 1
        return min(MAX_DELAY_S, FIRST_DELAY_S * 2.0**doublings) if doublings >= 0 else 0.0


def is_shortage(error: BaseException) -> bool:
    """Return whether a start failed for lack of a process, a thread, memory or a descriptor."""
    return error.errno in SHORTAGES if isinstance(error, OSError) else "start new thread" in str(error)


def start_patiently(what: str, start: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """Return `start()`. After a shortage, call it again after growing delays, for up to `patience_s` seconds.

    Raises the error of the last call: OSError, or RuntimeError if no thread can be started.
    """
    backoff, end_s = Backoff(immediate=0), time.monotonic() + patience_s
    while True:
        try:
            return start()
        except (OSError, RuntimeError) as error:
            delay_s = backoff.next_delay_s()
            if not is_shortage(error) or time.monotonic() + delay_s > end_s:
                raise
            log.warning("process not started: trying again", process=what, reason=str(error), delay_s=delay_s)
            time.sleep(delay_s)


def child_environment(variables: Mapping[str, str], threads: int, also: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that such a process gets: those allowed here, and the names in `also` if they are set."""
    wanted = ALLOWED | frozenset(also)
    allowed = {name: value for name, value in variables.items() if name in wanted or name.startswith(ALLOWED_PREFIXES)}
    return allowed | dict.fromkeys(THREAD_VARIABLES, str(threads)) | FIXED


def user_options(user: str) -> dict[str, Any]:
    """Return the arguments of `subprocess.Popen` that start a process as `user`, without supplementary groups."""
    if not user:
        return {}
    entry = pwd.getpwnam(user)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def user_variables(user: str) -> dict[str, str]:
    """Return the variables that name a user and its home folder."""
    return {"HOME": pwd.getpwnam(user).pw_dir, "USER": user, "LOGNAME": user} if user else {}


def describe_exit(code: int) -> str:
    """Return how a process has ended, from its `returncode`: an exit code, or the signal that killed it."""
    if code >= 0:
        return f"exit code {code}"
    return next((item.name for item in signal.Signals if item == -code), f"signal {-code}")  # real-time: no name


class IsolatedProcess(NamedTuple):
    """A process that runs the code of a model or a pipeline, and its end of a socket: see parent_link.py.

    It has a process group of its own, so that its children are killed with it. The kernel kills the group when
    `lifeline` closes.
    """

    process: subprocess.Popen[bytes]
    sock: socket.socket
    lifeline: int

    def kill(self) -> None:
        """Kill the process and its children, without waiting for their end. May be called from any thread."""
        if self.process.returncode is None:
            self._signal_group(signal.SIGKILL)

    def describe_end(self, wait_s: float) -> str:
        """Return how the process has ended that has closed its socket, or does so within `wait_s` seconds."""
        with suppress(subprocess.TimeoutExpired):
            return describe_exit(self.process.wait(wait_s))
        return "closed its socket"

    def end(self, grace_s: float = 0.0) -> str:
        """Kill and reap the process and its children, unless it exits within `grace_s` seconds. Return how it ended.

        With `grace_s`, its children get `GROUP_END_S` after a SIGTERM: the resource trackers of multiprocessing and
        joblib ignore it, and then remove semaphores and shared memory.
        """
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(grace_s)
        if grace_s:
            end_s = time.monotonic() + GROUP_END_S
            is_left = self._signal_group(signal.SIGTERM)
            while is_left and time.monotonic() < end_s:
                time.sleep(GROUP_POLL_S)
                self.process.poll()
                is_left = self._signal_group(0)
        self._signal_group(signal.SIGKILL)
        self.process.wait()
        os.close(self.lifeline)
        return describe_exit(self.process.returncode)

    def _signal_group(self, number: int) -> bool:
        """Send a signal to the process and its children. Return False if none is left."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return False
        return True


def start_isolated(
    module: str,
    environment: Mapping[str, str],
    user: str = "",
    also: tuple[int, ...] = (),
    output: int = 2,
    python: str = "",
) -> IsolatedProcess:
    """Start `python -m module SOCKET LIFELINE [ALSO...]` as `user`. The arguments are inherited descriptors.

    `python`: path of the interpreter; empty: that of this process. Its output goes to the descriptor `output`; 2 is the
    log of this process. A pipe could fill and block it. Raises OSError, and KeyError if there is no such user.
    """
    with ExitStack() as ours, ExitStack() as theirs:
        sock, peer = socket.socketpair()
        ours.callback(sock.close)
        theirs.callback(peer.close)
        read, lifeline = os.pipe()
        ours.callback(os.close, lifeline)
        theirs.callback(os.close, read)
        descriptors = peer.fileno(), read, *also
        process = subprocess.Popen(
            [python or sys.executable, "-P", "-m", module, *map(str, descriptors)],
            pass_fds=descriptors,
            env={**environment, **user_variables(user)},
            **user_options(user),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        ours.pop_all()
        return IsolatedProcess(process, sock, lifeline)
