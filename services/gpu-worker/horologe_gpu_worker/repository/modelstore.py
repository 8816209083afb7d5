"""Model store: the models in `<repository>/<name>/<version>/`, each a model file and a `model.toml`.

A model that cannot be served is reported with the reason, and does not affect the other models.
"""

from __future__ import annotations

import os
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from horologe_common.models import ModelSpec, Profile
from horologe_common.service.log import logger
from horologe_common.status import HorologeError, UnknownModel, encodable
from horologe_common.wire import ModelReport
from horologe_gpu_worker.repository.content import ContentHashes
from horologe_gpu_worker.repository.manifest import (
    MODEL_FILES,
    InvalidModel,
    Manifest,
    duration_ns,
    manifest_path,
    read_manifest,
)
from horologe_gpu_worker.repository.profiling import ON_DEVICE, DeclaresProfile, ProfileCache, load_or_measure_profile
from horologe_gpu_worker.runtime import HOST_DEVICE, DeviceConfig, KeepsModels, PreparesModels
from horologe_gpu_worker.runtimes import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from horologe_gpu_worker.repository.content import HashedFile
    from horologe_gpu_worker.runtime import OpenModel, Runtime

FORBIDDEN = "/#"
"""Separators in addresses and model keys, forbidden in names."""
PIPELINES, PIPELINE_MANIFEST = "pipelines", "pipeline.toml"
"""The folder of the selector's pipelines, which is no model."""
EXTRAS = {"pytorch": "torch"}
"""Runtime -> its extra, if the names differ."""

WAITING = "waiting to be read"
"""Progress of a model that no inspection has begun to read."""

log = logger("modelstore")


class VersionReport(NamedTuple):
    """Result of the inspection of a version. Without profile and reason, the model has not been measured."""

    report: ModelReport
    inline_io: bool = True
    """INPUT and OUTPUT are part of EXEC: host memory, and no declared transfer times."""
    unchanged: bool = False
    """The files have the content that was known before. The report is empty."""


