"""Emulated models on the shares of a sharing plan: one simulated worker per share, neighbours on one device."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from horologe_common.clock import ms
from horologe_common.interference.colocation import CoLocatedModel, ExecutionNoise, SharedDevice
from horologe_common.models import ModelSpec, Profile, TensorSpec
from horologe_common.wire import ModelReport
from horologe_sim.engine.simulated_device import SimModel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_planning.provisioning.share_tables import GpuType
    from horologe_planning.provisioning.workloads import Placement, SharingPlan

LOAD_NS = ms(10)


class EmulatedHardware(NamedTuple):
    """The emulated truth: coefficients by GPU type, the interference model, and the seed of the noise (None: none)."""

    kinds: Mapping[str, GpuType]
    interference: str
    seed: int | None = None


class ShareWorker(NamedTuple):
    """A share of a plan as a simulated worker."""

    gpu: int
    """Index of the GPU in the plan."""
    placement: Placement
    model: SimModel


def share_workers(plan: SharingPlan, hardware: EmulatedHardware) -> list[ShareWorker]:
    """Return the workers of a plan. The model of a share has the name of its workload and batches up to the planned.

    Its profile is `exec_ns` of the plan, or the solo times if the plan has none.

    Shares of a GPU that exceed 100% are scaled down in proportion, as oversubscribed processors are.
    """
    workers = []
    for number, gpu in enumerate(plan.gpus):
        device = SharedDevice()
        scale = min(1.0, 100.0 / (gpu.share_percent or 1.0))
        for placement in gpu.placements:
            times = co_located(placement, gpu.gpu_type, scale * placement.share_percent, device, hardware)
            predicted_ns = [placement.exec_ns[size] for size in sorted(placement.exec_ns)]
            model = share_model(placement.workload, times, placement.batch, predicted_ns)
            workers.append(ShareWorker(number, placement, model))
    return workers


def co_located(
    placement: Placement, gpu_type: str, percent: float, device: SharedDevice, hardware: EmulatedHardware
) -> CoLocatedModel:
    """Return the times of a placement on a new share of a device. Its prediction error is that of its workload."""
    gpu, models = hardware.kinds[gpu_type]
    coefficients = models[placement.model]
    noise = None
    if hardware.seed is not None:
        noise = ExecutionNoise(coefficients, [hardware.seed, crc32(placement.workload.encode())])
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
