"""Model store: the models in `<repository>/<name>/<version>/`, each a model file and a `model.toml`.

A model that cannot be served is reported with the reason, and does not affect the other models.
"""

from __future__ import annotations

import os
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from horologe_common.models import ModelSpec
from horologe_common.service.log import logger
from horologe_common.status import HorologeError, Refused, UnknownModel, encodable
from horologe_common.wire import ModelReport
from horologe_gpu_worker.repository.manifest import MODEL_FILES, InvalidModel
from horologe_gpu_worker.repository.version_inspector import VersionInspector, VersionReport
from horologe_gpu_worker.repository.version_policy import served_versions
from horologe_gpu_worker.runtimes import RUNTIMES
from horologe_gpu_worker.settings import DEFAULTS, WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from horologe_gpu_worker.fetching.mirror import Mirror
    from horologe_gpu_worker.repository.content import HashedFile
    from horologe_gpu_worker.runtime import OpenModel, Runtime

PIPELINES, PIPELINE_MANIFEST = "pipelines", "pipeline.toml"
"""The folder of the selector's pipelines, which is no model."""
LISTINGS_MAX = 3
WAITING = "waiting to be read"
"""Progress of a model that no inspection has begun to read."""

log = logger("modelstore")


class ModelStore:
    """The models of a repository. `report` receives a line before long work. Models are opened as `settings` say.

    Models must be known before they are opened: by `scan`, which blocks while it inspects and measures them here, or by
    `adopt_version`, after another process has done that.
    """

    def __init__(
        self,
        repository: Path,
        cache: Path,
        runtimes: Mapping[str, Callable[[WorkerSettings], Runtime]] = RUNTIMES,
        report: Callable[[str], None] = log.info,
        settings: WorkerSettings = DEFAULTS,
        mirror: Mirror | None = None,
    ) -> None:
        self._repository = repository
        self._mirror = mirror
        self._listed: set[str] = set()
        """Models that were listed when the worker started, and not read since."""
        self._inspector = VersionInspector(cache, runtimes, report, settings)
        self.inspect_version = self._inspector.inspect_version
        self.stop_measuring = self._inspector.stop_measuring
        self._contents = self._inspector.contents
        self._specs: dict[str, ModelSpec] = {}
        self._inline: dict[str, bool] = {}
        self._reports: dict[Path, ModelReport] = {}
        """Last report of each version that can be served."""
        self._lock = Lock()
        """Protects `_specs`: models are adopted beside each other."""

    def list_models(self) -> list[ModelReport]:
        """Return a placeholder for every version, which says that it has not been read, sorted by name and version.

        Raises `InvalidModel` if the repository cannot be read.
        """
        if self._mirror is not None:
            self._mirror.refresh_at_start()
        names = self._names()
        self._listed = set(names)
        if not names and any((self._repository / file).is_file() for file in MODEL_FILES):
            log.warning("repository is a single model: set NAME=FOLDER to serve it", folder=str(self._repository))
        return [waiting_report(name, version) for name in names for version in self._version_names(name)]

    def scan(self) -> list[ModelReport]:
        """Inspect every model here and return a report for every version, sorted by name and version.

        Raises `InvalidModel` if the repository cannot be read.
        """
        self._specs, reports = {}, []
        for name in self._names():
            try:
                folders = self._version_folders(name)
            except HorologeError as error:
                reports.append(unreadable_report(name, error.reason))
            else:
                reports += [self.store_version(folder, self.inspect_version(folder)) for folder in folders]
        return reports

    def version_folders(self, name: str) -> list[Path]:
        """List the model where it is, and return the folders of its versions; empty if there is no such model.

        Raises `InvalidModel` if the model has no version, or cannot be read, `ModelFailed` if its store fails, and
        `Refused` if it is replaced meanwhile.
        """
        name = self._folder_name(name)
        if name in self._listed:
            self._listed.discard(name)
        elif self._mirror is not None and _is_name(name):
            self._mirror.refresh(name)
        return self._version_folders(name)

    def _version_folders(self, name: str) -> list[Path]:
        folder = self._repository / name
        if not (_is_name(name) and _is_model_folder(folder)):  # the name comes from the network
            return []
        try:
            found = _list_versions(folder)
        except OSError as error:
            raise InvalidModel(f"{folder}: {error.strerror}") from error
        versions = served_versions(folder, found)
        if not versions:
            raise InvalidModel(f"{folder}: got no version folder, wanted {folder / '1'} with the model in it")
        return versions if self._mirror is None else [self._mirror.located(version) for version in versions]

    def content_hash(self, folder: Path) -> str:
        """Return the content of the version that was adopted last; empty if it cannot be served."""
        report = self._reports.get(folder)
        return report.spec.content_hash if report else ""

    def adopt_version(
        self,
        folder: Path,
        inspected: VersionReport,
        files: Iterable[HashedFile] = (),
        report: Callable[[str], None] = log.info,
    ) -> VersionReport:
        """Prepare a version that another process has inspected to be opened here; see `prepare_version`.

        `store_version` must follow.
        """
        self._contents.adopt_files(folder, files)
        if inspected.unchanged and (last := self._reports.get(folder)) is not None:
            inspected = VersionReport(last, self._inline[last.spec.key])
        return self._inspector.prepare_version(folder, inspected, report)

    def store_version(self, folder: Path, inspected: VersionReport) -> ModelReport:
        """Make a version known, or unknown if it cannot be served. Return its report."""
        report = inspected.report
        if report.profile is None:
            self._reports.pop(folder, None)
            log.warning("model unavailable", model=report.spec.key, reason=report.reason)
            return report
        for note in report.spec.notes:
            log.warning("model note", model=report.spec.key, note=note)
        self._inline[report.spec.key] = inspected.inline_io
        self._reports[folder] = report
        with self._lock:
            self._specs = self._specs | {report.spec.key: report.spec}
        return report

    def finish_model(self, name: str, reports: list[ModelReport]) -> None:
        """Remove the versions of a model that are not among the reports, or cannot be served."""
        served = {report.spec.key: report.spec for report in reports if report.profile is not None}
        with self._lock:
            self._specs = {key: spec for key, spec in self._specs.items() if spec.name != name} | served

    def _names(self) -> list[str]:
        try:
            return sorted(entry.name for entry in self._repository.iterdir() if _is_model_folder(entry))
        except OSError as error:
            raise InvalidModel(f"{self._repository}: {error.strerror}, wanted a folder of models") from error

    def _folder_name(self, name: str) -> str:
        """Return the name of the folder of a model. In messages it has `?` for bytes that are not UTF-8."""
        if "?" not in name or os.path.isdir(self._repository / name):
            return name
        return next((folder for folder in self._names() if encodable(folder) == name), name)

    def _version_names(self, name: str) -> list[str]:
        try:
            return [folder.name for folder in self._version_folders(name)]
        except HorologeError:
            return [""]

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
        runtime = self._inspector.runtime(spec.runtime)
        if (kept := runtime.open_kept(spec)) is not None:
            return kept
        folder = self._repository / spec.name / spec.version
        if self._mirror is not None:
            folder = self._mirror.located(folder)
        content = self._contents.read(folder)
        content.check_spec(spec)
        report = self._reports.get(folder)
        warm = not (report and report.profile and not report.profile.measured)
        model = runtime.open(spec, folder, warm=warm)
        try:
            content.check_unchanged()
        except HorologeError:
            model.close()
            raise
        return model

    def close(self) -> None:
        """Free what is kept for models that are not loaded. Call at the end of the process."""
        for runtime in self._inspector.runtimes.values():
            runtime.close()

    def is_open(self, key: str) -> bool:
        """Return True if `open` returns at once, because the model is open in host memory."""
        spec = self._specs.get(key)
        return spec is not None and self._inspector.runtime(spec.runtime).is_open(spec)

    def inline_io(self, key: str) -> bool:
        """Return True if INPUT and OUTPUT are part of EXEC: host memory, and no declared transfer times.

        Also answers for a removed model, because actions on it may be pending.
        """
        return self._inline.get(key, True)


