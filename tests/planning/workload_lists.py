"""Lists of workloads on V100s, and the invariants of their plans."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import strategies as st

from horologe_common.interference.v100 import V100_CATALOGUES
from horologe_experiments.igniter.provisioning_baselines import violations
from horologe_planning.provisioning.device_shares import PlacedShare, shares_by_device
from horologe_planning.provisioning.workloads import GpuType, Workload
from horologe_planning.report import SharedPlans

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


def shares_of(plan: SharedPlans) -> list[PlacedShare]:
    return [share for shares in shares_by_device(plan.plans).values() for share in shares]


def groups(plan: SharedPlans) -> set[frozenset[str]]:
    return {frozenset(share.workload for share in shares) for shares in shares_by_device(plan.plans).values()}


def check_plan(plan: SharedPlans, workloads: list[Workload]) -> None:
    """All requests are placed, no GPU exceeds 100% or has two parts of a workload, no SLO is violated."""
    for shares in shares_by_device(plan.plans).values():
        assert len({share.workload for share in shares}) == len(shares)
        assert sum(share.placement.percent for share in shares) <= 100 + 1e-9
    rates = {planned.name: planned.rate for planned in plan.plans}
    assert rates == pytest.approx({workload.name: workload.rate for workload in workloads})
    for planned in plan.plans:
        assert sum(placement.scale_factor for placement in planned.placements) == pytest.approx(1)
    assert not violations(plan)
