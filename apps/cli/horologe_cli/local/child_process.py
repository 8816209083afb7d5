"""Runs one service module as a child of the supervisor: the kernel kills it when the supervisor ends.

    python -m horologe_cli.local.child_process --parent PID [--nice N] [--cpus N,N,...] MODULE [ARGUMENT...]

On Linux, the child itself requests the parent-death signal (PR_SET_PDEATHSIG), because running code between fork and
exec is not safe in a parent with threads. On other systems a thread checks whether the parent still runs. `--nice`
lowers the priority of the process, and of its session. `--cpus` limits the process to these CPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PARENT_CHECK_S = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(prog="horologe_cli.local.child_process")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--cpus", default="")
    parser.add_argument("module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    end_with_parent(arguments.parent)
    if arguments.nice:
        lower_priority(arguments.nice)
    if arguments.cpus:
        with contextlib.suppress(OSError):  # they were taken from the control group since the supervisor started
            os.sched_setaffinity(0, map(int, arguments.cpus.split(",")))
    sys.argv = [arguments.module, *arguments.arguments]
    runpy.run_module(arguments.module, run_name="__main__", alter_sys=True)


def lower_priority(nice: int) -> None:
    """Raise the nice value of this process and of its session, which Linux may schedule as a group."""
    os.nice(nice)
    with contextlib.suppress(OSError):  # no such groups
        Path("/proc/self/autogroup").write_text(str(nice), "ascii")


def end_with_parent(parent: int) -> None:
    """Have this process killed when the process with the id `parent` ends."""
    if sys.platform == "linux":
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    else:
        threading.Thread(target=_watch_parent, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # the parent ended before the request
        raise SystemExit(0)


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(0)


if __name__ == "__main__":
    main()
