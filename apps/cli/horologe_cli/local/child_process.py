"""Runs one service module as the child of a supervisor: it dies with it, and yields the processor to its betters.

    python -m horologe_cli.local.child_process --parent PID [--nice N] MODULE [ARGUMENT...]

The child asks the kernel for its own end (Linux PR_SET_PDEATHSIG), because code between fork and exec of a process
with threads is not safe. Elsewhere than on Linux a thread watches for the parent instead.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import runpy
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
WATCH_S = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(prog="horologe_cli.local.child_process")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    die_with(arguments.parent)
    if arguments.nice:
        os.nice(arguments.nice)
    sys.argv = [arguments.module, *arguments.arguments]
    runpy.run_module(arguments.module, run_name="__main__", alter_sys=True)


def die_with(parent: int) -> None:
    """Make this process be killed when the one called `parent` ends, in whatever way."""
    if sys.platform == "linux":
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it died before the kernel was asked
        raise SystemExit(0)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_S)
    os._exit(0)


if __name__ == "__main__":
    main()
