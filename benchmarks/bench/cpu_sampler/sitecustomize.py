"""Sample the CPU time of a Python process by call stack. Python imports this module where PYTHONPATH has its folder.

SIGUSR2 starts sampling, the next one ends it and writes the result to `CPU_SAMPLES` with the process id as suffix. A
sample is due after each `INTERVAL_S` of CPU time. Samplers of wall time, such as py-spy, also count the time in which
another process has the core: on two busy cores, that is most of it after a `write`, which wakes the reader.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

INTERVAL_S = 0.001
"""The kernel rounds it up to its timer tick, 1 to 10 ms."""
PATH = os.environ.get("CPU_SAMPLES", "")

_stacks: Counter[tuple[tuple[str, str, int, int], ...]] = Counter()
"""Stacks by frames, the innermost first: file, qualified name, line, first line of the function."""
_collections = [0, 0, 0]
"""Number of garbage collections, their CPU time in nanoseconds, CPU time at the begin of the last one."""


def _sample(number: int, frame: FrameType | None) -> None:
    stack = []
    while frame is not None:
        code = frame.f_code
        stack.append((code.co_filename, code.co_qualname, frame.f_lineno, code.co_firstlineno))
        frame = frame.f_back
    _stacks[tuple(stack)] += 1


def _count_collection(phase: str, details: dict[str, int]) -> None:
    now_ns = time.thread_time_ns()
    if phase == "start":
        _collections[2] = now_ns
    else:
        _collections[0] += 1
        _collections[1] += now_ns - _collections[2]


def _toggle(number: int, frame: FrameType | None) -> None:
    if _count_collection not in gc.callbacks:
        gc.callbacks.append(_count_collection)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
        return
    signal.setitimer(signal.ITIMER_PROF, 0)
    gc.callbacks.remove(_count_collection)
    document = {"stacks": list(_stacks.items()), "collections": _collections[0], "collecting_ns": _collections[1]}
    _stacks.clear()
    _collections[:] = 0, 0, 0
    part = Path(f"{PATH}.{os.getpid()}.part")
    part.write_text(json.dumps(document))
    part.rename(part.with_suffix(""))  # readers never see half of it


if PATH:
    signal.signal(signal.SIGPROF, _sample)
    signal.signal(signal.SIGUSR2, _toggle)
