"""Skip mark for tests that need iGniter's measurements, which the repository does not contain."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from horologe_common.service.settings import SettingsError
from horologe_experiments.igniter.igniter_data import VARIABLE, data_folder

os.environ.setdefault(VARIABLE, str(Path(__file__).resolve().parents[3] / "shared/data/igniter"))


def _is_missing() -> bool:
    try:
        data_folder()
    except SettingsError:
        return True
    return False


needs_measurements = pytest.mark.skipif(_is_missing(), reason=f"{VARIABLE} names no folder with iGniter's tables")
