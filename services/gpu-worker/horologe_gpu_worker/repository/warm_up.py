"""Warm-up: run every batch size once on made-up inputs. A model that fails on them gets a first estimate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.clock import ms
from horologe_common.models import Profile
from horologe_common.status import ModelFailed
from horologe_gpu_worker.repository.model_signature import check_outputs
from horologe_gpu_worker.repository.model_spec import warmup_inputs
from horologe_gpu_worker.runtime import RowsFailed, WarmUpFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from horologe_common.models import ModelSpec

    RunBatch = Callable[[int, Mapping[str, NDArray[Any]]], Mapping[str, NDArray[Any]]]
    """The method `OpenModel.run`."""

FIRST_ROW_NS = ms(10)
"""First estimate of a row, within what models usually take. The first real batches replace it. Larger batches take
proportionally longer by it, so that the first batches are small."""


def warm_up(run: RunBatch, spec: ModelSpec, folder: Path) -> None:
    """Run every batch size once. Raises `WarmUpFailed` if the smallest fails, `RowsFailed` if a larger one does.

    Raises `ModelFailed` or `RowsFailed` if outputs do not fit the signature: other inputs would not help.
    """
    for batch_size in spec.batch_sizes[:1] if spec.streams else spec.batch_sizes:
        inputs = warmup_inputs(spec, folder, batch_size)
        try:
            outputs = run(batch_size, inputs)
        except ModelFailed as error:
            if batch_size == spec.batch_sizes[0]:
                raise WarmUpFailed(error.reason) from error
            raise RowsFailed(f"{error.reason} (in a batch of {batch_size})") from error
        if outputs or not spec.streams:  # a stream may have no items
            check_outputs(spec, batch_size, outputs)


def first_estimate(spec: ModelSpec, load_ns: int) -> Profile:
    """Return the profile of a model that has never run, and whose LOAD took about `load_ns`."""
    return Profile({size: size * FIRST_ROW_NS for size in spec.batch_sizes}, load_ns, measured=False)
