"""Fixtures of the folder."""

from __future__ import annotations

import pytest

from horologe_controller.schedulers import SCHEDULERS

PROMPT_SCHEDULERS = [name for name in SCHEDULERS if name not in ("clipper", "deferred", "fifo")]
"""Policies that refuse late requests and never let a device wait."""


@pytest.fixture(params=PROMPT_SCHEDULERS)
def scheduler(request: pytest.FixtureRequest) -> str:
    return str(request.param)