class ModelStore:
    """The models of a repository. `report` receives a line before long work. `device` is where models are opened.

    Models must be known before they are opened: by `scan`, which blocks while it inspects and measures them here, or by
    `adopt_version`, after another process has done that.
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
        self._contents = ContentHashes()
        self._reports: dict[Path, ModelReport] = {}
        """Last report of each version that can be served."""
        self._lock = Lock()
        """Protects `_specs`: models are adopted beside each other."""

    def list_models(self) -> list[ModelReport]:
        """Return a placeholder for every version, which says that it has not been read, sorted by name and version.

        Raises `InvalidModel` if the repository cannot be read.
        """
        return [waiting_report(name, version) for name in self._names() for version in self._version_names(name)]

    def scan(self) -> list[ModelReport]:
        """Inspect every model here and return a report for every version, sorted by name and version.

        Raises `InvalidModel` if the repository cannot be read.
        """
        reports = [report for name in self._names() for report in self._scan_model(name)]
        self._specs = _servable_specs(reports)
        return reports

    def scan_model(self, name: str) -> list[ModelReport]:
        """Inspect one model here and return a report for each version; empty if there is no such model."""
        reports = self._scan_model(name) if self._exists(name) else []
        self.finish_model(name, reports)
        return reports

    def version_folders(self, name: str) -> list[Path]:
        """Return the folders of a model's versions; empty if there is no such model.

        Raises `InvalidModel` if the model has no version, or cannot be read.
        """
        if not self._exists(name):
            return []
        folder = self._repository / name
        try:
            versions = sorted(entry for entry in folder.iterdir() if _is_model_folder(entry))
        except OSError as error:
            raise InvalidModel(f"{folder}: {error.strerror}") from error
        if not versions:
            raise InvalidModel(f"{folder}: got no version folder, wanted {folder / '1'} with the model in it")
        return versions

    def content_hash(self, folder: Path) -> str:
        """Return the content of the version that was adopted last; empty if it cannot be served."""
        report = self._reports.get(folder)
        return report.spec.content_hash if report else ""

    def hashed_files(self, folder: Path) -> tuple[HashedFile, ...]:
        """Return the hashes of a version's files, as far as they were read."""
        try:
            return self._contents.files_of(folder)
        except OSError:
            return ()

    def inspect_version(
        self,
        folder: Path,
        content_hash: str = "",
        on_timeout: Callable[[int], None] = lambda timeout_ns: None,
        unmeasured: Container[str] = (),
    ) -> VersionReport:
        """Read a version, and measure it unless its runtime is among `unmeasured`. Errors become its reason.

        `content_hash`: content that the caller knows, of which nothing is read again. `on_timeout` receives the
        version's own `load_timeout` in ns before anything else is read; 0: it has none.
        """
        name, version = folder.parent.name, folder.name
        spec, profile, reason = ModelSpec(encodable(name), encodable(version), "", (), ()), None, ""
        inline_io = True
        try:
            for text in (name, version):
                if not text.isprintable() or any(mark.isspace() or mark in FORBIDDEN for mark in text):
                    raise InvalidModel(f"name: got {text!r}, wanted printable characters without '/', '#', white space")
            manifest = read_manifest(folder)
            on_timeout(duration_ns(manifest.load_timeout))
            kind = runtime_name(folder, manifest)
            spec = msgspec.structs.replace(spec, runtime=kind)
            runtime = self._runtime(kind)
            read = self._contents.hash_folder(folder)
            if content_hash and content_hash == read:
                return VersionReport(ModelReport(spec, None), unchanged=True)
            spec = msgspec.structs.replace(runtime.inspect(folder), content_hash=read)
            inline_io = runtime.inline_io and not _declares_transfers(manifest)
            if kind in unmeasured:
                return VersionReport(ModelReport(spec, None), inline_io)
            if isinstance(runtime, PreparesModels):
                runtime.prepare(spec, folder)
            profile = self._measure(runtime, spec, folder)
        except Exception as error:  # a library may raise anything on a broken file; the other models are still read
            reason = _describe_error(folder, spec, error)
        return VersionReport(ModelReport(spec, profile, encodable(reason)), inline_io)

    def adopt_version(self, folder: Path, inspected: VersionReport, files: Iterable[HashedFile] = ()) -> ModelReport:
        """Make a version that another process has inspected ready to be opened here. Return its report.

        What needs this process is done now: addresses of weights and captured graphs, and measurements on a GPU.
        """
        self._contents.adopt_files(files)
        report, inline_io = inspected.report, inspected.inline_io
        if inspected.unchanged:
            report = self._reports[folder]
            inline_io = self._inline[report.spec.key]
        if not report.reason:
            try:
                report, inline_io = self._adopt(folder, report, inline_io)
            except Exception as error:
                reason = _describe_error(folder, report.spec, error)
                report = ModelReport(report.spec, None, encodable(reason))
        return self._store_report(folder, report, inline_io)

    def finish_model(self, name: str, reports: list[ModelReport]) -> None:
        """Remove the versions of a model that are not among the reports, or cannot be served."""
        with self._lock:
            others = {key: spec for key, spec in self._specs.items() if spec.name != name}
            self._specs = others | _servable_specs(reports)

    def _adopt(self, folder: Path, report: ModelReport, inline_io: bool) -> tuple[ModelReport, bool]:
        spec = report.spec
        runtime = self._runtime(spec.runtime)
        if self._device.cuda is not None and spec.runtime in ON_DEVICE:
            done = self.inspect_version(folder)
            return done.report, done.inline_io
        if isinstance(runtime, DeclaresProfile):
            runtime.inspect(folder)  # keeps what it reads
        if isinstance(runtime, PreparesModels):
            runtime.prepare(spec, folder)
        self._contents.check_unchanged(spec, folder)
        return report, inline_io

    def _measure(self, runtime: Runtime, spec: ModelSpec, folder: Path) -> Profile:
        return load_or_measure_profile(
            runtime, spec, folder, self._profiles, self._report, self._contents.check_unchanged
        )

    def _names(self) -> list[str]:
        try:
            return sorted(entry.name for entry in self._repository.iterdir() if _is_model_folder(entry))
        except OSError as error:
            raise InvalidModel(f"{self._repository}: {error.strerror}, wanted a folder of models") from error

    def _exists(self, name: str) -> bool:
        """Return whether the repository has the model. The name comes from the network and must not be a path."""
        return bool(name) and Path(name).name == name and _is_model_folder(self._repository / name)

    def _version_names(self, name: str) -> list[str]:
        try:
            return [folder.name for folder in self.version_folders(name)]
        except InvalidModel:
            return [""]

    def _scan_model(self, name: str) -> list[ModelReport]:
        try:
            return [self._scan_version(folder) for folder in self.version_folders(name)]
        except InvalidModel as error:
            return [unreadable_report(name, error.reason)]

    def _scan_version(self, folder: Path) -> ModelReport:
        last = self._reports.get(folder)
        if last is None or isinstance(self._runtimes.get(last.spec.runtime), PreparesModels):
            inspected = self.inspect_version(folder)
        else:
            # a client may request one load after another, and to open a model takes processor time
            inspected = self.inspect_version(folder, last.spec.content_hash)
        if last is not None and inspected.unchanged:
            return last
        return self._store_report(folder, inspected.report, inspected.inline_io)

    def _store_report(self, folder: Path, report: ModelReport, inline_io: bool) -> ModelReport:
        if report.profile is None:
            self._reports.pop(folder, None)
            log.warning("model unavailable", model=report.spec.key, reason=report.reason)
            return report
        self._inline[report.spec.key] = inline_io
        self._reports[folder] = report
        with self._lock:
            self._specs = self._specs | {report.spec.key: report.spec}
        return report

    def spec(self, key: str) -> ModelSpec:
        """Return the spec of a servable model. Raises `UnknownModel` if the last scan did not find it."""
        try:
            return self._specs[key]
        except KeyError:
            raise UnknownModel(f"model {key}: not in the repository, or unavailable") from None

    def open(self, spec: ModelSpec) -> OpenModel:
        """Open this content of a model and run every batch size once. Raises `InvalidModel` or `ModelFailed`, and
        `Refused` if the files have another content now.

        The content that a runtime keeps in host memory is opened whatever the files are now.
        """
        runtime, folder = self._runtime(spec.runtime), self._folder(spec)
        if isinstance(runtime, KeepsModels) and (kept := runtime.open_kept(spec)) is not None:
            return kept
        self._contents.check_unchanged(spec, folder)
        model = runtime.open(spec, folder)
        try:
            self._contents.check_unchanged(spec, folder)
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


def _is_model_folder(path: Path) -> bool:
    if path.name == PIPELINES and os.path.isfile(path / PIPELINE_MANIFEST):
        return False
    return os.path.isdir(path) and not path.name.startswith((".", "__"))  # Path.is_dir raises if the name is too long


def waiting_report(name: str, version: str) -> ModelReport:
    """Return the report of a version that has not been read."""
    return ModelReport(ModelSpec(encodable(name), encodable(version), "", (), ()), None, loading=WAITING)


def unreadable_report(name: str, reason: str) -> ModelReport:
    """Return the report of a model without versions."""
    return ModelReport(ModelSpec(encodable(name), "", "", (), ()), None, encodable(reason))


def _describe_error(folder: Path, spec: ModelSpec, error: Exception) -> str:
    if isinstance(error, HorologeError):
        return error.reason
    if isinstance(error, OSError):
        return f"{error.filename or folder}: {error.strerror or error}"
    log.exception("model unreadable", model=spec.key)
    return f"{folder}: {type(error).__name__}: {error}"


def _declares_transfers(manifest: Manifest) -> bool:
    times = manifest.emulated
    return times is not None and bool(times.input_ms or times.output_ms or times.sharing)


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
