"""Adapter of a `TritonPythonModel`: the class of Triton's Python backend as a model with `predict_batch`."""

from __future__ import annotations

import asyncio
import atexit
import importlib
import inspect
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from horologe_common.status import ModelFailed
from horologe_gpu_worker.repository.manifest import TRITON_CONFIG, read_manifest
from horologe_gpu_worker.repository.reshaping import read_reshapes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from horologe_common.models import ModelSpec, TensorSpec

INITIALIZE_FILE = "triton-config.json"
"""Beside the versions of an imported model: the configuration that `initialize` gets."""
MODULE = "triton_python_backend_utils"
CLASS = "TritonPythonModel"


class TritonModel:
    """A `TritonPythonModel`. `initialize` is called at once, `finalize` when the process ends.

    `execute` gets one request with all rows of a batch. If its response has an error, the batch fails with its message.
    """

    def __init__(self, model_class: Any, spec: ModelSpec, folder: Path, device: str) -> None:
        self._backend: Any = importlib.import_module(MODULE)
        document = _read_document(folder.parent) or _make_document(spec)
        self._max_rows = 0 if spec.batched else document["max_batch_size"]
        """Limit of the rows of a request that runs alone; 0 if the first dimension is no rows, or is checked before."""
        self._outputs = [tensor.name for tensor in spec.outputs]
        self._reshapes = read_reshapes(read_manifest(folder))
        self._model = model_class()
        if not callable(getattr(self._model, "execute", None)):
            raise ModelFailed(f"model.py: {CLASS}: got no method execute, wanted execute(self, requests)")
        if callable(initialize := getattr(self._model, "initialize", None)):
            initialize(initialize_arguments(spec, folder, document, device))
        self._raise_refusals()
        if callable(finalize := getattr(self._model, "finalize", None)):
            atexit.register(finalize)

    def predict_batch(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Call `execute` with one request. Raises `ModelFailed` if there is not one response without an error."""
        if self._max_rows:
            self._check_rows(inputs)
        tensors = [
            self._backend.Tensor(name, array if array.flags.writeable else array.copy())
            for name, array in self._reshapes.inputs.apply(inputs).items()
        ]
        responses = self._model.execute([self._backend.InferenceRequest.of(tensors, self._outputs)])
        if inspect.iscoroutine(responses):
            responses = asyncio.run(responses)
        self._raise_refusals()
        try:
            (response,) = responses
        except (TypeError, ValueError):
            got = "None" if responses is None else type(responses).__name__
            raise ModelFailed(f"execute: got {got}, wanted a list of one InferenceResponse") from None
        if not isinstance(response, self._backend.InferenceResponse):
            raise ModelFailed(f"execute: got {type(response).__name__}, wanted an InferenceResponse")
        if response.has_error():
            raise ModelFailed(str(response.error()))
        outputs = {tensor.name(): _as_strings(tensor.as_numpy()) for tensor in response.output_tensors()}
        return dict(self._reshapes.outputs.apply(outputs))

    def _check_rows(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        rows = sorted({array.shape[0] for array in inputs.values()})
        if len(rows) > 1 or rows[0] > self._max_rows:
            raise ModelFailed(f"inputs: got {rows} rows, wanted 1 to {self._max_rows}, the same for all")

    def _raise_refusals(self) -> None:
        if refusals := list(self._backend.refusals):
            self._backend.refusals.clear()
            raise ModelFailed(refusals[0])


def initialize_arguments(spec: ModelSpec, folder: Path, document: dict[str, Any], device: str) -> dict[str, str]:
    """Return the argument of `initialize`. `document` is the configuration, `device` the worker's."""
    config = document | {"name": spec.name}
    kinds = [group["kind"] for group in config.get("instance_group", [])]
    on_gpu = "KIND_GPU" in kinds or (device.startswith("cuda") and "KIND_CPU" not in kinds)
    return {
        "model_config": json.dumps(config),
        "model_instance_kind": "GPU" if on_gpu else "CPU",
        "model_instance_name": f"{spec.name}_0_0",
        "model_instance_device_id": device.partition(":")[2] or "0",
        "model_repository": str(folder.parent),
        "model_version": spec.version,
        "model_name": spec.name,
    }


def _read_document(model: Path) -> dict[str, Any]:
    """Return the configuration in a model's folder; empty if there is none."""
    if (imported := model / INITIALIZE_FILE).is_file():
        document: dict[str, Any] = json.loads(imported.read_bytes())
        return document
    if not (path := model / TRITON_CONFIG).is_file():
        return {}
    from horologe_gpu_worker.repository.triton.config_file import config_document, read_config  # imports protobuf

    return config_document(read_config(path))


def _make_document(spec: ModelSpec) -> dict[str, Any]:
    """Return a configuration from the signature of a model that has none."""

    def entry(tensor: TensorSpec) -> dict[str, Any]:
        kind = "STRING" if tensor.datatype == "BYTES" else tensor.datatype
        return {"name": tensor.name, "data_type": f"TYPE_{kind}", "dims": list(tensor.shape[spec.batched :])}

    return {
        "backend": "python",
        "max_batch_size": spec.max_batch if spec.batched else 0,
        "input": [entry(tensor) for tensor in spec.inputs],
        "output": [entry(tensor) for tensor in spec.outputs],
        "parameters": {},
    }


def _as_strings(array: NDArray[Any]) -> NDArray[Any]:
    """Return objects as Triton sends them: bytes as they are, anything else as text."""
    if array.dtype != np.object_:
        return array
    strings = np.empty(array.shape, np.object_)
    for index, item in np.ndenumerate(array):
        strings[index] = item if isinstance(item, bytes) else str(item)
    return strings
