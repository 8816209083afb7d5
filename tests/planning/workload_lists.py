"""Lists of workloads on V100s, and the invariants of their plans."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import strategies as st

from horologe_common.interference.v100 import V100_CATALOGUES
from horologe_experiments.igniter.provisioning_baselines import violations
from horologe_planning.provisioning.share_tables import GpuType
from horologe_planning.provisioning.workloads import SharingPlan, Workload

PAPER, V100 = (GpuType(*V100_CATALOGUES[name]) for name in ("igniter", "pcie-contention"))
SLOW = GpuType(  # half the speed of a V100 at a third of its price
    msgspec.structs.replace(V100.gpu, name="slow", price_per_hour=1.0),
    {
        name: msgspec.structs.replace(model, **{k: 2 * getattr(model, k) for k in ("k1", "k2", "k3", "k5", "k6")})
        for name, model in V100.models.items()
    },
)
LARGEST = {"alexnet": (1200.0, 10.0), "resnet50": (600.0, 20.0), "vgg19": (400.0, 20.0), "ssd": (300.0, 25.0)}
TABLE_3 = [
    Workload(f"W{3 * place + app + 1}", model, float(rates[app]), float(slos[app]))
    for place, (model, slos, rates) in enumerate((
        ("alexnet", (10, 15, 20), (1200, 400, 800)), ("resnet50", (20, 30, 40), (400, 600, 200)),
        ("vgg19", (20, 30, 40), (300, 400, 200)), ("ssd", (25, 40, 55), (150, 50, 300)),
    ))
    for app in range(3)
]  # fmt: skip


@st.composite
def workload_lists(draw: st.DrawFn, most: int = 8) -> list[Workload]:
    loads = st.tuples(st.sampled_from(sorted(LARGEST)), st.floats(0.02, 1.0), st.floats(1.0, 3.0))
    return [
        Workload(f"w{place}", model, part * LARGEST[model][0], factor * LARGEST[model][1])
        for place, (model, part, factor) in enumerate(draw(st.lists(loads, min_size=1, max_size=most)))
    ]


def groups(plan: SharingPlan) -> set[frozenset[str]]:
    return {frozenset(placement.workload for placement in gpu.placements) for gpu in plan.gpus}


def check_plan(plan: SharingPlan, workloads: list[Workload]) -> None:
    """All requests are placed, no GPU exceeds 100% or has two parts of a workload, no SLO is violated."""
    rates: dict[str, float] = {}
    for gpu in plan.gpus:
        assert len({placement.workload for placement in gpu.placements}) == len(gpu.placements)
        assert gpu.share_percent <= 100 + 1e-9
        for placement in gpu.placements:
            rates[placement.workload] = rates.get(placement.workload, 0.0) + placement.rate
    assert rates == pytest.approx({workload.name: workload.rate for workload in workloads})
    assert not violations(plan)
