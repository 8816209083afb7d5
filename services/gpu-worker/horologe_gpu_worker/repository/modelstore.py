"""Model store: the models in `<repository>/<name>/<version>/`, each a model file and a `model.toml`.

A model that cannot be served is reported with the reason, and does not affect the other models.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import monotonic_ns
from horologe_common.model_limits import check_profile, check_size, check_spec
from horologe_common.models import ModelSpec
from horologe_common.service.log import logger
from horologe_common.status import HorologeError, InvalidInput, UnknownModel, describe_exception, encodable
from horologe_common.wire import ModelReport
from horologe_gpu_worker.repository.content import ContentHashes
from horologe_gpu_worker.repository.foreign_settings import foreign_notes
from horologe_gpu_worker.repository.manifest import (
    MODEL_FILES,
    InvalidModel,
    Manifest,
    default_length,
    manifest_path,
    read_manifest,
)
from horologe_gpu_worker.repository.profiling import ProfileCache, load_or_measure_profile
from horologe_gpu_worker.repository.row_check import measure_unbatched_if_needed
from horologe_gpu_worker.repository.warm_up import first_estimate
from horologe_gpu_worker.runtime import (
    HOST_DEVICE,
    DeviceConfig,
    KeepsModels,
    LimitsSpecs,
    PreparesModels,
    WarmUpFailed,
)
from horologe_gpu_worker.runtimes import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from horologe_common.models import Profile
    from horologe_gpu_worker.repository.content import Content
    from horologe_gpu_worker.runtime import OpenModel, Runtime

FORBIDDEN = "/#"
"""Separators in addresses and model keys, forbidden in names."""
PIPELINES, PIPELINE_MANIFEST = "pipelines", "pipeline.toml"
"""The folder of the selector's pipelines, which is no model."""
EXTRAS = {"pytorch": "torch"}
"""Runtime -> its extra, if the names differ."""

log = logger("modelstore")


