"""Execution times of batches of real models in the worker's runtimes: Clipper's latency profiles (Fig. 3)."""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import psutil

from horologe_cli.local.topology import default_repository
from horologe_common.clock import ms
from horologe_common.service.settings import SettingsError
from horologe_gpu_worker.runtimes import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from horologe_gpu_worker.runtime import OpenModel

ESTIMATORS = {
    "no-op": "None",
    "linear-svm": "sklearn.svm.LinearSVC(random_state=0)",
    "kernel-svm": "sklearn.svm.SVC()",
    "random-forest": "sklearn.ensemble.RandomForestClassifier(100, random_state=0)",
}
"""Name -> expression that creates the estimator. `no-op` answers zeros, which shows the cost of the process."""
SOURCE = """
import warnings
import numpy as np
import sklearn.ensemble, sklearn.svm
from horologe_experiments.live.batch_times import enlarge
from horologe_cli.demo.digits import training

class Model:
    def __init__(self):
        warnings.simplefilter("ignore")  # about fits that did not converge
        self.estimator = {estimator}
        if self.estimator is not None:
            images, digits = training()
            self.estimator.fit(enlarge(images), digits)

    def predict_batch(self, inputs):
        images = inputs["image"]
        digits = np.zeros(len(images)) if self.estimator is None else self.estimator.predict(images)
        return {{"digit": digits.astype(np.int64)[:, None]}}
"""
MANIFEST = """
timeout = "30s"
inputs = [{ name = "image", datatype = "FP32", shape = [-1, 784] }]
outputs = [{ name = "digit", datatype = "INT64", shape = [-1, 1] }]
"""
MOST_ROWS = 1 << 16
SIDE = 28
"""Width and height of the images for Python models: the 8x8 digits enlarged to the size of the paper's MNIST."""
BEYOND = 1.6
"""Factor on the longest time of interest: the measurements must go beyond it."""


class Effort(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Number of measurements of each batch size."""

    rounds: int = 5
    """Rounds through all sizes. The fastest round counts, because other processes disturb the others."""
    runs_min: int = 10
    enough_ns: int = ms(50)
    """Total time of the runs of a round, at least; `runs_min` is the least number of runs."""
    between: bool = True
    """Measure also the sizes halfway between powers of two."""


class BatchTimes(NamedTuple):
    """Median execution times of one model in milliseconds by batch size. They never decrease with the size."""

    name: str
    runtime: str
    p50_ms: dict[int, float]

    def batch_ms(self, rows: float) -> float:
        """Return the time of a batch of `rows`, interpolated linearly between measurements."""
        return float(np.interp(rows, list(self.p50_ms), list(self.p50_ms.values())))

    def rate(self, rows: float) -> float:
        """Return the rows per second in batches of `rows`."""
        return 1e3 * rows / self.batch_ms(rows)

    def most_rows(self, limit_ms: float) -> int:
        """Return the largest batch of at most `limit_ms`, up to the largest measured one; at least 1."""
        low, high = 1, max(self.p50_ms)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.batch_ms(middle) <= limit_ms else (low, middle - 1)
        return low


def write_models(
    folder: Path, onnx: Sequence[str], estimators: Sequence[str], batch_sizes: Sequence[int] = (1,)
) -> dict[str, tuple[str, Path]]:
    """Write ONNX models of the repository and Python models under `folder`. Return runtime and version folder by name.

    Raises `SettingsError` for an unknown name, and without scikit-learn.
    """
    try:
        import sklearn  # noqa: F401 - the processes of the models import it
    except ImportError:
        raise SettingsError("batching: scikit-learn is not installed: pip install 'horologe[models]'") from None
    models: dict[str, tuple[str, Path]] = {}
    sizes = f"batch_sizes = {list(batch_sizes)}\n"
    for name in onnx:
        source = Path(default_repository()) / name / "1" / "model.onnx"
        if not source.is_file():
            raise SettingsError(f"onnx: got {name!r}, wanted a model of {Path(default_repository()).resolve()}")
        models[name] = "onnx", _write_version(folder, name, sizes)
        shutil.copy(source, models[name][1])
    for name in estimators:
        if name not in ESTIMATORS:
            raise SettingsError(f"estimators: got {name!r}, wanted one of {', '.join(ESTIMATORS)}")
        models[name] = "python", _write_version(folder, name, sizes + MANIFEST)
        (models[name][1] / "model.py").write_text(SOURCE.format(estimator=ESTIMATORS[name]))
    return models


def _write_version(folder: Path, name: str, manifest: str) -> Path:
    version = folder / name / "1"
    version.mkdir(parents=True)
    (version / "model.toml").write_text(manifest)
    return version


def measure_batches(name: str, kind: str, folder: Path, limit_ms: float, effort: Effort) -> BatchTimes:
    """Run larger and larger batches of real images until one takes more than `BEYOND` times `limit_ms`."""
    from horologe_cli.demo.digits import held_out

    images = held_out()[0] if kind == "onnx" else enlarge(held_out()[0])
    runtime = RUNTIMES[kind]()
    model = runtime.open(runtime.inspect(folder), folder)
    fastest_ms: dict[int, float] = {}
    try:
        for _ in range(effort.rounds):
            for size in _sizes(effort):
                median_ms = _median_ms(model, np.resize(images, (size, images.shape[1])), effort)
                fastest_ms[size] = min(median_ms, fastest_ms.get(size, median_ms))
                if fastest_ms[size] > BEYOND * limit_ms:
                    break
    finally:
        model.close()
    sizes = sorted(fastest_ms)
    never_decreasing = np.maximum.accumulate([fastest_ms[size] for size in sizes])
    return BatchTimes(name, kind, dict(zip(sizes, never_decreasing.tolist(), strict=True)))


def enlarge(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Enlarge images [n, 64] of 8x8 pixels to [n, 784] by repeating pixels."""
    pixels = np.arange(SIDE) * 8 // SIDE
    return images.reshape(-1, 8, 8)[:, pixels][:, :, pixels].reshape(len(images), -1)


def _sizes(effort: Effort) -> list[int]:
    powers = [1 << bit for bit in range(MOST_ROWS.bit_length())]
    return sorted({*powers, *(3 * power for power in powers[:-2])}) if effort.between else powers


def _median_ms(model: OpenModel, batch: NDArray[np.float32], effort: Effort) -> float:
    """Return the median time of a batch. Neither runtime compiles sizes, so any size can run."""
    inputs, times = {"image": batch}, list[int]()
    children = psutil.Process().children()
    while len(times) < effort.runs_min or sum(times) < effort.enough_ns:
        begin_ns = _processor_ns(children)
        model.run(len(batch), inputs)
        times.append(_processor_ns(children) - begin_ns)
    return statistics.median(times) / 1e6


def _processor_ns(children: Sequence[psutil.Process]) -> int:
    """Return the processor time of this process and of its children.

    The kernel updates the counters of a child when it stops running.
    """
    child_ns = (int(Path(f"/proc/{child.pid}/schedstat").read_text().split()[0]) for child in children)
    return time.process_time_ns() + sum(child_ns)
