"""Coefficients of an NVIDIA V100 with AlexNet, ResNet-50, VGG-19 and SSD, from the measurements of iGniter (TPDS 2022).

`PAPER`: fitted from the 11 runs of each model as the paper describes (section 3.1).

`CALIBRATED`: k1 to k6 fitted from 162 runs of each model alone, and coefficients of the GPU type from 375
measured pairs. `relative_error` is the root mean square error on pairs of models that were not in the fit.
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
_MODELS = """
model                   alexnet      resnet50         vgg19           ssd
k1                   0.00415351    -0.0175147   -0.00483465     0.0251596
k2                   8.71158443    58.2644811     158.19297    235.846932
k3                   23.7360689    -0.0118622    44.4521309    -16.781574
k4                    0.0555205      0.344858      0.188407      0.264273
k5                     0.346011      1.909502      0.926192      3.416978
alpha_cache          0.00237638    0.00216306    0.00201773    0.00228086
alpha_power           0.0238930      0.162335      0.536729      0.644894
beta_power             37.10815      4.626864      2.081851      2.339317
alpha_cacheutil      0.00309205     0.0219595     0.0452175     0.0886305
beta_cacheutil         2.029571     -0.189943      2.722817     -0.128589
kernels                      20            80            29            93
scheduling_delay_ms   0.0317683     0.0738162     0.0392494      0.147877
load_bytes               602112        602112        602112       1080000
feedback_bytes             4000          4000          4000       2968880
relative_error           0.0615        0.0511        0.0271        0.0515
jitter                    0.030         0.017        0.0086        0.0076
"""
"""`jitter`: root mean square of the standard deviation of a latency over its mean, in the measured pairs."""
_CALIBRATED = """
model                   alexnet      resnet50         vgg19           ssd
k1                   0.00507939     0.0475035     0.0405933    -0.0926494
k2                      8.43853       51.6160      142.9113      218.0816
k3                      23.5659     -1.249267       38.8095     -5.278971
k4                    -0.305871     -0.991556     -1.020471     -0.892005
k5                     0.339729      1.569614      0.697605      1.664786
k6                  0.000285965     0.0622980      0.208665      0.255036
relative_error           0.0484        0.0534        0.0276        0.0268
"""


def _read_models(*tables: str) -> dict[str, ModelCoefficients]:
    """Return the models of tables with a column per model. Rows of a later table replace those of an earlier one."""
    fields: dict[str, dict[str, str]] = {}
    for table in tables:
        names, *rows = [line.split() for line in table.strip().split("\n")]
        for row in (names, *rows):
            for name, value in zip(names[1:], row[1:], strict=True):
                fields.setdefault(name, {})[row[0]] = value
    return {name: msgspec.convert(values, ModelCoefficients, strict=False) for name, values in fields.items()}


PAPER = GpuCatalogue(_GPU, _read_models(_MODELS))
"""For the model "igniter"."""
CALIBRATED = GpuCatalogue(
    msgspec.structs.replace(_GPU, scheduling_offset_ms=-0.00524355, cache_scale=1.335048, frequency_slope=-1.312544),
    _read_models(_MODELS, _CALIBRATED),
)
"""For the model "pcie-contention"."""
V100_CATALOGUES = {"igniter": PAPER, "pcie-contention": CALIBRATED}
