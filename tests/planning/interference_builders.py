"""Builders for test_interference.py and test_published_coefficients.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.interference.coefficients import GpuCoefficients
from horologe_common.interference.prediction import INTERFERENCE_MODELS

if TYPE_CHECKING:
    pass


GPU = GpuCoefficients("g", 100, 1000, 20, 1000, -2.0, 0.01, -0.015)
IGNITER, PCIE = INTERFERENCE_MODELS["igniter"], INTERFERENCE_MODELS["pcie-contention"]
