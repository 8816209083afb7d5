"""The twelve workloads of iGniter's Table 3, and the provisioning strategies of its section 5.3."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from horologe_common.interference.prediction import INTERFERENCE_MODELS
from horologe_common.interference.v100 import CALIBRATED, PAPER
from horologe_experiments.igniter.paper_provisioning import provision_as_paper
from horologe_experiments.igniter.provisioning_baselines import plan_ffd, plan_gpu_lets, plan_gslice
from horologe_planning.provisioning.provisioner import provision
from horologe_planning.provisioning.workloads import GpuType, ProvisioningOptions, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_planning.report import SharedPlans

_APPLICATIONS = {
    "alexnet": ((10, 1200), (15, 400), (20, 800)),
    "resnet50": ((20, 400), (30, 600), (40, 200)),
    "vgg19": ((20, 300), (30, 400), (40, 200)),
    "ssd": ((25, 150), (40, 50), (55, 300)),
}
"""SLO in ms and requests per second of App1, App2 and App3."""
TABLE_3 = [
    Workload(f"W{number}", model, float(rate), float(slo_ms))
    for number, (model, slo_ms, rate) in enumerate(
        ((model, *application) for model, applications in _APPLICATIONS.items() for application in applications), 1
    )
]
V100 = GpuType(*CALIBRATED)
"""With the coefficients fitted to all measurements, for the model `pcie-contention`."""
PAPER_V100 = GpuType(*PAPER)
"""With the coefficients of the paper's 11 runs, for the model `igniter`."""


class Strategy(NamedTuple):
    """A provisioning strategy with the paper's figures for Table 3: GPUs and violations (None: not in the paper)."""

    plan: Callable[[float], SharedPlans]
    """Return the plan for a safety margin, which only ours has."""
    paper_gpus: int | None = None
    paper_violations: int | None = None


STRATEGIES = {
    "ours": Strategy(lambda margin: provision(TABLE_3, [V100], ProvisioningOptions(margin=margin))),
    "igniter": Strategy(lambda margin: provision_as_paper(TABLE_3, PAPER_V100), 6, 0),
    "gpu-lets+": Strategy(lambda margin: plan_gpu_lets(TABLE_3, PAPER_V100, INTERFERENCE_MODELS["igniter"]), 8, 3),
    "ffd+": Strategy(lambda margin: plan_ffd(TABLE_3, PAPER_V100), 5, 10),
    "gslice+": Strategy(lambda margin: plan_gslice(TABLE_3, PAPER_V100, INTERFERENCE_MODELS["igniter"]), 6, 3),
}
