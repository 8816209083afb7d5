"""Models in the JSON of the Open Inference Protocol: metadata, configuration, repository index, statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.models import natural_sort_key
from horologe_common.status import UnknownModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.models import ModelSpec, TensorSpec
    from horologe_common.wire import ModelState
    from horologe_frontend.core.stats import ModelStats

PLATFORMS = {"onnx": "onnxruntime_onnx", "pytorch": "pytorch_libtorch"}
"""Platform name of Triton for each runtime. Other runtimes keep their own name."""
BACKENDS = {"onnx": "onnxruntime"}


def _version_key(state: ModelState) -> tuple[tuple[int, int, str], ...]:
    return natural_sort_key(state.spec.version)


def choose_version(states: Sequence[ModelState], model: str, version: str) -> ModelState:
    """Return the requested version. Without one, return the newest READY version, or else the newest.

    Raise `UnknownModel` if there is no such version.
    """
    candidates = sorted((state for state in states if version in ("", state.spec.version)), key=_version_key)
    ready = [state for state in candidates if state.state == "READY"]
    if not candidates:
        raise UnknownModel(f"model {model!r}{f' version {version!r}' if version else ''} is unknown")
    return (ready or candidates)[-1]


def model_metadata(spec: ModelSpec, states: Sequence[ModelState]) -> dict[str, Any]:
    """Return the response to `GET /v2/models/{m}`. `states`: all versions of the model."""
    return {
        "name": spec.name,
        "versions": [state.spec.version for state in sorted(states, key=_version_key) if state.spec.version],
        "platform": PLATFORMS.get(spec.runtime, spec.runtime),
        "inputs": [_tensor(tensor) for tensor in spec.inputs],
        "outputs": [_tensor(tensor) for tensor in spec.outputs],
    }


def _tensor(tensor: TensorSpec) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}


def model_config(spec: ModelSpec) -> dict[str, Any]:
    """Return the response to `GET /v2/models/{m}/config`: the fields of Triton's ModelConfig that apply here."""
    content: dict[str, Any] = {
        "name": spec.name,
        "platform": PLATFORMS.get(spec.runtime, ""),
        "backend": BACKENDS.get(spec.runtime, spec.runtime),
        "max_batch_size": spec.max_batch if spec.batched else 0,
        "input": [_io(tensor, spec.batched) for tensor in spec.inputs],
        "output": [_io(tensor, spec.batched) for tensor in spec.outputs],
        "response_cache": {"enable": spec.cache},
        "parameters": {
            "slo_ns": {"string_value": str(spec.slo_ns)},
            "content_hash": {"string_value": spec.content_hash},
        },
    }
    if spec.notes:
        content["parameters"]["notes"] = {"string_value": "; ".join(spec.notes)}
    if spec.batched:
        content["dynamic_batching"] = {"preferred_batch_size": spec.batch_sizes}
    return content


def _io(tensor: TensorSpec, batched: bool) -> dict[str, Any]:
    kind = "STRING" if tensor.datatype == "BYTES" else tensor.datatype
    return {"name": tensor.name, "data_type": f"TYPE_{kind}", "dims": tensor.shape[1:] if batched else tensor.shape}


def repository_index(states: Sequence[ModelState], ready_only: bool) -> list[dict[str, str]]:
    """Return the response to `POST /v2/repository/index`. The reason also has the notes about the model."""
    return [
        {
            "name": state.spec.name,
            "version": state.spec.version,
            "state": state.state,
            "reason": "; ".join(filter(None, (state.reason, *state.spec.notes))),
        }
        for state in sorted(states, key=lambda state: (state.spec.name, _version_key(state)))
        if state.state == "READY" or not ready_only
    ]


def model_statistics(spec: ModelSpec, stats: ModelStats, epoch_minus_monotonic_ns: int) -> dict[str, Any]:
    """Return one element of `model_stats` (Triton's docs/protocol/extension_statistics.md).

    `compute_input` and `compute_output` have the count of `compute_infer`, as perf_analyzer demands. Their durations
    are 0, because the time of the transfers is part of `queue`.
    """
    last_ns = stats.last_ns and stats.last_ns + epoch_minus_monotonic_ns
    return {
        "name": spec.name,
        "version": spec.version,
        "last_inference": last_ns // 1_000_000,
        "inference_count": stats.rows,
        "execution_count": round(sum(batch.executions for batch in stats.batches.values())),
        "inference_stats": {
            "success": stats.success.json(),
            "fail": stats.fail.json(),
            "queue": stats.queue.json(),
            **_compute(stats.compute_infer.count, stats.compute_infer.ns),
            "cache_hit": stats.cache_hit.json(),
            "cache_miss": stats.cache_miss.json(),
        },
        "response_stats": {},
        "batch_stats": [
            {"batch_size": size, **_compute(round(batch.executions), round(batch.exec_ns))}
            for size, batch in sorted(stats.batches.items())
        ],
        "memory_usage": [],
    }


def _compute(count: int, infer_ns: int) -> dict[str, Any]:
    transfer = {"count": count, "ns": 0}
    return {"compute_input": transfer, "compute_infer": {"count": count, "ns": infer_ns}, "compute_output": transfer}
