"""Write the data set of the demo, and the ONNX models of the demo and the benchmarks, from data and fixed seeds.

    python models/export.py                     # models/ and benchmarks/models/, in place
    python models/export.py --out /tmp/elsewhere

ORT_DISABLE_TELEMETRY=1 in the environment switches the telemetry of ONNX Runtime off.

Needs the extra `models`. The graphs are written by hand, so that nothing here needs torch. The linear model and the MLP
are fitted by scikit-learn. The CNN has fixed filters, cut from training images, and a head fitted to their outputs
(ridge regression, which has one solution and no random start). On the same machine and libraries, the script writes the
same bytes; on another, models of the same accuracy.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from horologe_cli.demo import digits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
OPSET, IR_VERSION = 17, 8  # old enough for every ONNX Runtime that the package allows

PIXEL_MAX = 16
NOVICE_IMAGES = 20
SIDE = 48  # the CNN enlarges 8x8 images to 48x48, which determines its cost per item
FILTERS_1, WIDTH_1 = 32, 7
FILTERS_2, WIDTH_2 = 128, 3
POOL = 12  # 48x48 -> 4x4 per filter
THRESHOLD = 0.1  # minimum similarity to which a filter responds
RIDGE = 1.0
SHARPNESS = 10.0  # factor for regression outputs in 0..1, so that softmax returns probabilities


class Graph(NamedTuple):
    """An ONNX graph under construction: nodes, constants, and the shapes of input and output without rows."""

    nodes: list[Any]
    constants: dict[str, NDArray[Any]]
    source: tuple[str, Sequence[int]]
    target: tuple[str, Sequence[int]]

    def model(self, name: str) -> onnx.ModelProto:
        """Build and check the model. Rows are the symbolic dimension `rows` of input and output."""
        ends = [
            helper.make_tensor_value_info(end, TensorProto.FLOAT, ["rows", *shape])
            for end, shape in (self.source, self.target)
        ]
        constants = [numpy_helper.from_array(value, key) for key, value in self.constants.items()]
        graph = helper.make_graph(self.nodes, name, [ends[0]], [ends[1]], constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="horologe")
        model.ir_version = IR_VERSION
        onnx.checker.check_model(model, full_check=True)
        return model

    def run(self, inputs: NDArray[np.float32], chunk: int = 64) -> NDArray[np.float32]:
        """Run the graph on one thread and return its output."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(self.model("part").SerializeToString(), options)
        parts = [inputs[at : at + chunk] for at in range(0, len(inputs), chunk)]
        return np.concatenate([session.run([self.target[0]], {self.source[0]: part})[0] for part in parts])


def f32(value: Any) -> NDArray[np.float32]:
    return np.ascontiguousarray(value, np.float32)


