"""Emulated runtime: waits instead of computing, so that the real worker can be measured without the hardware."""

from __future__ import annotations

import time
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import msgspec

from horologe_common.clock import monotonic_ns, ms, us
from horologe_common.interference.colocation import CoLocatedModel, ExecutionNoise, SharedDevice
from horologe_common.interference.prediction import INTERFERENCE_MODELS
from horologe_common.interference.v100 import V100_CATALOGUES
from horologe_common.models import FIRST_STEP, NEXT_STEP, ModelSpec, Profile
from horologe_gpu_worker.repository.manifest import InvalidModel, manifest_path, read_manifest
from horologe_gpu_worker.repository.manifest_fields import EmulatedTimes, Manifest
from horologe_gpu_worker.repository.model_signature import zeros
from horologe_gpu_worker.repository.model_spec import BATCH_SIZES, build_spec, declared_signature
from horologe_gpu_worker.runtime import OpenModel, Runtime
from horologe_gpu_worker.runtimes.emulated_device import EmulatedDeviceFile
from horologe_gpu_worker.runtimes.open_streams import OpenStreams
from horologe_gpu_worker.settings import DEFAULTS, WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from numpy.typing import NDArray

    from horologe_common.interference.coefficients import GpuCoefficients, ModelCoefficients
    from horologe_common.interference.colocation import DeviceActivity
    from horologe_gpu_worker.core.stream_step import Step
    from horologe_gpu_worker.repository.manifest_fields import EmulatedSharing

DELAY_MAX_NS, DELAY_UP_NS, DELAY_DOWN_NS = us(150), us(1), us(3)
"""Limit of the expected delay of a wake-up, and its steps after a longer and a shorter one. It follows the 0.25
quantile, so that three of four waits end without spinning, and a stall has no effect.
"""
MIB = 1 << 20


class Sleeper:
    """Waits until a time. Clock and sleep (seconds) are parameters, so that tests need not wait.

    One sleep ends early by the usual delay of a wake-up; the rest is spun. 2.6 ms cost 47 us of CPU and end 20 us late
    (median). Spinning for the last 200 us cost 190 us, and eight lanes on two cores made each other late.
    """

    def __init__(self, clock: Callable[[], int] = monotonic_ns, sleep: Callable[[float], None] = time.sleep) -> None:
        self._clock = clock
        self._sleep = sleep
        self._delay_ns = 0

    def until(self, begin_ns: int, duration_ns: int) -> None:
        clock, delay_ns = self._clock, self._delay_ns
        end_ns = begin_ns + duration_ns
        rest_ns = end_ns - delay_ns - clock()
        if rest_ns > 0:
            self._sleep(rest_ns / 1e9)
            delay_ns += DELAY_UP_NS if clock() > end_ns else -DELAY_DOWN_NS
            self._delay_ns = min(max(0, delay_ns), DELAY_MAX_NS)
        while clock() < end_ns:
            pass

    def now_ns(self) -> int:
        return self._clock()


class DeclaredTimes(NamedTuple):
    """Times in ns that depend on the batch size alone, with the methods of `CoLocatedModel`."""

    exec_ns: dict[int, int]
    input_row_ns: int
    output_row_ns: int

    def solo_ns(self, batch: int) -> int:
        return self.exec_ns[batch]

    def begin_exec(self, now_ns: int, batch: int) -> int:
        return self.exec_ns[batch]

    def input_ns(self, rows: int) -> int:
        return rows * self.input_row_ns

    def output_ns(self, rows: int) -> int:
        return rows * self.output_row_ns


