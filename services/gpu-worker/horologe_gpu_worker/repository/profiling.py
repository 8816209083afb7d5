"""Profiles: the execution times of a model on this machine, measured when it is first seen.

A profile is only a first estimate. The controller updates it with the times that the worker reports.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from horologe_common.clock import monotonic_ns, ms, s
from horologe_common.core.instruments import quantile
from horologe_common.models import FIRST_STEP, NEXT_STEP, Profile
from horologe_common.status import ModelFailed
from horologe_gpu_worker.core.stream_step import Step
from horologe_gpu_worker.repository.model_spec import warmup_inputs
from horologe_gpu_worker.repository.profile_cache import ProfileCache
from horologe_gpu_worker.repository.row_check import ALL_KINDS, FLOATS, check_rows
from horologe_gpu_worker.runtime import RowsFailed, StagedModel, WarmUpFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray

    from horologe_common.models import ModelSpec
    from horologe_gpu_worker.runtime import OpenModel, Runtime

RUNS_MIN, RUNS_MAX, ENOUGH_NS = 5, 30, ms(100)
"""Runs per batch size: until `ENOUGH_NS` have passed, within these bounds."""
LONG_NS = s(10)
"""Runs per batch size end after this time, even after fewer than `RUNS_MIN`: other models wait for their turn."""
SEED_QUANTILE = 0.5
"""Median. On a busy machine the 0.9 quantile of so few runs was up to five times the median. An estimate that is too
low causes a few late responses until it is updated. One that is too high refuses requests, and only trial runs
correct it.
"""
DISAGREE, DISAGREE_NS, DISAGREE_QUANTILE = 1.1, s(1), 0.1
"""If the median exceeds the minimum by this factor, other processes use the machine and most runs are too long. Then
runs continue for `DISAGREE_NS`, and the 0.1 quantile is used. With four busy threads on two cores, the median of a
model that takes 17 ms was 1.5 times that (2.3 at worst); the 0.1 quantile was 1.05 times (1.3 at worst).
"""


def load_or_measure_profile(
    runtime: Runtime,
    spec: ModelSpec,
    folder: Path,
    cache: ProfileCache,
    report: Callable[[str], None],
    check_unchanged: Callable[[], None] = lambda: None,
    row_fault: str = "",
) -> Profile:
    """Return the declared, cached or newly measured profile. Raises the errors of opening and running the model, and
    `RowsFailed`. `row_fault`: why the model is measured without batches.

    `check_unchanged` raises if the files have changed since `spec` was read, so that no other content is measured.
    """
    if (profile := runtime.profile(spec, folder) or cache.read_profile(spec)) is not None:
        check_unchanged()
        return profile
    with cache.content_turn(spec):
        if (cached := cache.read_profile(spec)) is not None:  # another process has measured meanwhile
            check_unchanged()
            return cached
        report(f"loading {spec.key}")
        profile = measure_profile(runtime, spec, folder, turn=lambda: _report_turn(spec, cache, report))
        check_unchanged()
        cache.write_profile(spec, profile, row_fault)
    return profile


@contextmanager
def _report_turn(spec: ModelSpec, cache: ProfileCache, report: Callable[[str], None]) -> Iterator[None]:
    report(f"waiting to measure {spec.key}")
    with cache.measurement_turn():
        report(f"measuring {spec.key}: batch sizes {list(spec.batch_sizes)}")
        yield


def measure_profile(
    runtime: Runtime,
    spec: ModelSpec,
    folder: Path,
    clock: Callable[[], int] = monotonic_ns,
    turn: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Profile:
    """Load the model, time each batch size on made-up inputs and compare rows. `load_ns` includes the warm-up, as every
    LOAD does.

    The batches run during a `turn`. The model is loaded before it, which may take minutes. Raises the errors of opening
    the model, `WarmUpFailed` if a run fails, and `RowsFailed`.
    """
    begin_ns = clock()
    model = runtime.open(spec, folder)
    load_ns = clock() - begin_ns
    try:
        with turn():
            if spec.streams:
                return Profile(measure_steps(model, warmup_inputs(spec, folder, 1), clock), load_ns)
            profile = Profile({size: _exec_ns(model, spec, folder, size, clock) for size in spec.batch_sizes}, load_ns)
            # An index out of range may end the process's use of a CUDA device.
            kinds = (FLOATS,) if isinstance(model, StagedModel) else (ALL_KINDS, FLOATS)
            check_rows(model.run_quietly, spec, folder, kinds=kinds)
    except RowsFailed:
        raise
    except ModelFailed as error:
        raise WarmUpFailed(error.reason) from error
    else:
        return profile
    finally:
        model.close()


def measure_steps(model: OpenModel, inputs: Mapping[str, NDArray[Any]], clock: Callable[[], int]) -> dict[int, int]:
    """Return the times of the first and of a later step of streams on these inputs. A stream of one item has only the
    first.
    """
    times: dict[int, list[int]] = {FIRST_STEP: [], NEXT_STEP: []}
    begin_ns = clock()
    for stream in range(1, RUNS_MAX + 1):
        more, number = True, 0
        while more and number <= RUNS_MIN:
            number += 1
            step_ns = clock()
            _, more = model.step(Step("", stream, number), inputs if number == 1 else {})
            times[FIRST_STEP if number == 1 else NEXT_STEP].append(clock() - step_ns)
        model.end_streams("")
        took_ns = clock() - begin_ns
        if took_ns > LONG_NS or (took_ns > ENOUGH_NS and stream >= RUNS_MIN):
            break
    first_ns: int = quantile(sorted(times[FIRST_STEP]), SEED_QUANTILE)
    return {size: quantile(sorted(taken), SEED_QUANTILE) if taken else first_ns for size, taken in times.items()}


def _exec_ns(model: OpenModel, spec: ModelSpec, folder: Path, batch_size: int, clock: Callable[[], int]) -> int:
    inputs = warmup_inputs(spec, folder, batch_size)
    run: Callable[[], Any] = functools.partial(model.run, batch_size, inputs)
    if isinstance(model, StagedModel):  # INPUT and OUTPUT overlap with another EXEC and are not counted
        slot = model.slot(model.shapes_of(inputs))
        model.stage(slot, inputs)
        run = functools.partial(model.execute, batch_size, slot)
    times: list[int] = []
    _time_runs(run, clock, times, ENOUGH_NS)
    middle: int = quantile(sorted(times), SEED_QUANTILE)
    if middle <= DISAGREE * min(times):
        return middle
    _time_runs(run, clock, times, DISAGREE_NS)
    low: int = quantile(sorted(times), DISAGREE_QUANTILE)
    return low


def _time_runs(run: Callable[[], Any], clock: Callable[[], int], times: list[int], enough_ns: int) -> None:
    """Run the model and append the times, at least `RUNS_MIN` (one if they take `LONG_NS`) and at most `RUNS_MAX`."""
    while (len(times) < RUNS_MIN and sum(times) < LONG_NS) or (sum(times) < enough_ns and len(times) < RUNS_MAX):
        begin_ns = clock()
        run()
        times.append(clock() - begin_ns)
