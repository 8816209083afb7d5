"""The model of every peer: the sum of the row, or an ONNX model on one thread. Imported by each server file."""

import argparse
import os
import shlex

import numpy as np


def options() -> argparse.Namespace:
    """Parse the options of compare.py from the environment, because most servers start processes of their own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dialect", default="json")
    parser.add_argument("--shape", required=True, help="shape of one row, e.g. 3,64,64")
    parser.add_argument("--input", default="x", help="name of the input, if the protocol has one")
    parser.add_argument("--onnx", default="", help="model file; empty: the sum of the row")
    parser.add_argument("--output", default="", help="name of the model's output")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--max-batch", type=int, default=16)
    parser.add_argument("--batch-wait-ms", type=float, default=2.0)
    return parser.parse_args(shlex.split(os.environ["PEER_ARGUMENTS"]))


class Work:
    """Computes one row of outputs for each row of float32, flat or shaped."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.shape = [int(size) for size in arguments.shape.split(",")]
        self.session = None
        if arguments.onnx:
            os.environ["ORT_DISABLE_TELEMETRY"] = "1"
            import onnxruntime as ort

            settings = ort.SessionOptions()
            settings.intra_op_num_threads = settings.inter_op_num_threads = 1
            self.session = ort.InferenceSession(arguments.onnx, settings, providers=["CPUExecutionProvider"])
            self.input = self.session.get_inputs()[0].name
            names = [output.name for output in self.session.get_outputs()]
            self.output = arguments.output if arguments.output in names else names[0]
            for size in range(1, arguments.max_batch + 1):
                self(np.zeros((size, *self.shape), np.float32))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        x = x.reshape(-1, *self.shape)
        if self.session is None:
            return x.reshape(len(x), -1).sum(1, keepdims=True)
        return self.session.run([self.output], {self.input: x})[0]
