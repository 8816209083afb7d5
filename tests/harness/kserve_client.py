"""The environment with KServe's client, which needs other versions of many packages than the server."""

from __future__ import annotations

import shutil

import pytest


def kserve_python() -> str:
    """Return the interpreter of that environment. Skips the test if there is none."""
    path = shutil.which("kserve-python")
    if path is None:
        pytest.skip("kserve-python is not on the PATH (see .ci/run)")
    return path
