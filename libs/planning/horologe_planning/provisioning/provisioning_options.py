"""Options of provisioning.

The margin is for errors of the prediction. With `margin=1.0`, `vgg19` of the package's example gets 37.5% of the V100,
with `margin=2.0` 40% (both with `free_margin=0.0`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.interference.prediction import DEFAULT_INTERFERENCE_MODEL, INTERFERENCE_MODELS
from horologe_planning.provisioning.workloads import ProvisioningError

if TYPE_CHECKING:
    from horologe_planning.provisioning.share_bounds import BatchRule


class ProvisioningOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of provisioning. The defaults give the cheapest plan found."""

    model: str = DEFAULT_INTERFERENCE_MODEL
    """Name of an interference model."""
    margin: float = 1.0
    """Safety margin: predicted latency times 1 + `margin` * relative error of the model must meet the SLO."""
    free_margin: float = 3.0
    """Largest margin that a plan gets if it costs no more than with `margin`."""
    batch_rule: BatchRule | None = None
    """Chooses the batch sizes, where they fit on a whole GPU. None: those that need the least share."""
    exact_workloads: int = 40
    """Most workloads, counting parts, that are provisioned exactly, unless too many sets of them fit on one GPU."""
    search_workloads: int = 200
    """Most workloads for which all rules of `RULES` are tried; above it, only Algorithm 1."""

    def validate(self) -> None:
        """Raise ProvisioningError that names the invalid option, its value and the range wanted."""
        if self.model not in INTERFERENCE_MODELS:
            wanted = ", ".join(INTERFERENCE_MODELS)
            raise ProvisioningError(f"model: got {self.model!r}, wanted one of {wanted}")
        for field in ("margin", "free_margin"):
            if not 0 <= (value := getattr(self, field)) <= 10:
                raise ProvisioningError(f"{field}: got {value:g}, wanted 0 to 10 standard deviations")


DEFAULT_OPTIONS = ProvisioningOptions()
