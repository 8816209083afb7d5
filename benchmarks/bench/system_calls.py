"""System calls of a running process: their number by strace, and the CPU time of the kernel by perf."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ENTRIES = {
    "ksys_write": "write", "do_writev": "writev", "ksys_read": "read", "do_epoll_wait": "epoll_pwait",
    "do_epoll_pwait": "epoll_pwait", "do_futex": "futex", "__do_sys_io_uring_enter": "io_uring_enter",
}  # fmt: skip
"""Functions of the kernel -> system call."""
SOCKET = {
    "tcp_sendmsg", "tcp_recvmsg", "unix_stream_sendmsg", "unix_stream_recvmsg", "unix_stream_read_generic",
    "handle_softirqs",
}  # fmt: skip
"""Functions of the kernel that do the work of a socket, whichever system call asks for it."""
OTHER_KERNEL = "other"
KERNEL_ENTRY = "entry_SYSCALL_64_after_hwframe"
FREQUENCY = 2999
ATTACH_S = 1.0


@contextlib.contextmanager
def counting_calls(pid: int, counts: Counter[str]) -> Iterator[None]:
    """Add the number of system calls of a process and its threads to `counts`, when the context ends."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counts"
        with _running(["strace", "-c", "-f", "-p", str(pid), "-o", str(path)]):
            yield
        for line in path.read_text().splitlines():
            match = re.fullmatch(r"\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?([a-z]\w*)\s*", line)
            if match and match[2] != "total":
                counts[match[2]] += int(match[1])


@contextlib.contextmanager
def sampling_kernel(pid: int, samples: Counter[tuple[str, str]]) -> Iterator[None]:
    """Count samples of the CPU time of a process by (system call, `socket` or `entry`), when the context ends.

    Samples outside of the kernel have the key ("", "").
    """
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/perf"
        options = ["-e", "cpu-clock", "-F", str(FREQUENCY), "-g", "-p", str(pid), "-o", path]
        with _running(["perf", "record", "-q", *options]):
            yield
        text = subprocess.run(
            ["perf", "script", "-i", path, "-F", "ip,sym"], capture_output=True, text=True, check=True
        ).stdout
    for block in text.split("\n\n"):
        lines = [line.split() for line in block.splitlines() if line.strip()]
        if lines:
            samples[_classify([(line[0], line[-1]) for line in lines])] += 1


def _classify(frames: list[tuple[str, str]]) -> tuple[str, str]:
    """Return the key of a sample with these addresses and functions, the innermost first."""
    if not frames[0][0].startswith("ffff"):
        return "", ""
    functions = [function.partition("+")[0] for _, function in frames]
    call = next((ENTRIES[function] for function in reversed(functions) if function in ENTRIES), OTHER_KERNEL)
    return call, "socket" if SOCKET.intersection(functions) else "entry"


@contextlib.contextmanager
def _running(command: list[str]) -> Iterator[None]:
    """Run a program that is attached to a process, and interrupt it when the context ends."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(ATTACH_S)
    try:
        yield
    finally:
        child.send_signal(signal.SIGINT)
        child.wait(60)
