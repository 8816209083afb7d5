"""Models of a tournament workload: Clockwork's appendix A, Nexus' profiles, and models whose time depends on input."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from horologe_common.clock import ms
from horologe_common.models import Profile
from horologe_common.wire import ModelReport
from horologe_experiments.clockwork.catalogue_models import CatalogueModel, catalogue_models
from horologe_experiments.orloj.cases import all_cases
from horologe_experiments.orloj.workload_replay import HISTORY, SchedulerKnowledge, base_ns_of, known_distributions
from horologe_experiments.orloj.workloads import build_case
from horologe_experiments.tournament.traits import log_uniform
from horologe_sim.engine.simulated_device import SimModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_controller.core.runtime_distributions import RuntimeDistributions
    from horologe_experiments.orloj.workloads import Workload as OrlojWorkload
    from horologe_experiments.tournament.traits import Rng, Traits

SIZES = (1, 2, 4, 8, 16)
PCIE_MB_PER_MS = 12.3
"""Weights that a LOAD transfers: 102.3 MB of ResNet-50 in 8.33 ms (Clockwork, appendix A)."""
NEXUS = tuple(
    CatalogueModel(name, memory_mb, memory_mb / PCIE_MB_PER_MS, dict(zip(SIZES, exec_ms, strict=True)))
    for name, memory_mb, exec_ms in (
        ("vgg16", 906, (6.277, 14.499, 20.551, 28.768, 54.158)),
        ("vgg_face", 932, (6.353, 14.545, 20.502, 28.952, 54.177)),
        ("vgg_s", 616, (3.070, 3.641, 5.866, 8.992, 14.852)),
        ("yolo9000", 1020, (21.676, 41.176, 80.794, 155.704, 311.602)),
    )
)
"""Times on a TITAN X (Pascal), memory of a batch of 1: github.com/uwsampl/nexus, commit b436191, tests/data/model_db.
Two rows of vgg16 take longer in a batch than one after the other, and batches of yolo9000 save a tenth."""
FASTEST_MS, SLOWEST_MS = 2.0, 60.0
"""Mean times alone of dynamic models."""
DYNAMIC_MB = 200.0
DYNAMIC_PART = 0.3
"""Share of dynamic models in a mixed workload."""


class MixedModel(NamedTuple):
    """A model of a workload. `future` holds the inputs of its requests if it is dynamic."""

    sim: SimModel
    distributions: RuntimeDistributions | None = None
    future: OrlojWorkload | None = None

    @property
    def exec_ns(self) -> Mapping[int, int]:
        """Return the mean execution time by batch size."""
        profile = self.sim.report.profile
        assert profile is not None
        return profile.exec_ns


def draw_models(traits: Traits, rng: Rng, requests: int) -> list[MixedModel]:
    """Return the models of a workload, the most popular first. Dynamic ones have inputs for `requests` requests."""
    dynamic = {"dynamic": 1.0, "mixed": DYNAMIC_PART}.get(traits.catalogue, 0.0)
    rows = list(NEXUS) if traits.catalogue == "nexus" else catalogue_models()
    order = rng.permutation(max(traits.models, len(rows)))
    models = []
    for number in range(traits.models):
        if rng.random() < dynamic:
            models.append(_draw_dynamic(f"dynamic-{number}", traits, rng, requests))
        else:
            copy, row = divmod(int(order[number]), len(rows))
            models.append(MixedModel(rows[row].copies(1, copy)[0]))
    return models


def _draw_dynamic(name: str, traits: Traits, rng: Rng, requests: int) -> MixedModel:
    """Return a model with the distribution of one of ORLOJ's cases, at a mean time between the two bounds."""
    cases = [case for case in all_cases() if not case.profile_ms]
    case = cases[int(rng.integers(len(cases)))]
    mean_ms = log_uniform(rng, FASTEST_MS, SLOWEST_MS)
    case = msgspec.structs.replace(case, mean_ms=mean_ms, p99_ms=case.p99_ms * mean_ms / case.mean_ms)
    history = build_case(case, 1.0, 1.0, HISTORY, int(rng.integers(1 << 30)))
    future = build_case(case, 1.0, 1.0, requests, int(rng.integers(1 << 30)))
    sizes = history.batching.sizes
    mean_ns = round(float(history.solo_ns.mean()))
    profile = Profile(
        {size: history.batching.batch_ns(size, mean_ns) for size in sizes}, ms(DYNAMIC_MB / PCIE_MB_PER_MS)
    )
    static = CatalogueModel(name, DYNAMIC_MB, DYNAMIC_MB / PCIE_MB_PER_MS, dict.fromkeys(sizes, mean_ms))
    spec = static.copies(1)[0].report.spec
    sim = SimModel(ModelReport(spec, profile), base_ns=base_ns_of(history))
    knowledge = SchedulerKnowledge(history, traits.known == "lengths")
    return MixedModel(sim, known_distributions(knowledge), future)