class ModelStore:
    """The models of a repository. Call `scan` first; it blocks while it measures new models.

    `report` receives a line before long work. `device` is where models are opened.
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
        self._profiles = ProfileCache(cache, device.cuda, device.share_percent)
        self._factories = runtimes
        self._runtimes: dict[str, Runtime] = {}
        self._keeping: dict[str, KeepsModels] = {}
        self._report = report
        self._specs: dict[str, ModelSpec] = {}
        self._inline: dict[str, bool] = {}
        self._contents = ContentHashes(device.content_bytes)
        self._reports: dict[Path, ModelReport] = {}
        """Last report of each version that can be served."""

    def scan(self) -> list[ModelReport]:
        """Scan the repository and return a report for every model version, sorted by name and version.

        Raises `InvalidModel` if the repository cannot be read.
        """
        try:
            names = sorted(entry.name for entry in self._repository.iterdir() if _is_model_folder(entry))
        except OSError as error:
            raise InvalidModel(f"{self._repository}: {error.strerror}, wanted a folder of models") from error
        reports = [report for name in names for report in self._inspect_model(name)]
        self._specs = _servable_specs(reports)
        return reports

    def scan_model(self, name: str) -> list[ModelReport]:
        """Scan one model and return a report for each version; empty if there is no such model."""
        # The name comes from the network. It must name a folder of the repository and not be a path.
        exists = name and Path(name).name == name and _is_model_folder(self._repository / name)
        reports = self._inspect_model(name) if exists else []
        others = {key: spec for key, spec in self._specs.items() if spec.name != name}
        self._specs = others | _servable_specs(reports)
        return reports

    def _inspect_model(self, name: str) -> list[ModelReport]:
        folder = self._repository / name
        try:
            versions = sorted(entry for entry in folder.iterdir() if _is_model_folder(entry))
        except OSError as error:
            reason = f"{folder}: {error.strerror}"
        else:
            if versions:
                return [self._inspect_version(version) for version in versions]
            reason = f"{folder}: got no version folder, wanted {folder / '1'} with the model in it"
        return [ModelReport(ModelSpec(encodable(name), "", "", (), ()), None, encodable(reason))]

    def spec(self, key: str) -> ModelSpec:
        """Return the spec of a servable model. Raises `UnknownModel` if the last scan did not find it."""
        try:
            return self._specs[key]
        except KeyError:
            raise UnknownModel(f"model {key}: not in the repository, or unavailable") from None

    def open(self, spec: ModelSpec) -> OpenModel:
        """Open this content of a model and run every batch size once, unless that has failed when the model was read.
        Raises `InvalidModel` or `ModelFailed`, and `Refused` if the files have another content now.

        The content that a runtime keeps in host memory is opened whatever the files are now.
        """
        runtime, folder = self._runtime(spec.runtime), self._folder(spec)
        if isinstance(runtime, KeepsModels) and (kept := runtime.open_kept(spec)) is not None:
            return kept
        content = self._contents.read(folder)
        content.check_spec(spec)
        report = self._reports.get(folder)
        model = runtime.open(spec, folder, warm=not (report and report.profile and not report.profile.measured))
        try:
            content.check_unchanged()
        except HorologeError:
            model.close()
            raise
        return model

    def is_open(self, key: str) -> bool:
        """Return True if `open` returns at once, because the model is open in host memory."""
        spec = self._specs.get(key)
        runtime = self._keeping.get(spec.runtime) if spec else None
        return spec is not None and runtime is not None and runtime.is_open(spec)

    def inline_io(self, key: str) -> bool:
        """Return True if INPUT and OUTPUT are part of EXEC: host memory, and no declared transfer times.

        Also answers for a removed model, because actions on it may be pending.
        """
        return self._inline.get(key, True)

    def _folder(self, spec: ModelSpec) -> Path:
        return self._repository / spec.name / spec.version

    def _inspect_version(self, folder: Path) -> ModelReport:
        name, version, notes = folder.parent.name, folder.name, foreign_notes(folder)
        spec = ModelSpec(encodable(name), encodable(version), "", (), (), notes=notes)
        profile, reason, note = None, "", ""
        try:
            for text in (name, version):
                if not text.isprintable() or any(mark.isspace() or mark in FORBIDDEN for mark in text):
                    raise InvalidModel(f"name: got {text!r}, wanted printable characters without '/', '#', white space")
            content = self._contents.read(folder, anew=True)
            manifest = read_manifest(folder)
            kind = runtime_name(folder, manifest)
            spec = msgspec.structs.replace(spec, runtime=kind)
            runtime = self._runtime(kind)
            last = self._reports.pop(folder, None)
            if last and last.spec.content_hash == content.hash:
                self._reports[folder] = last
                return last  # a client may request one load after another, and to open a model takes processor time
            inspected = msgspec.structs.replace(runtime.inspect(folder), content_hash=content.hash, notes=notes)
            _check_in_range(folder, inspected)
            spec, profile, note = self._measure(runtime, inspected, folder, manifest, content)
            _check_in_range(folder, spec, profile)
        except HorologeError as error:
            profile, reason = None, error.reason
        except OSError as error:
            reason = f"{error.filename or folder}: {error.strerror or error}"
        except Exception as error:  # a library may raise anything on a broken file; the other models are still scanned
            log.exception("model unreadable", model=spec.key)
            reason = f"{folder}: {describe_exception(error)}"
        if profile is None:
            log.warning("model unavailable", model=spec.key, reason=reason)
            return ModelReport(spec, None, encodable(reason))
        for note in spec.notes:
            log.warning("model note", model=spec.key, note=note)
        times = manifest.emulated
        transfers = times is not None and bool(times.input_ms or times.output_ms or times.sharing)
        self._inline[spec.key] = runtime.inline_io and not transfers
        report = self._reports[folder] = ModelReport(spec, profile, note=encodable(note))
        return report

    def _measure(
        self, runtime: Runtime, spec: ModelSpec, folder: Path, manifest: Manifest, content: Content
    ) -> tuple[ModelSpec, Profile, str]:
        """Return the spec as the model can be batched, and its profile. If the model failed on made-up inputs, this is
        a first estimate, and the third element says why.
        """
        begin_ns = monotonic_ns()

        def measure(spec: ModelSpec, row_fault: str) -> Profile:
            if isinstance(runtime, PreparesModels):
                runtime.prepare(spec, folder)
            return load_or_measure_profile(
                runtime, spec, folder, self._profiles, self._report, content.check_unchanged, row_fault
            )

        def unsupported_reason(spec: ModelSpec) -> str:
            return runtime.unsupported_reason(spec, folder) if isinstance(runtime, LimitsSpecs) else ""

        try:
            if manifest.batching == "on":
                return spec, measure(spec, ""), ""
            return *measure_unbatched_if_needed(spec, default_length(manifest), measure, unsupported_reason), ""
        except WarmUpFailed as error:
            content.check_unchanged()
            log.warning("model not measured yet", model=spec.key, reason=error.reason)
            note = f"not measured yet: failed on made-up inputs: {error.reason}"
            return spec, first_estimate(spec, monotonic_ns() - begin_ns), note

    def _runtime(self, name: str) -> Runtime:
        if name not in self._runtimes:
            try:
                self._runtimes[name] = self._factories[name](self._device)
            except ImportError as error:
                raise InvalidModel(
                    f"runtime {name!r}: {error.name or error} is not installed "
                    f"(the extra `{EXTRAS.get(name, name)}` of the distribution)"
                ) from error
            if isinstance(runtime := self._runtimes[name], KeepsModels):
                self._keeping[name] = runtime
        return self._runtimes[name]


def _check_in_range(folder: Path, spec: ModelSpec, profile: Profile | None = None) -> None:
    """Raise `InvalidModel` for numbers and texts that no message can carry, and those that no scheduler can use."""
    try:
        check_spec(spec)
        check_size(spec)
        if profile is not None:
            check_profile(profile)
    except InvalidInput as error:
        raise InvalidModel(f"{folder}: {error.reason}") from error


def _is_model_folder(path: Path) -> bool:
    if path.name == PIPELINES and os.path.isfile(path / PIPELINE_MANIFEST):
        return False
    return os.path.isdir(path) and not path.name.startswith((".", "__"))  # Path.is_dir raises if the name is too long


def _servable_specs(reports: list[ModelReport]) -> dict[str, ModelSpec]:
    return {report.spec.key: report.spec for report in reports if report.profile is not None}


def runtime_name(folder: Path, manifest: Manifest) -> str:
    """Return the name of a version's runtime. Raises `InvalidModel` if neither its manifest nor its files name one."""
    if manifest.emulated is not None and not manifest.runtime:
        return "emulated"
    if manifest.runtime in RUNTIMES:
        return manifest.runtime
    if manifest.runtime:
        where, wanted = manifest_path(folder), ", ".join(RUNTIMES)
        raise InvalidModel(f"{where}: runtime: got {manifest.runtime!r}, wanted one of {wanted}")
    candidates = [runtime for file, runtime in MODEL_FILES.items() if (folder / file).is_file()]
    if len(candidates) != 1:
        raise InvalidModel(
            f"{folder}: got {' and '.join(candidates) or 'no model file'}, wanted {' or '.join(MODEL_FILES)} "
            "(or `runtime` in model.toml)"
        )
    return candidates[0]