def _list_versions(folder: Path) -> list[Path]:
    """Return the folders in the folder of a model, sorted. If it is replaced meanwhile, they are listed again.

    Raise OSError, and `Refused` if it is replaced each time.
    """
    for _ in range(LISTINGS_MAX):
        before = os.stat(folder)
        found = sorted(entry for entry in folder.iterdir() if _is_model_folder(entry))
        if os.path.samestat(before, os.stat(folder)):
            return found
    raise Refused(f"{folder}: was replaced while it was listed: load the model when all files are written")


def _is_name(name: str) -> bool:
    """Return whether a name is no path."""
    return bool(name) and Path(name).name == name


def _is_model_folder(path: Path) -> bool:
    return _is_shown_folder(path) and not (path.name == PIPELINES and _holds_pipelines(path))


def _is_shown_folder(path: Path) -> bool:
    return os.path.isdir(path) and not path.name.startswith((".", "__"))  # Path.is_dir raises if the name is too long


def _holds_pipelines(folder: Path) -> bool:
    """Return whether a folder has the manifest of pipelines, or no version that a model of this name would have."""
    try:
        return (folder / PIPELINE_MANIFEST).is_file() or not any(map(_is_shown_folder, folder.iterdir()))
    except OSError:
        return False  # the model of this name says that its folder cannot be read


def waiting_report(name: str, version: str) -> ModelReport:
    """Return the report of a version that has not been read."""
    return ModelReport(ModelSpec(encodable(name), encodable(version), "", (), ()), None, loading=WAITING)


def unreadable_report(name: str, reason: str, version: str = "") -> ModelReport:
    """Return the report of a model without versions, or of a version that was not read."""
    return ModelReport(ModelSpec(encodable(name), encodable(version), "", (), ()), None, encodable(reason))
