"""Isolation of a process that runs the code of models or pipelines: its environment, its user, and its end.

The variables of a service may hold passwords and tokens of other programs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import select
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
FIRST_VICTIM = "1000"
"""/proc/self/oom_score_adj: if memory runs out, the kernel kills this process instead of the service."""


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


def kill_with_parent(lifeline: int) -> None:
    """Have the kernel kill this process group when the service's end of the pipe closes.

    PR_SET_PDEATHSIG follows the thread that started the process, and loading threads end. The process sees end of file
    on its socket only between calls, so code that hangs would outlive its service.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_VICTIM)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgid(0))
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(lifeline)
    if poll.poll(0):  # the service ended before the signal was set up
        os._exit(1)