class EmulatedModel(OpenModel):
    """Returns after the time of the batch: zeros, or the unchanged input with the output's datatype and shape."""

    has_transfers = True

    def __init__(
        self,
        spec: ModelSpec,
        times: DeclaredTimes | CoLocatedModel,
        waiter: Sleeper,
        items: int = 0,
        max_open: int = 0,
    ) -> None:
        """`items`: of a stream; `max_open`: streams that may be open."""
        self._waiter = waiter
        self._times = times
        self._outputs = {size: zeros(spec, spec.outputs, size) for size in spec.batch_sizes}
        self._echoes = _echoes(spec)
        self._items = items
        self._streams = OpenStreams(self._yield_items, max_open)

    def run(self, batch_size: int, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        begin_ns = self._waiter.now_ns()
        duration_ns = self._times.begin_exec(begin_ns, batch_size)
        outputs = self._outputs[batch_size] | {name: inputs[source] for name, source in self._echoes.items()}
        self._waiter.until(begin_ns, duration_ns)
        return outputs

    def step(self, step: Step, inputs: Mapping[str, NDArray[Any]]) -> tuple[Mapping[str, NDArray[Any]] | None, bool]:
        return self._streams.step(step, inputs)

    def end_streams(self, owner: str, streams: tuple[int, ...] = ()) -> None:
        self._streams.end(owner, streams)

    def _yield_items(self, inputs: Mapping[str, NDArray[Any]]) -> Generator[Mapping[str, NDArray[Any]], None, Any]:
        inputs = {name: array.copy() for name, array in inputs.items()}
        for number in range(1, self._items):
            yield self.run(FIRST_STEP if number == 1 else NEXT_STEP, inputs)
        return self.run(NEXT_STEP if self._items > 1 else FIRST_STEP, inputs)

    def copy_in(self, rows: int) -> None:
        self._waiter.until(self._waiter.now_ns(), self._times.input_ns(rows))

    def copy_out(self, rows: int) -> None:
        self._waiter.until(self._waiter.now_ns(), self._times.output_ns(rows))


class EmulatedRuntime(Runtime):
    """Models that consist of a declared signature and of times: declared, or those of a share of an emulated device."""

    def __init__(self, settings: WorkerSettings = DEFAULTS, waiter: Sleeper | None = None) -> None:
        self._waiter = waiter or Sleeper()
        self._settings = settings
        self._activity: DeviceActivity | None = None
        self._models: dict[Path, tuple[Manifest, EmulatedTimes, DeclaredTimes | CoLocatedModel]] = {}
        """Manifest, `[emulated]` and times of the models by folder, read by `inspect`."""

    def inspect(self, folder: Path) -> ModelSpec:
        manifest = read_manifest(folder)
        times = _times(folder, manifest)
        if not manifest.batch_sizes and manifest.stream is None:
            sizes = tuple(sorted(times.exec_ms)) or BATCH_SIZES
            manifest = msgspec.structs.replace(manifest, batch_sizes=sizes)
        spec = build_spec(
            folder, manifest, "emulated", declared_signature(manifest, folder), round(times.weights_mb * MIB)
        )
        self._models[folder] = manifest, times, self._batch_times(folder, spec, times)
        return spec

    def prepare(self, spec: ModelSpec, folder: Path) -> None:
        """Keep the times that `inspect` reads."""
        self.inspect(folder)

    def open(self, spec: ModelSpec, folder: Path, *, warm: bool = True) -> EmulatedModel:
        """Open the model, which `inspect` has read; takes `load_ms`. It has nothing to warm up."""
        begin_ns = self._waiter.now_ns()
        manifest, declared, times = self._models[folder]
        max_open = manifest.stream.max_open if manifest.stream else 0
        model = EmulatedModel(spec, times, self._waiter, declared.items, max_open)
        self._waiter.until(begin_ns, ms(declared.load_ms))
        return model

    def profile(self, spec: ModelSpec, folder: Path) -> Profile:
        """Return the times alone, which `inspect` has read; nothing is measured."""
        _, declared, times = self._models[folder]
        return Profile({size: times.solo_ns(size) for size in spec.batch_sizes}, ms(declared.load_ms))

    def _batch_times(self, folder: Path, spec: ModelSpec, times: EmulatedTimes) -> DeclaredTimes | CoLocatedModel:
        where = str(manifest_path(folder))
        if times.sharing is not None:
            return co_located_model(
                where, spec.name, times.sharing, self._settings.share_percent, self._device_activity()
            )
        if missing := [size for size in spec.batch_sizes if size not in times.exec_ms]:
            raise InvalidModel(
                f"{where}: emulated.exec_ms: got times for {sorted(times.exec_ms)}, "
                f"wanted {missing} too, as in batch_sizes"
            )
        exec_ns = {size: ms(value) for size, value in times.exec_ms.items()}
        return DeclaredTimes(exec_ns, ms(times.input_ms), ms(times.output_ms))

    def _device_activity(self) -> DeviceActivity:
        """Return this worker's view of its emulated device, the same for all models."""
        if self._activity is None:
            path = self._settings.emulated_device
            self._activity = EmulatedDeviceFile(Path(path)) if path else SharedDevice().join()
        return self._activity


def _echoes(spec: ModelSpec) -> dict[str, str]:
    """Return output name -> the first input with the same datatype and shape."""
    sources = {(source.datatype, source.shape): source.name for source in reversed(spec.inputs)}
    kinds = {output.name: (output.datatype, output.shape) for output in spec.outputs}
    return {name: sources[kind] for name, kind in kinds.items() if kind in sources}


def _times(folder: Path, manifest: Manifest) -> EmulatedTimes:
    times = manifest.emulated
    where = manifest_path(folder) or folder / "model.toml"
    if times is None:
        raise InvalidModel(f"{where}: emulated: got no table, wanted [emulated] with exec_ms by batch size")
    if times.sharing is not None and times.exec_ms:
        raise InvalidModel(f"{where}: emulated.exec_ms: got times and [emulated.sharing], wanted one of them")
    if not (times.exec_ms or times.sharing):
        raise InvalidModel(f"{where}: emulated: got no times, wanted exec_ms by batch size or [emulated.sharing]")
    return times


def co_located_model(
    where: str, name: str, sharing: EmulatedSharing, share_percent: float, activity: DeviceActivity
) -> CoLocatedModel:
    """Return the times of a model on a share. Raises InvalidModel that names file, field, got and wanted.

    The noise depends on the table's seed and the model's name: its prediction error is the same on every share.
    """
    place = f"{where}: emulated.sharing"
    if sharing.interference not in INTERFERENCE_MODELS:
        wanted = ", ".join(INTERFERENCE_MODELS)
        raise InvalidModel(f"{place}.interference: got {sharing.interference!r}, wanted one of {wanted}")
    if not (isfinite(sharing.time_factor) and sharing.time_factor > 0):
        raise InvalidModel(f"{place}.time_factor: got {sharing.time_factor:g}, wanted a finite number above 0")
    gpu, coefficients = find_coefficients(place, sharing)
    try:
        gpu.validate()
        coefficients.validate()
    except ValueError as error:
        raise InvalidModel(f"{place}: {error}") from error
    seed = [abs(sharing.seed), crc32(name.encode())]
    noise = ExecutionNoise(coefficients, seed) if sharing.noise else None
    return CoLocatedModel(gpu, coefficients, sharing.interference, share_percent, activity, noise, sharing.time_factor)


def find_coefficients(place: str, sharing: EmulatedSharing) -> tuple[GpuCoefficients, ModelCoefficients]:
    """Return the coefficients of the table, or the built-in ones that it names."""
    catalogue = V100_CATALOGUES[sharing.interference]
    gpu, model = sharing.gpu, sharing.model
    if isinstance(gpu, str):
        if gpu != catalogue.gpu.name:
            raise InvalidModel(f"{place}.gpu: got {gpu!r}, wanted {catalogue.gpu.name!r} or a table of coefficients")
        gpu = catalogue.gpu
    if isinstance(model, str):
        if model not in catalogue.models:
            wanted = ", ".join(catalogue.models)
            raise InvalidModel(f"{place}.model: got {model!r}, wanted one of {wanted}, or a table of coefficients")
        model = catalogue.models[model]
    return gpu, model
