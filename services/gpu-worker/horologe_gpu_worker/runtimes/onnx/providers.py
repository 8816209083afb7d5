"""Execution providers of ONNX Runtime: those that a model names, or those of the worker's device, and their options."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxruntime

from horologe_gpu_worker.repository.manifest import InvalidModel, size_bytes
from horologe_gpu_worker.runtimes.pytorch.paging.cuda_driver import PrimaryContext, load_driver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_gpu_worker.repository.manifest_fields import Manifest
    from horologe_gpu_worker.settings import WorkerSettings

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
TENSORRT, OPENVINO = "TensorrtExecutionProvider", "OpenVINOExecutionProvider"
ON_CUDA = (CUDA, TENSORRT)
STREAM_DEFAULT = 0
"""CU_STREAM_DEFAULT: synchronised with ONNX Runtime's own copies, which use the legacy stream."""
ENGINES = "engines"
"""Folder in the worker's cache for what a provider compiles, which takes up to minutes."""


def uses_cuda(named: Sequence[str]) -> bool:
    """Return whether a model with these `providers` runs on the worker's CUDA device."""
    return not named or any(name in ON_CUDA for name in named)


def session_providers(path: Path, content_hash: str, manifest: Manifest, settings: WorkerSettings) -> list[Any]:
    """Return the providers of a model's session with their options. The CPU is always the last one.

    Raises `InvalidModel` for a provider that this onnxruntime or this worker does not have.
    """
    available = onnxruntime.get_available_providers()
    names = list(manifest.providers or ([CUDA] if settings.cuda is not None else [CPU]))
    for name in names:
        if name not in available:
            raise InvalidModel(
                f"{path}: providers: got {name!r}, and this onnxruntime has {', '.join(available)}: CUDA and TensorRT "
                "need the extra `onnx-cuda`, OpenVINO the package onnxruntime-openvino, in place of onnxruntime"
            )
        if name in ON_CUDA and settings.cuda is None:
            raise InvalidModel(
                f"{path}: providers: got {name!r}, wanted worker.device = 'cuda' for it, got {settings.device!r}"
            )
    if CPU not in names:
        names.append(CPU)
    return [_with_options(name, content_hash, manifest, settings) for name in names]


def check_providers(path: Path, got: Sequence[str], wanted: Sequence[Any]) -> None:
    """Raise `InvalidModel` if a session lacks a wanted provider: ONNX Runtime only logs a warning then."""
    for provider in wanted:
        name = provider if isinstance(provider, str) else provider[0]
        if name not in got:
            raise InvalidModel(
                f"{path}: got a session with {list(got)}, wanted {name}: its libraries are missing, or of another "
                "version (the extra `onnx-cuda` has those of CUDA and cuDNN; TensorRT's are the package tensorrt)"
            )


def _with_options(name: str, content_hash: str, manifest: Manifest, settings: WorkerSettings) -> Any:
    # By content, because TensorRT does not notice that weights have changed.
    cache = Path(settings.cache) / ENGINES / content_hash
    if name == OPENVINO:
        return name, {"device_type": "CPU", "num_of_threads": str(manifest.threads), "cache_dir": str(cache)}
    if name not in ON_CUDA or settings.cuda is None:
        return name
    _preload_libraries()
    options = {"device_id": str(settings.cuda), "user_compute_stream": str(_stream(settings.cuda))}
    limit = size_bytes(manifest.gpu_memory)
    if name == TENSORRT:
        options |= {"trt_engine_cache_enable": "1", "trt_engine_cache_path": str(cache)}
        return name, options | ({"trt_max_workspace_size": str(limit)} if limit else {})
    options["cudnn_conv_algo_search"] = "HEURISTIC"  # the default benchmarks all algorithms for every new shape
    if limit:
        options |= {"gpu_mem_limit": str(limit), "arena_extend_strategy": "kSameAsRequested"}
    return name, options


@cache
def _preload_libraries() -> None:
    """Load CUDA and cuDNN from the packages of PyTorch or NVIDIA: the dynamic linker does not look there."""
    if preload := getattr(onnxruntime, "preload_dlls", None):  # from version 1.21 on
        preload()


@cache
def _stream(device: int) -> int:
    """Return the stream of all sessions of this process. One EXEC runs at a time, so one stream is enough."""
    driver = load_driver()
    PrimaryContext(driver, device).enter()
    stream = ctypes.c_void_p()
    driver("cuStreamCreate", ctypes.byref(stream), STREAM_DEFAULT)
    return stream.value or 0
