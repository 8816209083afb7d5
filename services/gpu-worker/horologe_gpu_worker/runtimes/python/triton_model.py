"""Adapter of a `TritonPythonModel`: the class of Triton's Python backend as a model with `predict_batch`, or with
`predict_stream` if it is decoupled.
"""

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
from horologe_gpu_worker.repository.model_signature import describe_mismatch
from horologe_gpu_worker.repository.reshaping import read_reshapes
from horologe_gpu_worker.runtimes.python.triton_stream import ResponseSender

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from horologe_common.models import ModelSpec, TensorSpec

    Arrays = dict[str, NDArray[Any]]

INITIALIZE_FILE = "triton-config.json"
"""Beside the versions of an imported model: the configuration that `initialize` gets."""
MODULE = "triton_python_backend_utils"
CLASS = "TritonPythonModel"


class TritonModel:
    """A `TritonPythonModel`. `initialize` is called at once, `finalize` when the process ends.

    `execute` gets the requests of a batch without its padding. A response with an error fails its request alone.
    """

    def __init__(self, model_class: Any, spec: ModelSpec, folder: Path, device: str) -> None:
        self._backend: Any = importlib.import_module(MODULE)
        document = _read_document(folder.parent) or _make_document(spec)
        self._max_rows = 0 if spec.batched else document["max_batch_size"]
        """Limit of the rows of a request that runs alone; 0 if the first dimension is no rows, or is checked before."""
        self._spec = spec
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
        """Run made-up inputs, each row as a request of its own. Raises `ModelFailed` if a response has an error."""
        count = len(next(iter(inputs.values()))) if self._spec.batched else 1
        answers = self._execute(inputs, (1,) * count)
        if failure := next((answer for answer in answers if isinstance(answer, str)), ""):
            raise ModelFailed(failure)
        return _join_rows([answer for answer in answers if not isinstance(answer, str)])

    def predict_requests(
        self, inputs: Mapping[str, NDArray[Any]], rows: Sequence[int], batch_size: int
    ) -> tuple[Arrays, dict[int, str]]:
        """Run requests with `rows` rows each. Return the outputs of the batch, and why requests failed by their index.

        Raises `ModelFailed` if there is not one response for each request. Outputs are empty if all requests failed.
        """
        answers = [
            answer if isinstance(answer, str) else describe_mismatch(self._spec, count, answer) or answer
            for answer, count in zip(self._execute(inputs, rows), rows, strict=True)
        ]
        good: list[Arrays] = []
        failed: dict[int, str] = {}
        places: list[int] = []
        """Row of the good outputs for each row of the batch; any for failed requests and padding."""
        end = 0
        for index, (answer, count) in enumerate(zip(answers, rows, strict=True)):
            if isinstance(answer, str):
                failed[index] = answer
                places += [0] * count
            else:
                good.append(answer)
                places += range(end, end := end + count)
        if not good or not self._spec.batched:
            return (good[0] if good else {}), failed
        places += [0] * (batch_size - len(places))
        outputs = _join_rows(good)
        if end < batch_size:
            outputs = {name: array[places] for name, array in outputs.items()}
        return outputs, failed

    def predict_stream(self, inputs: Mapping[str, NDArray[Any]]) -> Generator[Arrays | None, None, Arrays | None]:
        """Yield each response of a decoupled model; None if it needs more time. Raises `ModelFailed` for an error."""
        sender = ResponseSender()
        (request,) = self._make_requests(inputs, (1,), sender)
        sender.start(lambda: self._model.execute([request]))
        try:
            while True:
                sent = sender.take()
                self._raise_refusals()
                item = None if sent.response is None else self._read_response(sent.response)
                if isinstance(item, str):
                    raise ModelFailed(item)
                if sent.final:
                    return item
                yield item
        finally:
            sender.close()

    def _execute(self, inputs: Mapping[str, NDArray[Any]], rows: Sequence[int]) -> list[Arrays | str]:
        """Call `execute`, and return the outputs of each request, or why it failed."""
        responses = self._model.execute(self._make_requests(inputs, rows))
        if inspect.iscoroutine(responses):
            responses = asyncio.run(responses)
        self._raise_refusals()
        if not isinstance(responses, list | tuple) or len(responses) != len(rows):
            got = f"{len(responses)} responses" if isinstance(responses, list | tuple) else type(responses).__name__
            raise ModelFailed(f"execute: got {got}, wanted a list of {len(rows)} InferenceResponse")
        return [self._read_response(response) for response in responses]

    def _make_requests(
        self, inputs: Mapping[str, NDArray[Any]], rows: Sequence[int], sender: ResponseSender | None = None
    ) -> list[Any]:
        if self._max_rows:
            self._check_rows(inputs)
        arrays, requests, end = self._reshapes.inputs.apply(inputs), [], 0
        for count in rows:
            part = slice(end, end := end + count) if self._spec.batched else ...
            tensors = [
                self._backend.Tensor(name, array[part] if array.flags.writeable else array[part].copy())
                for name, array in arrays.items()
            ]
            requests.append(self._backend.InferenceRequest.of(tensors, self._outputs, sender))
        return requests

    def _read_response(self, response: Any) -> Arrays | str:
        if not isinstance(response, self._backend.InferenceResponse):
            return f"execute: got {type(response).__name__}, wanted an InferenceResponse"
        if response.has_error():
            return str(response.error()) or "the response has an error without a message"
        outputs = {tensor.name(): _as_strings(tensor.as_numpy()) for tensor in response.output_tensors()}
        try:
            return dict(self._reshapes.outputs.apply(outputs))
        except ModelFailed as error:
            return error.reason

    def _check_rows(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        rows = sorted({array.shape[0] for array in inputs.values()})
        if len(rows) > 1 or rows[0] > self._max_rows:
            raise ModelFailed(f"inputs: got {rows} rows, wanted 1 to {self._max_rows}, the same for all")

    def _raise_refusals(self) -> None:
        if refusals := list(self._backend.refusals):
            self._backend.refusals.clear()
            raise ModelFailed(refusals[0])


def initialize_arguments(spec: ModelSpec, folder: Path, document: dict[str, Any], device: str) -> dict[str, str]:
    """Return the argument of `initialize`. `document` is the configuration, `device`: `cuda` if the model's
    process sees a GPU, which is its device 0.
    """
    config = document | {"name": spec.name}
    return {
        "model_config": json.dumps(config),
        "model_instance_kind": "GPU" if device == "cuda" else "CPU",
        "model_instance_name": f"{spec.name}_0_0",
        "model_instance_device_id": "0",
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


def _join_rows(answers: Sequence[Arrays]) -> Arrays:
    """Return the outputs of several requests as those of one batch. Raises `ModelFailed` if they cannot be joined."""
    if len(answers) == 1:
        return answers[0]
    try:
        return {name: np.concatenate([answer[name] for answer in answers]) for name in answers[0]}
    except (KeyError, ValueError) as error:
        shapes = [{name: array.shape for name, array in answer.items()} for answer in answers[:3]]
        raise ModelFailed(f"outputs: got {shapes} for requests of one batch, wanted the same shape") from error


def _as_strings(array: NDArray[Any]) -> NDArray[Any]:
    """Return objects as Triton sends them: bytes as they are, anything else as text."""
    if array.dtype != np.object_:
        return array
    strings = np.empty(array.shape, np.object_)
    for index, item in np.ndenumerate(array):
        strings[index] = item if isinstance(item, bytes) else str(item)
    return strings
