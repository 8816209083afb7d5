"""Co-located shares of a scenario: neighbours slow each other, other devices do not."""

from __future__ import annotations

import pytest

from horologe_common.clock import ms
from horologe_gpu_worker.repository.manifest_fields import EmulatedSharing
from horologe_sim.scenario.scenario import ModelEntry, ShareEntry
from horologe_sim.scenario.workload import LoadPhase
from sim.sim_builders import a_scenario, kill, played


@pytest.mark.parametrize("faults", [(), (kill("worker/1", 300),)])
def test_neighbours_slow_each_other_in_a_scenario(faults: tuple[object, ...]) -> None:
    models = [
        ModelEntry(name, sharing=EmulatedSharing(model=name, noise=False), batch_sizes=(1, 2, 4), workers=(number,))
        for number, name in enumerate(("vgg19", "ssd"))
    ]
    load = [LoadPhase("closed", clients=8, slo_ns=ms(400), models=(name,)) for name in ("vgg19", "ssd")]

    def rows(devices: tuple[str, str]) -> int:
        shares = tuple(ShareEntry(device, 50.0) for device in devices)
        cluster = played(a_scenario(*models, load=load, workers=2, shares=shares, faults=faults))
        return sum(rows * count for meter in cluster.meters.values() for (_, rows), count in meter.rows.items())

    assert rows(("gpu0", "gpu1")) > 1.03 * rows(("gpu0", "gpu0"))
