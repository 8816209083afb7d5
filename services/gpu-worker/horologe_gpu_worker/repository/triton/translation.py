"""Translates a model of a Triton repository: `config.pbtxt` to keys of `model.toml`, and a finding for each field."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from horologe_common.model_limits import BATCH_MAX
from horologe_common.service.user_files import read_file
from horologe_gpu_worker.repository.triton.config_file import CONFIG_FILE, read_config
from horologe_gpu_worker.repository.triton.findings import (
    GPU_MEMORY,
    Finding,
    ModelFacts,
    find_effects,
    has_variable_outputs,
    read_threads,
    uses_gpu,
)
from horologe_gpu_worker.repository.triton.python_source import find_unsupported
from horologe_gpu_worker.repository.triton.tensors import tensor_entries

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PLATFORMS = {"onnxruntime_onnx": "onnxruntime", "pytorch_libtorch": "pytorch", "ensemble": "ensemble"}
FILES = {"onnxruntime": "model.onnx", "pytorch": "model.pt", "python": "model.py"}
"""Backend -> its model file, unless `default_model_filename` names one."""
RUNTIMES = {"onnxruntime": "onnx", "pytorch": "torchscript", "python": "python"}
SUFFIXES = {".onnx": "onnxruntime", ".pt": "pytorch", ".py": "python"}


class Translation(NamedTuple):
    """A model of a Triton repository in our form."""

    config: Any
    backend: str
    manifest: dict[str, Any]
    """Keys of `model.toml`."""
    findings: tuple[Finding, ...]

    @property
    def missing(self) -> tuple[Finding, ...]:
        """Return the findings because of which the model is not served."""
        return tuple(finding for finding in self.findings if finding.effect == "missing")


def translate_version(folder: Path) -> Translation:
    """Translate the configuration of a version's model, which is empty if there is no `config.pbtxt`.

    Raises `InvalidModel` if the file cannot be parsed.
    """
    config = read_config(folder.parent / CONFIG_FILE)
    backend = _backend(config, folder)
    facts = ModelFacts(config, folder.parent.name, backend)
    findings = [*find_effects(facts), *_find_faults(facts, folder)]
    return Translation(config, backend, _manifest(config, backend), tuple(findings))


def read_versions(model: Path) -> Any:
    """Return the key `versions` for a model's folder. Raises `InvalidModel` if `config.pbtxt` cannot be parsed."""
    return _versions(read_config(model / CONFIG_FILE))


def model_file(config: Any, backend: str) -> str:
    """Return the path of the model's file in its version's folder."""
    return config.default_model_filename or FILES.get(backend, "")


def _backend(config: Any, folder: Path) -> str:
    """Return the backend, as Triton finds it: by `backend`, `platform` or the model's file. Empty: none of ours."""
    if config.HasField("ensemble_scheduling"):
        return "ensemble"
    if config.backend or config.platform:
        backend = config.backend or PLATFORMS.get(config.platform, "")
        return backend if backend in (*FILES, "ensemble") else ""
    if config.default_model_filename:
        return SUFFIXES.get(PurePosixPath(config.default_model_filename).suffix, "")
    return next((backend for backend, file in FILES.items() if (folder / file).exists()), "")


def _find_faults(facts: ModelFacts, folder: Path) -> Iterator[Finding]:
    """Iterate over findings that concern no field, but its absence, or the source of a Python model."""
    config, backend = facts.config, facts.backend
    if not backend and not (config.backend or config.platform):
        yield Finding("backend", "missing", f"got none, and no file of {', '.join(FILES.values())}")
    if config.default_model_filename and ".." in PurePosixPath(config.default_model_filename).parts:
        yield Finding("default_model_filename", "missing", f"got {config.default_model_filename!r}, wanted a file name")
    if backend in ("pytorch", "python"):
        for side in ("input", "output"):
            if not getattr(config, side):
                yield Finding(side, "missing", "got none, wanted all of the model")
    if backend == "python":
        if config.max_batch_size > 0 and not config.HasField("dynamic_batching"):
            yield Finding("dynamic_batching", "limited", "is not set: each request runs alone")
        file = model_file(config, backend)
        try:
            source = read_file(folder / file)
        except (OSError, ValueError):
            return  # the runtime names the file
        yield from find_unsupported(source, file, decoupled=config.model_transaction_policy.decoupled)


def _manifest(config: Any, backend: str) -> dict[str, Any]:
    """Return the keys of `model.toml` that say the same. They are only of use if nothing is missing."""
    decoupled = config.model_transaction_policy.decoupled
    together = config.HasField("dynamic_batching") and not (has_variable_outputs(config) or decoupled)
    one_by_one = backend == "python" and config.max_batch_size > (0 if decoupled else 1) and not together
    manifest: dict[str, Any] = {"runtime": RUNTIMES.get(backend, ""), "versions": _versions(config)}
    if config.default_model_filename:
        manifest["file"] = config.default_model_filename
    manifest |= _batching(config, one_by_one)
    if decoupled:
        manifest["stream"] = {"max_open": 1}
    elif config.response_cache.enable:
        manifest["cache"] = True
    if backend == "python" and uses_gpu(config):
        manifest["gpu_memory"] = GPU_MEMORY
    if backend == "onnxruntime":
        if threads := read_threads(config, backend):
            manifest["threads"] = threads
        if config.output:
            manifest["declared_outputs_only"] = True
    for side in ("input", "output"):
        if entries := tensor_entries(config, side, one_by_one=one_by_one, optional=backend == "python"):
            manifest[f"{side}s"] = entries
    return manifest


def _batching(config: Any, one_by_one: bool) -> dict[str, Any]:
    """Return `batching` and `batch_sizes`. Without tensors and `max_batch_size`, Triton finds out whether a model has
    rows, and so does the worker.
    """
    most = min(config.max_batch_size, BATCH_MAX)
    if most <= 0:
        declared = config.HasField("max_batch_size") or (config.input and config.output)
        return {"batching": "off"} if declared else {}
    if one_by_one:
        fixed = all(dim >= 0 for tensor in config.input for dim in tensor.dims)
        return {"batching": "off", "max_rows": most} | ({"max_length": most} if fixed else {})
    sizes = {1 << power for power in range(most.bit_length())} | {most}
    return {"batch_sizes": sorted(sizes.union(config.dynamic_batching.preferred_batch_size))}


def _versions(config: Any) -> Any:
    policy = config.version_policy
    if policy.HasField("all"):
        return "all"
    if policy.HasField("specific"):
        return [str(version) for version in policy.specific.versions]
    return {"latest": max(1, policy.latest.num_versions)}
