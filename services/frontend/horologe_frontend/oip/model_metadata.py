"""Models as the Open Inference Protocol describes them: metadata, configuration, repository index."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from horologe_common.status import UnknownModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.models import ModelSpec, TensorSpec
    from horologe_common.wire import ModelState

PLATFORMS = {"onnx": "onnxruntime_onnx", "pytorch": "pytorch_libtorch"}
"""Runtime -> the platform name that Triton's clients know; others keep theirs."""
BACKENDS = {"onnx": "onnxruntime"}


def version_key(state: ModelState) -> tuple[tuple[int, int, str], ...]:
    """Natural order: numbers inside a version count as numbers."""
    parts = re.findall(r"\d+|\D+", state.spec.version)
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts)


def choose(states: Sequence[ModelState], model: str, version: str) -> ModelState:
    """The version asked for; without one the newest that is READY, else the newest. Raises `UnknownModel`."""
    fitting = sorted((state for state in states if version in ("", state.spec.version)), key=version_key)
    ready = [state for state in fitting if state.state == "READY"]
    if not fitting:
        raise UnknownModel(f"model {model!r}{f' version {version!r}' if version else ''} is unknown")
    return (ready or fitting)[-1]


def metadata(spec: ModelSpec, states: Sequence[ModelState]) -> dict[str, Any]:
    """Answer of `GET /v2/models/{m}`; `states`: all versions of the model."""
    return {
        "name": spec.name,
        "versions": [state.spec.version for state in sorted(states, key=version_key) if state.spec.version],
        "platform": PLATFORMS.get(spec.runtime, spec.runtime),
        "inputs": [_tensor(tensor) for tensor in spec.inputs],
        "outputs": [_tensor(tensor) for tensor in spec.outputs],
    }


def _tensor(tensor: TensorSpec) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}


def config(spec: ModelSpec) -> dict[str, Any]:
    """Answer of `GET /v2/models/{m}/config`: the fields of Triton's ModelConfig that have a meaning here."""
    content: dict[str, Any] = {
        "name": spec.name,
        "platform": PLATFORMS.get(spec.runtime, ""),
        "backend": BACKENDS.get(spec.runtime, spec.runtime),
        "max_batch_size": spec.max_batch if spec.batched else 0,
        "input": [_io(tensor, spec.batched) for tensor in spec.inputs],
        "output": [_io(tensor, spec.batched) for tensor in spec.outputs],
        "response_cache": {"enable": spec.cache},
        "parameters": {"slo_ns": {"string_value": str(spec.slo_ns)}},
    }
    if spec.batched:
        content["dynamic_batching"] = {"preferred_batch_size": spec.batch_sizes}
    return content


def _io(tensor: TensorSpec, batched: bool) -> dict[str, Any]:
    kind = "STRING" if tensor.datatype == "BYTES" else tensor.datatype
    return {"name": tensor.name, "data_type": f"TYPE_{kind}", "dims": tensor.shape[1:] if batched else tensor.shape}


def index(states: Sequence[ModelState], ready_only: bool) -> list[dict[str, str]]:
    """Answer of `POST /v2/repository/index`."""
    return [
        {"name": state.spec.name, "version": state.spec.version, "state": state.state, "reason": state.reason}
        for state in sorted(states, key=lambda state: (state.spec.name, version_key(state)))
        if state.state == "READY" or not ready_only
    ]
