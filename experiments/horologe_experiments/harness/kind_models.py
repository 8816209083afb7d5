"""Models for single kinds of requests, for schedulers that cannot tell the requests of a model apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.models import Profile

if TYPE_CHECKING:
    from horologe_controller.core.runtime_distributions import RuntimeDistributions
    from horologe_sim.engine.simulated_device import SimModel


def kind_model(sim: SimModel, distributions: RuntimeDistributions, kind: int) -> SimModel:
    """Return a model whose profile is that of batches of one kind."""
    spec, profile = sim.report.spec, sim.report.profile
    assert profile is not None
    base_ns, parts = distributions.base_ns, len(distributions)
    exec_ns = {
        size: int(base_ns + distributions.scale(size) * distributions.longest_row((kind,) * size).mean_ns)
        for size in profile.exec_ns
    }
    name = f"{spec.name}-kind-{kind}"
    spec = msgspec.structs.replace(spec, name=name, weights_bytes=spec.weights_bytes // parts, content_hash=name)
    report = msgspec.structs.replace(sim.report, spec=spec, profile=Profile(exec_ns, max(1, profile.load_ns // parts)))
    return msgspec.structs.replace(sim, report=report)
