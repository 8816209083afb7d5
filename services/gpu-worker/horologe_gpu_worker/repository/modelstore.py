"""The models on disk: `<repository>/<name>/<version>/` with a model file and a `model.toml`.

A model that cannot be served is reported with the reason and never stops the others.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from horologe_common.models import ModelSpec
from horologe_common.service.log import logger
from horologe_common.status import HorologeError, UnknownModel
from horologe_common.wire import ModelReport
from horologe_gpu_worker.repository.manifest import (
    MODEL_FILES,
    InvalidModel,
    Manifest,
    manifest_path,
    model_files,
    read_manifest,
)
from horologe_gpu_worker.repository.profiling import ProfileCache, load_or_measure_profile
from horologe_gpu_worker.runtime import HOST_DEVICE, DeviceConfig, PreparesModels
from horologe_gpu_worker.runtimes import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from horologe_gpu_worker.runtime import OpenModel, Runtime

FORBIDDEN = "/#"
"""In addresses and keys these separate."""
EXTRAS = {"pytorch": "torch"}
"""Runtimes whose extra has another name."""

log = logger("modelstore")


class ModelStore:
    """What the repository holds. `scan` first; blocking, as it measures models that are seen for the first time.

    `report`: told, in a line each, about work that takes a while. `place`: where models are opened.
    """

    def __init__(
        self,
        repository: Path,
        cache: Path,
        runtimes: Mapping[str, Callable[[DeviceConfig], Runtime]] = RUNTIMES,
        report: Callable[[str], None] = log.info,
        device: DeviceConfig = HOST_DEVICE,
    ) -> None:
        self._repository = repository
        self._device = device
        self._profiles = ProfileCache(cache, device.cuda)
        self._factories = runtimes
        self._runtimes: dict[str, Runtime] = {}
        self._report = report
        self._specs: dict[str, ModelSpec] = {}
        self._inline: dict[str, bool] = {}
        self._digests: dict[tuple[Path, int, int], bytes] = {}

    def scan(self) -> list[ModelReport]:
        """Every model version, by name and version. Raises `InvalidModel` if the repository itself cannot be read."""
        try:
            names = sorted(entry.name for entry in self._repository.iterdir() if _is_model_folder(entry))
        except OSError as error:
            raise InvalidModel(f"{self._repository}: {error.strerror}, wanted a folder of models") from error
        reports = [report for name in names for report in self._inspect_model(name)]
        self._specs = _servable_specs(reports)
        return reports

    def scan_model(self, name: str) -> list[ModelReport]:
        """Every version of one model, read again; empty if there is no such model."""
        # A name comes from the network: it must be that of an entry of the repository, not a path.
        known = name and Path(name).name == name and _is_model_folder(self._repository / name)
        reports = self._inspect_model(name) if known else []
        others = {key: spec for key, spec in self._specs.items() if spec.name != name}
        self._specs = others | _servable_specs(reports)
        return reports

    def _inspect_model(self, name: str) -> list[ModelReport]:
        folder = self._repository / name
        versions = sorted(entry for entry in folder.iterdir() if _is_model_folder(entry))
        if versions:
            return [self._inspect_version(version) for version in versions]
        reason = f"{folder}: got no version folder, wanted {folder / '1'} with the model in it"
        return [ModelReport(ModelSpec(name, "", "", (), ()), None, reason)]

    def spec(self, key: str) -> ModelSpec:
        """Raises `UnknownModel` for a key that the last scan did not find fit to serve."""
        try:
            return self._specs[key]
        except KeyError:
            raise UnknownModel(f"model {key}: not in the repository, or unavailable") from None

    def open(self, key: str) -> OpenModel:
        """Read the model into memory and warm it. Raises `UnknownModel`, `InvalidModel` or `ModelFailed`."""
        spec = self.spec(key)
        return self._runtime(spec.runtime).open(spec, self._folder(spec))

    def inline_io(self, key: str) -> bool:
        """Whether INPUT and OUTPUT need no lane of their own: host memory, and no declared transfer times.

        Answers for a model that has left the repository too, as actions on it may be under way.
        """
        return self._inline.get(key, True)

    def _folder(self, spec: ModelSpec) -> Path:
        return self._repository / spec.name / spec.version

    def _inspect_version(self, folder: Path) -> ModelReport:
        name, version = folder.parent.name, folder.name
        spec, profile, reason = ModelSpec(name, version, "", (), ()), None, ""
        try:
            for text in (name, version):
                if fault := _name_fault(text):
                    raise InvalidModel(fault)
            manifest = read_manifest(folder)
            runtime_name = _runtime_name(folder, manifest)
            spec = msgspec.structs.replace(spec, runtime=runtime_name)
            runtime = self._runtime(runtime_name)
            spec = msgspec.structs.replace(runtime.inspect(folder), content_hash=self._content_hash(folder))
            if isinstance(runtime, PreparesModels):
                runtime.prepare(spec, folder)
            profile = load_or_measure_profile(runtime, spec, folder, self._profiles, self._report)
        except HorologeError as error:
            reason = error.reason
        except OSError as error:
            reason = f"{error.filename or folder}: {error.strerror or error}"
        except Exception as error:  # whatever a model's files make a library raise must not stop the other models
            log.exception("model unreadable", model=spec.key)
            reason = f"{folder}: {type(error).__name__}: {error}"
        if profile is None:
            log.warning("model unavailable", model=spec.key, reason=reason)
            return ModelReport(spec, None, reason)
        times = manifest.emulated
        self._inline[spec.key] = runtime.inline_io and not (times and (times.input_ms or times.output_ms))
        return ModelReport(spec, profile)

    def _runtime(self, name: str) -> Runtime:
        if name not in self._runtimes:
            try:
                self._runtimes[name] = self._factories[name](self._device)
            except ImportError as error:
                raise InvalidModel(
                    f"runtime {name!r}: {error.name or error} is not installed "
                    f"(the extra `{EXTRAS.get(name, name)}` of the distribution)"
                ) from error
        return self._runtimes[name]

    def _content_hash(self, folder: Path) -> str:
        """Over the names and the bytes of the version's files, and of the manifest that holds for it."""
        digest = hashlib.blake2b(digest_size=16)
        manifest = manifest_path(folder)
        for path in [*model_files(folder), *([manifest] if manifest else [])]:
            digest.update(path.name.encode() + b"\0" + self._digest(path))
        return digest.hexdigest()

    def _digest(self, path: Path) -> bytes:
        facts = path.stat()
        key = (path, facts.st_size, facts.st_mtime_ns)
        if key not in self._digests:
            with path.open("rb") as file:
                self._digests[key] = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()
        return self._digests[key]


