"""Interference coefficients of the catalogue's models, derived from the measured model of the most similar kind.

iGniter measured AlexNet, ResNet-50, VGG-19 and SSD on a V100. Of the catalogue's models only whole-GPU times are known.
A model of the same kind is taken to run u times the work per row and w times the work per batch (kernel launches) of
the measured model. Both factors are fitted to the whole-GPU times by least squares of the relative error:

    t(b) = u ((k1 b^2 + k2 b + k3) / (100 + k4) + k6 b) + w (k5 + scheduling delay)

Power and L2 utilisation are then those of the measured model at the same work per second. Bytes per row are those of
the model's own input. These coefficients are derived, not measured: `horologe measure --interference` replaces them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_common.interference.v100 import V100_CATALOGUES, GpuCatalogue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_common.interference.coefficients import ModelCoefficients
    from horologe_planning.profiles import Profiles

SIMILAR = {
    "inceptionv3": "resnet50",
    "mobile_pose_resnet50_v1": "resnet50",
    "resnest101": "resnet50",
    "resnet18_v2": "resnet50",
    "resnet50_v2": "resnet50",
    "resnet101_v2": "resnet50",
    "resnet152_v2": "resnet50",
    "xception": "resnet50",
    "language-id": "alexnet",
}
"""Model of the catalogue -> measured model. ResNet-50 is the only measured one with many small kernels and no
fully connected layers of a hundred million weights. `language-id` is small, and has few kernels as AlexNet."""
INPUT_SIDES = {"inceptionv3": (299, 299), "xception": (299, 299), "mobile_pose_resnet50_v1": (256, 192)}
"""Pixels of the input, where it is not that of ImageNet's 224 x 224. Three channels of 4 bytes."""
TEXT_BYTES = {"language-id": 4096.0}
"""Bytes of a row that is no image."""


def derive_coefficients(
    model: str, measured: ModelCoefficients, latency_ns: Mapping[int, int]
) -> tuple[ModelCoefficients, float]:
    """Return the coefficients of a model with these whole-GPU times, and the largest relative error of the times.

    `latency_ns`: batch size -> nanoseconds, at least two sizes. Raises ValueError if no positive factors fit.
    """
    batch = np.array(sorted(latency_ns), float)
    times_ms = np.array([latency_ns[int(size)] / 1e6 for size in batch])
    rows_ms = (measured.k1 * batch**2 + measured.k2 * batch + measured.k3) / (100 + measured.k4) + measured.k6 * batch
    fixed_ms = np.full_like(batch, measured.k5 + measured.scheduling_delay_ms)
    terms = np.stack([rows_ms, fixed_ms], axis=1)
    if batch.size < 2:
        raise ValueError(f"{model}: got {batch.size} batch size, wanted at least two to derive its coefficients")
    (per_row, per_batch), *_ = np.linalg.lstsq(terms / times_ms[:, None], np.ones_like(batch), rcond=None)
    if not (per_row > 0 and per_batch >= 0):
        raise ValueError(
            f"{model}: got factors {per_row:.3g} and {per_batch:.3g} of {measured.model}, wanted a similar model"
        )
    error = float(np.abs(terms @ np.array([per_row, per_batch]) / times_ms - 1).max())
    height, width = INPUT_SIDES.get(model, (224, 224))
    scaled = {name: getattr(measured, name) * float(per_row) for name in ("k1", "k2", "k3", "k6")}
    scaled |= {name: getattr(measured, name) * float(per_batch) for name in ("k5", "scheduling_delay_ms")}
    scaled |= {name: getattr(measured, name) * float(per_row) for name in ("alpha_power", "alpha_cacheutil")}
    derived = msgspec.structs.replace(
        measured,
        model=model,
        kernels=max(1, round(measured.kernels * per_batch)),
        load_bytes=TEXT_BYTES.get(model, 12.0 * height * width),
        **scaled,
    )
    derived.validate()
    return derived, error


def catalogue_coefficients(profiles: Profiles, interference: str, hardware: str = "v100") -> GpuCatalogue:
    """Return the coefficients of the V100 with those of all models in `SIMILAR` that have a profile on it."""
    measured = V100_CATALOGUES[interference]
    derived = {
        model: derive_coefficients(model, measured.models[kind], profiles[model][hardware].latency_ns)[0]
        for model, kind in SIMILAR.items()
        if hardware in profiles.get(model, {})
    }
    return GpuCatalogue(measured.gpu, dict(measured.models) | derived)
