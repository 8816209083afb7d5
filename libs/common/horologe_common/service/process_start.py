"""Starts processes, and tries again after a growing delay while the machine has no process or descriptor to spare.

Every place that starts a process uses this module. A supervisor that must not wait uses `Backoff` alone.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from horologe_common.service.isolation import user_options, user_variables
from horologe_common.service.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FIRST_DELAY_S, MAX_DELAY_S = 0.1, 5.0
STEADY_S = 10.0
"""A process that ran at least this long was not in a crash loop."""
PATIENCE_S = 30.0
"""Default time for which `start_patiently` tries."""
SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""No process, memory or descriptor now."""

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


class IsolatedProcess(NamedTuple):
    """A process that runs the code of a model or a pipeline. The kernel kills it when `lifeline` closes."""

    process: subprocess.Popen[bytes]
    sock: socket.socket
    lifeline: int


def start_isolated(
    module: str, environment: Mapping[str, str], user: str, also: tuple[int, ...] = ()
) -> IsolatedProcess:
    """Start `python -m module SOCKET LIFELINE [ALSO...]` as `user`. The arguments are inherited descriptors.

    It has a process group of its own, so that its children are killed with it. Its output goes to standard error, the
    log of this process: a pipe could fill and block it. Raises OSError, and KeyError if there is no such user.
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
            [sys.executable, "-P", "-m", module, *map(str, descriptors)], pass_fds=descriptors,
            env={**environment, **user_variables(user)}, **user_options(user), stdin=subprocess.DEVNULL, stdout=2,
            start_new_session=True,
        )  # fmt: skip
        ours.pop_all()
        return IsolatedProcess(process, sock, lifeline)