def _is_model_folder(path: Path) -> bool:
    return os.path.isdir(path) and not path.name.startswith((".", "__"))  # Path.is_dir raises for names too long


def _servable_specs(reports: list[ModelReport]) -> dict[str, ModelSpec]:
    return {report.spec.key: report.spec for report in reports if report.profile is not None}


def _name_fault(name: str) -> str:
    if not name or any(mark.isspace() or mark in FORBIDDEN for mark in name):
        return f"name: got {name!r}, wanted one without '/', '#' and white space"
    return ""


def _runtime_name(folder: Path, manifest: Manifest) -> str:
    found = [runtime for file, runtime in MODEL_FILES.items() if (folder / file).is_file()]
    if manifest.emulated is not None and not manifest.runtime:
        return "emulated"
    if manifest.runtime:
        if manifest.runtime not in RUNTIMES:
            raise InvalidModel(
                f"{manifest_path(folder)}: runtime: got {manifest.runtime!r}, wanted one of {', '.join(RUNTIMES)}"
            )
        return manifest.runtime
    if len(found) != 1:
        raise InvalidModel(
            f"{folder}: got {' and '.join(found) or 'no model file'}, wanted {' or '.join(MODEL_FILES)} "
            "(or `runtime` in model.toml)"
        )
    return found[0]
