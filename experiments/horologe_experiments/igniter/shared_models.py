"""Emulated models on the shares of a sharing plan: one simulated worker per share, neighbours on one device."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from horologe_common.clock import ms
from horologe_common.interference.colocation import CoLocatedModel, ExecutionNoise, SharedDevice
from horologe_common.models import ModelSpec, Profile, TensorSpec
from horologe_common.wire import ModelReport
from horologe_planning.provisioning.device_shares import shares_by_device
from horologe_sim.engine.simulated_device import SimModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from horologe_planning.plan import Placement, Plan
    from horologe_planning.provisioning.workloads import GpuType

LOAD_NS = ms(10)


class EmulatedHardware(NamedTuple):
    """The emulated truth: coefficients by GPU type, the interference model, and the seed of the noise (None: none)."""

    kinds: Mapping[str, GpuType]
    interference: str
    seed: int | None = None


class ShareWorker(NamedTuple):
    """A share of a plan as a simulated worker."""

    placement: Placement
    model: SimModel


def share_workers(plans: Iterable[Plan], hardware: EmulatedHardware) -> list[ShareWorker]:
    """Return the workers of plans. The model of a share has the name of its workload and batches up to the planned.

    Its profile is `exec_ns` of the share, or the solo times if it has none.

    Shares of a GPU that exceed 100% are scaled down in proportion, as oversubscribed processors are.
    """
    workers = []
    for shares in shares_by_device(plans).values():
        device = SharedDevice()
        scale = min(1.0, 100.0 / sum(share.placement.percent for share in shares))
        for placement in (share.placement for share in shares):
            times = co_located(placement, scale * placement.percent, device, hardware)
            predicted_ns = [time_ns for _, time_ns in sorted(placement.exec_ns)]
            workers.append(
                ShareWorker(placement, share_model(placement.model, times, placement.max_batch, predicted_ns))
            )
    return workers


def co_located(
    placement: Placement, percent: float, device: SharedDevice, hardware: EmulatedHardware
) -> CoLocatedModel:
    """Return the times of a placement on a new share of a device. Its prediction error is that of its workload."""
    gpu, models = hardware.kinds[placement.hardware]
    coefficients = models[placement.coefficients]
    noise = None
    if hardware.seed is not None:
        noise = ExecutionNoise(coefficients, [hardware.seed, crc32(placement.stage.encode())])
    return CoLocatedModel(gpu, coefficients, hardware.interference, percent, device.join(), noise)


def share_model(name: str, times: CoLocatedModel, largest: int, predicted_ns: Sequence[int] = ()) -> SimModel:
    """Return an emulated model with batches of 1 to `largest`. `predicted_ns`: profile by batch, instead of solo times.

    It has all batch sizes: a TensorRT engine takes any size up to its largest.
    """
    sizes = tuple(range(1, largest + 1))
    exec_ns = predicted_ns or [times.solo_ns(size) for size in sizes]
    tensors = (TensorSpec("x", "FP32", (-1, 1)),), (TensorSpec("y", "FP32", (-1, 1)),)
    spec = ModelSpec(name, "1", "emulated", *tensors, sizes, weights_bytes=1, content_hash=name)
    profile = Profile(dict(zip(sizes, exec_ns, strict=True)), LOAD_NS)
    return SimModel(ModelReport(spec, profile), co_located=times)
