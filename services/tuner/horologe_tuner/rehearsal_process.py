"""Runs rehearsals in a process of their own, with the lowest priority and a limit of CPU time."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from horologe_common.service.processes import child_environment, describe_exit, start_patiently
from horologe_tuner.core.rehearsal.rehearsal_documents import REHEARSAL_MODULE, RehearsalScores

if TYPE_CHECKING:
    from horologe_tuner.core.rehearsal.rehearsal_documents import RehearsalCall

PATIENCE = 20
"""Seconds that a rehearsal may take for each second of CPU time that it may use: with the lowest priority, it waits."""


def is_installed() -> bool:
    """Return whether the simulator is installed."""
    return find_spec(REHEARSAL_MODULE.partition(".")[0]) is not None


def run_rehearsal(call: RehearsalCall) -> RehearsalScores:
    """Return the scores of the process. If it ends early, those of the candidates that it has played, or an error."""
    command = [sys.executable, "-m", REHEARSAL_MODULE]
    try:
        done = start_patiently(
            "rehearsal",
            lambda: subprocess.run(
                command,
                input=msgspec.json.encode(call),
                capture_output=True,
                timeout=PATIENCE * call.cpu_s + PATIENCE,
                env=child_environment(os.environ, 1),
                check=False,
            ),
        )
        output, code, errors = done.stdout, done.returncode, done.stderr
    except subprocess.TimeoutExpired as error:
        output, code, errors = error.stdout or b"", -9, b"no result in time"
    except OSError as error:
        return RehearsalScores(error=f"{command[0]}: {error.strerror}", cpu_s=call.cpu_s)
    lines = output.splitlines()
    try:
        return msgspec.json.decode(lines[-1], type=RehearsalScores)
    except (IndexError, msgspec.DecodeError, msgspec.ValidationError):
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        return RehearsalScores(error=f"rehearsal: {describe_exit(code)}: {last}", cpu_s=call.cpu_s)
