"""Session of measurements: all planned runs on a bench, each recorded at once, none repeated."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from horologe_gpu_worker.measurement.share_connection import ShareFailed
from horologe_planning.interference.coefficients_file import MeasuredRuns
from horologe_planning.interference.measurement_plan import RunSizes, copies_runs, model_runs, pair_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from horologe_common.interference.measured_runs import MeasuredDevice, MeasuredModel, MeasuredRun, ShareLoad
    from horologe_planning.interference.coefficients_file import Origin
    from horologe_planning.interference.measurement_plan import Run

ATTEMPTS = 2
"""Attempts at a run whose process fails."""


class Bench(Protocol):
    """The methods of `DeviceBench` that a session uses."""

    def measure_device(self, model: str) -> MeasuredDevice: ...

    def describe_model(self, model: str) -> MeasuredModel: ...

    def run(self, loads: Sequence[ShareLoad]) -> MeasuredRun: ...


class SessionProgress(NamedTuple):
    """Callbacks: after each run with the number of finished and of all runs, and to store the measurements so far."""

    report: Callable[[int, int, str], None]
    store: Callable[[MeasuredRuns], None]


class MeasurementSession:
    """Runs all planned runs of some models. `earlier` are the measurements of an interrupted session."""

    def __init__(
        self, bench: Bench, models: Sequence[str], sizes: RunSizes, origin: Origin, earlier: MeasuredRuns | None = None
    ) -> None:
        self._bench = bench
        self._models = models
        self._sizes = sizes
        self._origin = origin
        self._earlier = earlier
        self.failed: dict[str, str] = {}
        """Run -> the reason why it failed."""

    def measure(self, progress: SessionProgress) -> MeasuredRuns:
        """Return the measurements. Raises the bench's errors, after it has stored the finished runs."""
        self._measured = self._earlier or MeasuredRuns(self._bench.measure_device(self._models[0]), self._origin)
        self._describe_models()
        progress.store(self._measured)
        finished, total = Counter(run.loads for run in self._measured.runs), len(list(self._planned_runs()))
        for number, run in enumerate(self._planned_runs()):
            progress.report(number, total, describe_run(run))
            if finished[run]:
                finished[run] -= 1
            elif (measured := self._run(run)) is not None:
                runs = (*self._measured.runs, measured)
                self._measured = msgspec.structs.replace(self._measured, runs=runs)
                progress.store(self._measured)
        progress.report(total, total, "")
        return self._measured

    def _planned_runs(self) -> Iterator[Run]:
        """Yield the runs of each model, of copies of the model that needs the most power, and of pairs."""
        sizes = {name: self._sizes_of[name] for name in self._models}
        for model in self._models:
            yield from model_runs(model, sizes[model], self._sizes)
        power_w = {run.loads[0].model: run.power_w for run in self._measured.runs if len(run.loads) == 1}
        hottest = max(self._models, key=lambda model: power_w.get(model, 0.0))
        yield from copies_runs(hottest, sizes[hottest], self._sizes)
        yield from pair_runs(sizes, self._sizes)

    def _describe_models(self) -> None:
        known = {model.model for model in self._measured.models}
        new = [self._bench.describe_model(model) for model in self._models if model not in known]
        models = (*self._measured.models, *new)
        self._measured = msgspec.structs.replace(self._measured, models=models)
        self._sizes_of = {model.model: model.batch_sizes for model in models}

    def _run(self, run: Run) -> MeasuredRun | None:
        """Return the measured run; None if its processes failed in every attempt."""
        for _ in range(ATTEMPTS):
            try:
                return self._bench.run(run)
            except ShareFailed as error:
                self.failed[describe_run(run)] = error.reason
        return None


def describe_run(run: Run) -> str:
    """Return the loads of a run as text: `resnet50 b16 50% + vgg19 b16 50%`."""
    return " + ".join(f"{load.model} b{load.batch} {load.share_percent:g}%" for load in run)
