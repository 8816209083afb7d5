"""Report of `horologe measure`: coefficients with deviations, and the errors of the fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_planning.interference.coefficients_file import CoefficientsFile
from horologe_sim.report.tables import Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_common.interference.coefficients import GpuCoefficients, ModelCoefficients
    from horologe_planning.interference.measured_fit import FittedMeasurements

GPU_FIELDS = (
    "max_power_w", "max_frequency_mhz", "idle_power_w", "pcie_bytes_per_ms", "frequency_slope", "scheduling_slope_ms",
    "scheduling_offset_ms", "cache_scale",
)  # fmt: skip
MODEL_FIELDS = (
    "k1", "k2", "k3", "k4", "k5", "k6", "alpha_cache", "alpha_power", "beta_power", "alpha_cacheutil",
    "beta_cacheutil", "kernels", "scheduling_delay_ms", "relative_error",
)  # fmt: skip


class MeasureDocument(msgspec.Struct, frozen=True):
    """Output of `horologe measure --json`."""

    output: str
    coefficients: CoefficientsFile
    pair_error: dict[str, float]
    """Model -> mean of |predicted / measured latency - 1| in the runs of pairs."""
    failed: dict[str, str]
    """Run -> the reason why it failed."""


def measure_document(output: str, fitted: FittedMeasurements, failed: Mapping[str, str]) -> MeasureDocument:
    """Return the document of fitted coefficients."""
    errors = {name: float(np.mean(np.abs(values))) for name, values in fitted.pair_errors.items()}
    return MeasureDocument(output, fitted.content, errors, dict(failed))


def measure_text(document: MeasureDocument) -> str:
    """Return the text of `horologe measure`."""
    content = document.coefficients
    lines = [_coefficients_table(content.gpu.name, content.gpu, GPU_FIELDS, content)]
    lines += [_coefficients_table(model.model, model, MODEL_FIELDS, content) for model in content.models]
    if document.pair_error:
        errors = ", ".join(f"{name} {error:.1%}" for name, error in document.pair_error.items())
        lines.append(f"mean error in pairs: {errors}")
    lines += [f"assumed: {name}: {reason}" for name, reason in content.assumed.items()]
    lines += [f"failed: {run}: {reason}" for run, reason in document.failed.items()]
    return "\n".join([*lines, f"written: {document.output}"])


def _coefficients_table(
    title: str, values: GpuCoefficients | ModelCoefficients, fields: tuple[str, ...], content: CoefficientsFile
) -> str:
    """Return a table. A deviation of `-`: the coefficient is read, assumed, or only just determined."""
    table = Table((title, "value", "+-"), left=1)
    deviations = content.deviations.get(title, {})
    for field in fields:
        deviation = deviations.get(field)
        table.add_row(field, f"{getattr(values, field):.6g}", "-" if deviation is None else f"{deviation:.2g}")
    return table.text() + "\n"
