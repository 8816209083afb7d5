"""Coefficients of an NVIDIA V100 with AlexNet, ResNet-50, VGG-19 and SSD, from the measurements of iGniter (TPDS 2022).

`PAPER`: fitted from the 11 runs of each model as the paper describes (section 3.1).

`CALIBRATED`: k1 to k6 fitted from 162 runs of each model alone, and the coefficients of the tuner's `pair_fitting.py`
from 375 measured pairs. `relative_error` is the root mean square error on pairs of models that were not in the fit.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from horologe_common.interference.coefficients import GpuCoefficients, ModelCoefficients


class GpuCatalogue(NamedTuple):
    """A GPU type with its models by name, for one of the interference models."""

    gpu: GpuCoefficients
    models: dict[str, ModelCoefficients]


P3_2XLARGE_PRICE = 3.06
"""US dollars per hour of the instance with one V100 (iGniter section 5.3: $18.36 for six)."""
_GPU = GpuCoefficients("v100", 300, 1530, 53.5, 10e6, -1.025414, 0.00475065, -0.00902243, P3_2XLARGE_PRICE)
_JITTER = {"alexnet": 0.030, "resnet50": 0.017, "vgg19": 0.0086, "ssd": 0.0076}
"""Root mean square of the standard deviation of a latency over its mean, in the measured pairs."""
_MODELS = (
    ModelCoefficients(
        "alexnet",
        0.00415351,
        8.71158443,
        23.7360689,
        0.0555205,
        0.346011,
        0.00237638,
        0.0238930,
        37.10815,
        0.00309205,
        2.029571,
        20,
        0.0317683,
        602112,
        4000,
        relative_error=0.0615,
    ),
    ModelCoefficients(
        "resnet50",
        -0.0175147,
        58.2644811,
        -0.0118622,
        0.344858,
        1.909502,
        0.00216306,
        0.162335,
        4.626864,
        0.0219595,
        -0.189943,
        80,
        0.0738162,
        602112,
        4000,
        relative_error=0.0511,
    ),
    ModelCoefficients(
        "vgg19",
        -0.00483465,
        158.19297,
        44.4521309,
        0.188407,
        0.926192,
        0.00201773,
        0.536729,
        2.081851,
        0.0452175,
        2.722817,
        29,
        0.0392494,
        602112,
        4000,
        relative_error=0.0271,
    ),
    ModelCoefficients(
        "ssd",
        0.0251596,
        235.846932,
        -16.781574,
        0.264273,
        3.416978,
        0.00228086,
        0.644894,
        2.339317,
        0.0886305,
        -0.128589,
        93,
        0.147877,
        1080000,
        2968880,
        relative_error=0.0515,
    ),
)
_CALIBRATED_ACTIVE = {
    "alexnet": (0.00507939, 8.43853, 23.5659, -0.305871, 0.339729, 0.000285965, 0.0484),
    "resnet50": (0.0475035, 51.6160, -1.249267, -0.991556, 1.569614, 0.0622980, 0.0534),
    "vgg19": (0.0405933, 142.9113, 38.8095, -1.020471, 0.697605, 0.208665, 0.0276),
    "ssd": (-0.0926494, 218.0816, -5.278971, -0.892005, 1.664786, 0.255036, 0.0268),
}
"""k1 to k6 and relative_error."""

PAPER = GpuCatalogue(
    _GPU, {model.model: msgspec.structs.replace(model, jitter=_JITTER[model.model]) for model in _MODELS}
)
"""For the model "igniter"."""
CALIBRATED = GpuCatalogue(
    msgspec.structs.replace(_GPU, scheduling_offset_ms=-0.00524355, cache_scale=1.335048, frequency_slope=-1.312544),
    {
        name: msgspec.structs.replace(
            PAPER.models[name],
            **dict(zip(("k1", "k2", "k3", "k4", "k5", "k6", "relative_error"), values, strict=True)),
        )
        for name, values in _CALIBRATED_ACTIVE.items()
    },
)
"""For the model "pcie-contention"."""
V100_CATALOGUES = {"igniter": PAPER, "pcie-contention": CALIBRATED}
