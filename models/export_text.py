"""Write the text encoder of the benchmarks: a model whose execution time depends on the length of its input.

    python models/export_text.py                     # benchmarks/models/text-encoder, in place
    python models/export_text.py --out /tmp/models

Needs the extra `models`. A transformer encoder (Vaswani et al. 2017, layers normalised first): tokens and mask
[rows, length] in, the mean of the last layer over the unmasked tokens out. Attention ignores masked tokens, so
padding does not change the embedding of a row.

The weights are pseudo-random. They are stored as a formula, the sine of the product of two random vectors, which ONNX
Runtime evaluates once, when the model is opened: 0.3 MB in the repository, 110 MB in memory.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "benchmarks/models/text-encoder/1"
OPSET, IR_VERSION = 17, 8  # as in export.py

VOCABULARY = 4096
WIDTH, HEADS, LAYERS, HIDDEN = 512, 8, 8, 2048
"""25 million weights in the layers: about 10 ms for 16 tokens on one core, most of it reading them, and 80 for 256."""
STEEPNESS = 60.0  # range of the factors: neighbouring products then differ by several periods of the sine
MASKED = -1e9  # added to a score; its exponential is 0


class Encoder:
    """The graph under construction. Methods add nodes and return the names of their outputs."""

    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, NDArray[Any]] = {}
        self._random = np.random.RandomState(seed)  # NumPy guarantees the stream of this generator only
        self._ones = self.constant(np.ones(WIDTH))

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node and return the name of its output, or a list of names."""
        names = [f"{kind.lower()}{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, dtype: type = np.float32) -> str:
        name = f"constant{len(self.constants)}"
        self.constants[name] = np.ascontiguousarray(value, dtype)
        return name

    def weights(self, rows: int, columns: int, size: float) -> str:
        """Add a matrix of standard deviation `size`."""
        left, right = self._random.uniform(1, STEEPNESS, rows), self._random.uniform(1, STEEPNESS, columns)
        product = self.op("Mul", self.constant(left[:, None]), self.constant(right[None, :]))
        return str(self.op("Mul", self.op("Sin", product), self.constant(size * np.sqrt(2))))

    def normalised(self, value: str) -> str:
        return str(self.op("LayerNormalization", value, self._ones, axis=-1))

    def embedded(self, tokens: str) -> str:
        """Embed tokens and add sines and cosines of their positions. Any number is a token, modulo `VOCABULARY`."""
        tokens = self.op("Mod", tokens, self.constant(VOCABULARY, np.int64))
        vectors = self.op("Gather", self.weights(VOCABULARY, WIDTH, 1.0), tokens)
        length = self.op("Gather", self.op("Shape", tokens), self.constant(1, np.int64))
        positions = self.op("Range", self.constant(0, np.int64), length, self.constant(1, np.int64))
        column = self.op("Unsqueeze", self.op("Cast", positions, to=TensorProto.FLOAT), self.constant([1], np.int64))
        angles = self.op("Mul", column, self.constant(1e4 ** -np.linspace(0, 1, WIDTH // 2)))
        return str(self.op("Add", vectors, self.op("Concat", self.op("Sin", angles), self.op("Cos", angles), axis=-1)))

    def attended(self, value: str, bias: str) -> str:
        """Add attention with `HEADS` heads. `bias` [rows, 1, 1, length] is added to the scores."""
        split = self.constant([0, 0, HEADS, WIDTH // HEADS], np.int64)
        mixed = self.op("MatMul", value, self.weights(WIDTH, 3 * WIDTH, WIDTH**-0.5))
        query, key, content = (
            self.op("Transpose", self.op("Reshape", part, split), perm=order)
            for part, order in zip(
                self.op("Split", mixed, outputs=3, axis=-1), ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True
            )
        )
        scores = self.op("Mul", self.op("MatMul", query, key), self.constant((WIDTH // HEADS) ** -0.5))
        shares = self.op("Softmax", self.op("Add", scores, bias), axis=-1)
        heads = self.op("Transpose", self.op("MatMul", shares, content), perm=[0, 2, 1, 3])
        concatenated = self.op("Reshape", heads, self.constant([0, 0, WIDTH], np.int64))
        return str(self.op("MatMul", concatenated, self.weights(WIDTH, WIDTH, WIDTH**-0.5)))

    def layer(self, value: str, bias: str) -> str:
        value = self.op("Add", value, self.attended(self.normalised(value), bias))
        wide = self.op("MatMul", self.normalised(value), self.weights(WIDTH, HIDDEN, WIDTH**-0.5))
        narrow = self.op("MatMul", self.op("Relu", wide), self.weights(HIDDEN, WIDTH, HIDDEN**-0.5))
        return str(self.op("Add", value, narrow))

    def pooled(self, value: str, mask: str) -> None:
        """Add the output `embedding`: the mean over the unmasked tokens, zeros if there are none."""
        axes = self.constant([1], np.int64)
        shown = self.op("Mul", value, self.op("Unsqueeze", mask, self.constant([2], np.int64)))
        count = self.op("Max", self.op("ReduceSum", mask, axes, keepdims=1), self.constant(1.0))
        sums = self.op("ReduceSum", shown, axes, keepdims=0)
        self.nodes.append(helper.make_node("Div", [sums, count], ["embedding"]))


def text_encoder() -> onnx.ModelProto:
    """Build and check the model."""
    encoder = Encoder()
    hidden = encoder.op("Mul", encoder.op("Sub", "mask", encoder.constant(1.0)), encoder.constant(-MASKED))
    bias = encoder.op("Unsqueeze", hidden, encoder.constant([1, 2], np.int64))
    value = encoder.embedded("tokens")
    for _ in range(LAYERS):
        value = encoder.layer(value, bias)
    encoder.pooled(encoder.normalised(value), "mask")
    return _model(encoder)


def _model(encoder: Encoder) -> onnx.ModelProto:
    ends: Sequence[tuple[str, int, list[Any]]] = (
        ("tokens", TensorProto.INT64, ["rows", "length"]),
        ("mask", TensorProto.FLOAT, ["rows", "length"]),
        ("embedding", TensorProto.FLOAT, ["rows", WIDTH]),
    )
    tokens, mask, embedding = (helper.make_tensor_value_info(*end) for end in ends)
    constants = [numpy_helper.from_array(value, name) for name, value in encoder.constants.items()]
    graph = helper.make_graph(encoder.nodes, "text-encoder", [tokens, mask], [embedding], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="horologe")
    model.ir_version = IR_VERSION
    onnx.checker.check_model(model, full_check=True)
    return model


def export(out: Path, folder: str = FOLDER) -> Path:
    """Write `<out>/<folder>/model.onnx` and return its path."""
    path = out / folder / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text_encoder().SerializeToString(deterministic=True))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the benchmarks' text encoder.")
    parser.add_argument("--out", type=Path, default=ROOT, help="folder to write under (default: the repository)")
    path = export(parser.parse_args().out)
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
