"""What batches of real models take on this machine, in the worker's runtimes: Clipper's latency profiles (Fig. 3)."""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import psutil

from horologe_cli.local.local_services import default_repository
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
"""Name -> what makes it; `no-op` answers zeros, so that it shows what the process around a model costs."""
SOURCE = """
import warnings
import numpy as np
import sklearn.ensemble, sklearn.svm
from horologe_experiments.live.batch_times import enlarged
from horologe_cli.demo.digits import training

class Model:
    def __init__(self):
        warnings.simplefilter("ignore")  # that a fit has not converged to the last digit
        self.estimator = {estimator}
        if self.estimator is not None:
            images, digits = training()
            self.estimator.fit(enlarged(images), digits)

    def predict_batch(self, inputs):
        images = inputs["image"]
        digits = np.zeros(len(images)) if self.estimator is None else self.estimator.predict(images)
        return {{"digit": digits.astype(np.int64)[:, None]}}
"""
MANIFEST = """
batch_sizes = [1]
timeout = "30s"
inputs = [{ name = "image", datatype = "FP32", shape = [-1, 784] }]
outputs = [{ name = "digit", datatype = "INT64", shape = [-1, 1] }]
"""
MOST_ROWS = 1 << 16
SIDE = 28
"""Of the images that Python models get, the 8x8 digits enlarged: as large as MNIST's, which the paper has."""
BEYOND = 1.6
"""Of the longest time that is asked about: what is measured must go beyond it."""


class Effort(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much is measured of each batch size."""

    rounds: int = 5
    """Through all sizes. The quietest counts: what other processes take away in the others is not the model's."""
    runs_min: int = 10
    enough_ns: int = ms(50)
    """In a round, runs until they have taken so long in all, beyond the least number."""
    between: bool = True
    """Also sizes halfway between powers of two."""


class Measured(NamedTuple):
    """What batches of one model take: medians in ms by size, never falling with it."""

    name: str
    runtime: str
    p50_ms: dict[int, float]

    def took_ms(self, rows: float) -> float:
        """Of a batch of so many rows, on straight lines between those that were measured."""
        return float(np.interp(rows, list(self.p50_ms), list(self.p50_ms.values())))

    def rate(self, rows: float) -> float:
        """Rows a second in batches of so many."""
        return 1e3 * rows / self.took_ms(rows)

    def most_rows(self, limit_ms: float) -> int:
        """The largest batch that takes at most `limit_ms`, or the largest that was measured; at least 1."""
        low, high = 1, max(self.p50_ms)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.took_ms(middle) <= limit_ms else (low, middle - 1)
        return low


def lay_out(folder: Path, onnx: Sequence[str], estimators: Sequence[str]) -> dict[str, tuple[str, Path]]:
    """Name -> its runtime and a version folder under `folder`: ONNX models of the repository, and Python models.

    Raises `SettingsError` for a name that is not known, and where scikit-learn is not installed.
    """
    try:
        import sklearn  # noqa: F401 - the models' own processes import it
    except ImportError:
        raise SettingsError("batching: scikit-learn is not installed: pip install 'horologe[demo]'") from None
    found: dict[str, tuple[str, Path]] = {}
    for name in onnx:
        source = Path(default_repository()) / name / "1" / "model.onnx"
        if not source.is_file():
            raise SettingsError(f"onnx: got {name!r}, wanted a model of {Path(default_repository()).resolve()}")
        found[name] = "onnx", _version(folder, name, "batch_sizes = [1]\n")
        shutil.copy(source, found[name][1])
    for name in estimators:
        if name not in ESTIMATORS:
            raise SettingsError(f"estimators: got {name!r}, wanted one of {', '.join(ESTIMATORS)}")
        found[name] = "python", _version(folder, name, MANIFEST)
        (found[name][1] / "model.py").write_text(SOURCE.format(estimator=ESTIMATORS[name]))
    return found


def _version(folder: Path, name: str, manifest: str) -> Path:
    version = folder / name / "1"
    version.mkdir(parents=True)
    (version / "model.toml").write_text(manifest)
    return version


def measure(name: str, kind: str, folder: Path, limit_ms: float, effort: Effort) -> Measured:
    """Run ever larger batches of real images, until they take well beyond `limit_ms`."""
    from horologe_cli.demo.digits import held_out

    images = held_out()[0] if kind == "onnx" else enlarged(held_out()[0])
    runtime = RUNTIMES[kind]()
    model = runtime.open(runtime.inspect(folder), folder)
    quietest: dict[int, float] = {}
    try:
        for _ in range(effort.rounds):
            for size in _sizes(effort):
                took_ms = _median_ms(model, np.resize(images, (size, images.shape[1])), effort)
                quietest[size] = min(took_ms, quietest.get(size, took_ms))
                if quietest[size] > BEYOND * limit_ms:
                    break
    finally:
        model.close()
    sizes = sorted(quietest)
    never_falling = np.maximum.accumulate([quietest[size] for size in sizes])
    return Measured(name, kind, dict(zip(sizes, never_falling.tolist(), strict=True)))


def enlarged(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Images [n, 64] of 8x8 pixels as [n, 784]: every pixel becomes several."""
    pixels = np.arange(SIDE) * 8 // SIDE
    return images.reshape(-1, 8, 8)[:, pixels][:, :, pixels].reshape(len(images), -1)


def _sizes(effort: Effort) -> list[int]:
    powers = [1 << at for at in range(MOST_ROWS.bit_length())]
    return sorted({*powers, *(3 * one for one in powers[:-2])}) if effort.between else powers


def _median_ms(model: OpenModel, batch: NDArray[np.float32], effort: Effort) -> float:
    """Neither runtime compiles sizes, so any may be run."""
    inputs, times = {"image": batch}, list[int]()
    children = psutil.Process().children()
    while len(times) < effort.runs_min or sum(times) < effort.enough_ns:
        begin_ns = _processor_ns(children)
        model.run(len(batch), inputs)
        times.append(_processor_ns(children) - begin_ns)
    return statistics.median(times) / 1e6


def _processor_ns(children: Sequence[psutil.Process]) -> int:
    """Time on a processor of this process and of what it waits for; what the kernel counts when one stops to run."""
    waited = (int(Path(f"/proc/{child.pid}/schedstat").read_text().split()[0]) for child in children)
    return time.process_time_ns() + sum(waited)
