"""iGniter as in the paper: its batch sizes (Eq. 17) and Algorithm 1 alone; and plans judged by another prediction."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_common.clock import ms
from horologe_common.interference.prediction import MS_PER_S, predict_shares
from horologe_planning.provisioning.device_shares import device_sizes, shares_by_device, with_shares
from horologe_planning.provisioning.exact_sharing import share_bound
from horologe_planning.provisioning.provisioner import empty_fleets, place_all, plan_of
from horologe_planning.provisioning.share_tables import ShareBound, least_shares, share_units
from horologe_planning.provisioning.workloads import ProvisioningOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.interference.coefficients import GpuCoefficients, ModelCoefficients
    from horologe_common.interference.prediction import InterferenceModel
    from horologe_planning.plan import Plan
    from horologe_planning.provisioning.device_shares import PlacedShare
    from horologe_planning.provisioning.fleet import Fleet
    from horologe_planning.provisioning.workloads import GpuType, Workload
    from horologe_planning.report import SharedPlans

SLACK = 1e-9
"""Tolerance of a batch size before it is rounded up."""


def appropriate_batch(gpu: GpuCoefficients, model: ModelCoefficients, rate: float, slo_ms: float) -> int:
    """Return b_appr of Eq. 17: the least batch that keeps up with `rate` requests/s if its execution takes SLO / 2."""
    per_ms = rate / MS_PER_S
    batch = slo_ms * per_ms * gpu.pcie_bytes_per_ms / (2 * (gpu.pcie_bytes_per_ms + per_ms * model.load_bytes))
    return max(ceil(batch - SLACK), 1)


def paper_bound(gpu: GpuCoefficients, model: ModelCoefficients, workload: Workload) -> ShareBound:
    """Return b_appr and r_lower (Eq. 17, 18).

    b_appr is rounded up to a permitted batch size. If there is none, no share suffices.
    """
    appropriate = appropriate_batch(gpu, model, workload.rate, workload.slo_ms)
    batch = next((size for size in workload.batches if size >= appropriate), None)
    if batch is None:
        return ShareBound(workload.batches[-1], share_units(np.inf, gpu))
    limit = np.array([workload.slo_ms / 2])
    share = least_shares(gpu, model, np.array([batch], float), limit, np.array([np.inf]))[0]
    return ShareBound(batch, share_units(share, gpu))


PAPER_OPTIONS = ProvisioningOptions("igniter", 0.0, 0.0)
"""iGniter's prediction, without a margin."""


def paper_fleets(workloads: Sequence[Workload], kind: GpuType) -> list[Fleet]:
    """Return empty fleets for workloads with the paper's batch sizes, where these fit on a whole GPU."""
    bounds = [paper_bound(kind.gpu, kind.models[workload.model], workload) for workload in workloads]
    sized = [
        msgspec.structs.replace(workload, batch_sizes=(bound.batch,)) if bound.units <= kind.whole else workload
        for workload, bound in zip(workloads, bounds, strict=True)
    ]
    return empty_fleets(sized, [kind], PAPER_OPTIONS)


def provision_as_paper(workloads: Sequence[Workload], kind: GpuType) -> SharedPlans:
    """Return the plan of iGniter's Algorithm 1 and nothing else."""
    fleets = paper_fleets(workloads, kind)
    return plan_of(place_all(fleets, "least-interference"), share_bound(fleets))


def with_predictions(plans: Sequence[Plan], kinds: Sequence[GpuType], model: InterferenceModel) -> tuple[Plan, ...]:
    """Return the plans with latencies and throughputs predicted by a model and the coefficients of `kinds`.

    Shares of more than 100% in sum are scaled down to 100%: the processors are oversubscribed.
    """
    by_name = {kind.gpu.name: kind for kind in kinds}
    shares: list[PlacedShare] = []
    for present in shares_by_device(plans).values():
        shares += _predicted(present, by_name[present[0].placement.hardware], model)
    return with_shares(plans, shares)


def _predicted(shares: Sequence[PlacedShare], kind: GpuType, model: InterferenceModel) -> list[PlacedShare]:
    coefficients, percent = device_sizes(shares, kind)
    batch = np.array([float(share.placement.max_batch) for share in shares])
    predicted = predict_shares(model, kind.gpu, coefficients, batch, percent)
    changed = []
    for share, latency_ms, throughput in zip(
        shares, predicted.latency_ms.tolist(), predicted.throughput.tolist(), strict=True
    ):
        error = kind.models[share.placement.coefficients].relative_error
        changed.append(share._replace(placement=msgspec.structs.replace(
            share.placement, latency_ns=ms(latency_ms), deviation_ns=ms(latency_ms * error), throughput=throughput
        )))  # fmt: skip
    return changed
