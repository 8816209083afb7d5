"""The process of the tuner keeps plans and makes none: it does without what only the planner needs."""

from __future__ import annotations

import subprocess
import sys

PLANNER_ONLY = ("numba", "scipy", "matplotlib", "horologe_planning.search", "horologe_planning.estimator")


def test_the_tuner_imports_no_planner() -> None:
    program = (
        "import sys, horologe_tuner.__main__, horologe_tuner.scalers\n"
        f"print([name for name in {PLANNER_ONLY} if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "[]\n"