def dense(layers: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> Graph:
    """Build fully connected layers (weights [in, out], bias [out]) with ReLU between and softmax at the end."""
    nodes: list[Any] = []
    constants: dict[str, NDArray[Any]] = {}
    value = "image"
    for i, (weights, bias) in enumerate(layers):
        constants |= {f"weights{i}": f32(weights), f"bias{i}": f32(bias)}
        nodes.append(helper.make_node("Gemm", [value, f"weights{i}", f"bias{i}"], [f"sum{i}"]))
        value = f"sum{i}"
        if i < len(layers) - 1:
            nodes.append(helper.make_node("Relu", [value], [f"hidden{i}"]))
            value = f"hidden{i}"
    nodes.append(helper.make_node("Softmax", [value], ["probabilities"], axis=1))
    return Graph(nodes, constants, ("image", [layers[0][0].shape[0]]), ("probabilities", [10]))


def digits_linear() -> Graph:
    """Fit a logistic regression. The scaling of pixels is part of the weights."""
    images, labels = digits.training()
    fitted = LogisticRegression(max_iter=2000).fit(images / PIXEL_MAX, labels)
    return dense([(fitted.coef_.T / PIXEL_MAX, fitted.intercept_)])


def novice() -> Graph:
    """Fit a logistic regression to twenty images: about two predictions in three are right. Applications learn to avoid
    it.
    """
    images, labels = (part[:NOVICE_IMAGES] for part in digits.training())
    fitted = LogisticRegression(max_iter=2000).fit(images / PIXEL_MAX, labels)
    return dense([(fitted.coef_.T / PIXEL_MAX, fitted.intercept_)])


def digits_mlp() -> Graph:
    """Fit an MLP with one hidden layer of 256."""
    images, labels = digits.training()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # training stops early on purpose
        fitted = MLPClassifier((256,), random_state=0, max_iter=60, alpha=1e-2).fit(images / PIXEL_MAX, labels)
    first, *rest = zip(fitted.coefs_, fitted.intercepts_, strict=True)
    return dense([(first[0] / PIXEL_MAX, first[1]), *rest])


def digits_cnn() -> Graph:
    """Build two layers of fixed filters, average pooling, and a head fitted to the 2,048 pooled outputs."""
    images, labels = digits.training()
    graph = _features(images, np.random.RandomState(0))  # NumPy guarantees the stream of this generator only
    weights, bias = _head(graph.run(images).astype(np.float64), labels)
    nodes = [
        *graph.nodes,
        helper.make_node("Gemm", ["pooled", "head", "head_bias"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["probabilities"], axis=1),
    ]
    constants = graph.constants | {"head": f32(weights), "head_bias": f32(bias)}
    return Graph(nodes, constants, graph.source, ("probabilities", [10]))


def _features(images: NDArray[np.float32], random: np.random.RandomState) -> Graph:
    nodes = [
        helper.make_node("Mul", ["image", "scale"], ["scaled"]),
        helper.make_node("Reshape", ["scaled", "grid"], ["small"]),
        helper.make_node("Resize", ["small", "", "enlarge"], ["large"], mode="linear"),
    ]
    constants: dict[str, NDArray[Any]] = {
        "scale": f32(1 / PIXEL_MAX),
        "grid": np.array([-1, 1, 8, 8], np.int64),
        "enlarge": f32([1, 1, SIDE / 8, SIDE / 8]),
    }
    value, shape = "large", [1, SIDE, SIDE]
    for layer, filters, width in ((1, FILTERS_1, WIDTH_1), (2, FILTERS_2, WIDTH_2)):
        below = Graph(nodes, constants, ("image", [64]), (value, shape)).run(images[:300])
        constants |= {f"filters{layer}": cut_filters(below, filters, width, random)}
        constants |= {f"threshold{layer}": np.full(filters, -THRESHOLD, np.float32)}
        names = [value, f"filters{layer}", f"threshold{layer}"]
        nodes += [
            helper.make_node("Conv", names, [f"match{layer}"], pads=[width // 2] * 4),
            helper.make_node("Relu", [f"match{layer}"], [f"seen{layer}"]),
        ]
        value, shape = f"seen{layer}", [filters, SIDE, SIDE]
    nodes += [
        helper.make_node("AveragePool", [value], ["cells"], kernel_shape=[POOL, POOL], strides=[POOL, POOL]),
        helper.make_node("Flatten", ["cells"], ["pooled"]),
    ]
    return Graph(nodes, constants, ("image", [64]), ("pooled", [FILTERS_2 * (SIDE // POOL) ** 2]))


def cut_filters(
    values: NDArray[np.float32], count: int, width: int, random: np.random.RandomState
) -> NDArray[np.float32]:
    """Return `count` filters [channels, width, width]: patches of `values` [n, channels, h, w], mean 0, length 1."""
    filters: list[NDArray[np.float32]] = []
    n, _, height, breadth = values.shape
    while len(filters) < count:
        i, top, left = random.randint(n), random.randint(height - width + 1), random.randint(breadth - width + 1)
        patch = values[i, :, top : top + width, left : left + width]
        patch = patch - patch.mean()
        if (length := float(np.linalg.norm(patch))) > 0.3:  # not an empty corner
            filters.append(patch / length)
    return f32(filters)


def _head(features: NDArray[np.float64], labels: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
    mean, spread = features.mean(0), features.std()
    scaled = (features - mean) / spread
    wanted = np.eye(10)[labels] - 0.1
    dual = np.linalg.solve(scaled @ scaled.T + RIDGE * np.eye(len(scaled)), wanted)
    weights = scaled.T @ dual / spread
    return SHARPNESS * weights, SHARPNESS * (0.1 - mean @ weights)


def noop() -> Graph:
    """Sum 16 numbers."""
    nodes = [helper.make_node("ReduceSum", ["x", "axes"], ["sum"], keepdims=1)]
    return Graph(nodes, {"axes": np.array([1], np.int64)}, ("x", [16]), ("sum", [1]))


def cnn_10ms() -> Graph:
    """Take about 10 ms per item on one core of 2.5 GHz with AVX-512: 1.2 GFLOP in six convolutions at full size."""
    random = np.random.RandomState(0)
    nodes: list[Any] = []
    constants: dict[str, NDArray[Any]] = {}
    value, channels = "image", 3
    for layer, filters in enumerate((32, 64, 64, 64, 64, 32)):
        weights = f"filters{channels}to{filters}"  # layers of the same size share filters, for a small file
        if weights not in constants:
            scale = np.sqrt(2 / (channels * 9))  # keeps the size of values from layer to layer (He et al. 2015)
            constants[weights] = f32(random.randn(filters, channels, 3, 3) * scale)
        nodes.append(helper.make_node("Conv", [value, weights], [f"match{layer}"], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"match{layer}"], [f"seen{layer}"]))
        value, channels = f"seen{layer}", filters
    constants["head"] = f32(random.randn(channels, 10) / np.sqrt(channels))
    nodes += [
        helper.make_node("GlobalAveragePool", [value], ["means"]),
        helper.make_node("Flatten", ["means"], ["flat"]),
        helper.make_node("MatMul", ["flat", "head"], ["scores"]),
    ]
    return Graph(nodes, constants, ("image", [3, 64, 64]), ("scores", [10]))


def image_600k() -> Graph:
    """Take a 224x224 colour image of float32 (602,112 bytes) and return its mean: most of its cost is transport."""
    nodes = [
        helper.make_node("Flatten", ["image"], ["flat"]),
        helper.make_node("ReduceMean", ["flat"], ["mean"], axes=[1], keepdims=1),
    ]
    return Graph(nodes, {}, ("image", [3, 224, 224]), ("mean", [1]))


EXPORTS: dict[str, Callable[[], Graph]] = {
    "models/digits-linear/1": digits_linear,
    "models/digits-mlp/1": digits_mlp,
    "models/digits-cnn/1": digits_cnn,
    "models/novice/1": novice,
    "models/noop/1": noop,
    "benchmarks/models/cnn-10ms/1": cnn_10ms,
    "benchmarks/models/image-600k/1": image_600k,
}
"""Version folder -> function that builds its graph."""


def export(out: Path, folder: str) -> Path:
    """Build one model and write it under `out`."""
    path = out / folder / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    name = Path(folder).parent.name
    path.write_bytes(EXPORTS[folder]().model(name).SerializeToString(deterministic=True))
    return path


def export_digits(path: Path) -> None:
    """Write the data set of the demo."""
    path.parent.mkdir(parents=True, exist_ok=True)
    bunch = load_digits()
    np.savez_compressed(path, images=bunch.data.astype(np.uint8), digits=bunch.target.astype(np.uint8))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the demo's data set, and its and the benchmarks' ONNX models.")
    parser.add_argument("--out", type=Path, default=ROOT, help="folder to write under (default: the repository)")
    out = parser.parse_args().out
    export_digits(out / digits.DATA.relative_to(ROOT))
    for folder in EXPORTS:
        path = export(out, folder)
        print(f"{folder}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
