"""Inspection of a version: its files, its signature and its profile. Errors become the reason why it is not served."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from horologe_common.clock import monotonic_ns
from horologe_common.model_limits import check_profile, check_size, check_spec
from horologe_common.models import ModelSpec, Profile
from horologe_common.service.log import logger
from horologe_common.status import HorologeError, InvalidInput, describe_exception, encodable
from horologe_common.wire import ModelReport
from horologe_gpu_worker.repository.content import ContentHashes
from horologe_gpu_worker.repository.foreign_settings import foreign_notes
from horologe_gpu_worker.repository.manifest import MODEL_FILES, InvalidModel, duration_ns, manifest_path, read_manifest
from horologe_gpu_worker.repository.manifest_fields import Manifest
from horologe_gpu_worker.repository.model_spec import check_supported, default_length
from horologe_gpu_worker.repository.profile_cache import ON_DEVICE, ProfileCache
from horologe_gpu_worker.repository.profiling import load_or_measure_profile
from horologe_gpu_worker.repository.row_check import measure_unbatched_if_needed
from horologe_gpu_worker.repository.warm_up import first_estimate
from horologe_gpu_worker.runtime import WarmUpFailed
from horologe_gpu_worker.runtimes import RUNTIMES
from horologe_gpu_worker.settings import DEFAULTS, WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping
    from pathlib import Path

    from horologe_gpu_worker.repository.content import Content
    from horologe_gpu_worker.runtime import Runtime

    Measured = tuple[ModelSpec, Profile, str]
    """The spec as the model can be batched, and its profile. If the model failed on made-up inputs, this is a first
    estimate, and the third element says why."""

FORBIDDEN = "/#"
"""Separators in addresses and model keys, forbidden in names."""
EXTRAS = {"pytorch": "torch", "torchscript": "torch"}
"""Runtime -> its extra, if the names differ."""

FILE_SUFFIXES = {PurePath(file).suffix: runtime for file, runtime in MODEL_FILES.items()}
"""Suffix of `file` in `model.toml` -> runtime."""

log = logger("modelstore")


class VersionReport(NamedTuple):
    """Result of the inspection of a version. Without profile and reason, the model has not been measured."""

    report: ModelReport
    inline_io: bool = True
    """INPUT and OUTPUT are part of EXEC: host memory, and no declared transfer times."""
    unchanged: bool = False
    """The files have the content that was known before. The report is empty."""


class VersionInspector:
    """Reads, prepares and measures versions. `report` receives a line before long work."""

    def __init__(
        self,
        cache: Path,
        runtimes: Mapping[str, Callable[[WorkerSettings], Runtime]] = RUNTIMES,
        report: Callable[[str], None] = log.info,
        settings: WorkerSettings = DEFAULTS,
    ) -> None:
        self.contents = ContentHashes()
        self.runtimes: dict[str, Runtime] = {}
        """Runtimes that a model has needed, by name."""
        self._settings = msgspec.structs.replace(settings, cache=str(cache))
        self._profiles = ProfileCache(cache, settings.cuda, settings.share_percent)
        self._factories = runtimes
        self._report = report
        self._measured: dict[Path, Runtime] = {}
        """Versions that are measured in processes of their own."""

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
        name, version, notes = folder.parent.name, folder.name, foreign_notes(folder)
        spec = ModelSpec(encodable(name), encodable(version), "", (), (), notes=notes)
        profile, reason, note, inline_io = None, "", "", True
        try:
            for text in (name, version):
                if not text.isprintable() or any(mark.isspace() or mark in FORBIDDEN for mark in text):
                    raise InvalidModel(f"name: got {text!r}, wanted printable characters without '/', '#', white space")
            on_timeout(duration_ns(read_manifest(folder).load_timeout))
            content = self.contents.read(folder, anew=True)
            manifest = read_manifest(folder)
            kind = runtime_name(folder, manifest)
            spec = msgspec.structs.replace(spec, runtime=kind)
            check_supported(folder, manifest, kind)  # before its package and its files are read
            runtime = self.runtime(kind)
            runtime.provision(folder, self._report)
            if content_hash and content_hash == content.hash:
                return VersionReport(ModelReport(spec, None), unchanged=True)
            inspected = runtime.place(runtime.inspect(folder), folder)
            inspected = msgspec.structs.replace(inspected, content_hash=content.hash, notes=notes)
            _check_in_range(folder, inspected)
            spec = inspected
            inline_io = spec.streams or (runtime.inline_io and not _declares_transfers(manifest))
            if kind in unmeasured:
                return VersionReport(ModelReport(spec, None), inline_io)
            spec, profile, note = self._measure(runtime, spec, folder, content, self._report)
            _check_in_range(folder, spec, profile)
        except Exception as error:  # a library may raise anything on a broken file; the other models are still read
            profile, reason = None, _describe_error(folder, spec, error)
        return VersionReport(ModelReport(spec, profile, encodable(reason), encodable(note)), inline_io)

    def prepare_version(self, folder: Path, inspected: VersionReport, report: Callable[[str], None]) -> VersionReport:
        """Do what needs this process, after another one has inspected the version. Errors become the reason.

        Reserve addresses of weights, capture graphs, measure on a GPU, or measure a model that has its own process.
        """
        spec, profile, note = inspected.report.spec, inspected.report.profile, inspected.report.note
        if inspected.report.reason:
            return inspected
        try:
            runtime = self.runtime(spec.runtime)
            if self._settings.cuda is not None and spec.runtime in ON_DEVICE:
                return self.inspect_version(folder)
            content = self.contents.read(folder)
            content.check_spec(spec)
            spec = runtime.place(spec, folder)
            if profile is None or profile.measured:
                runtime.prepare(spec, folder)
            if profile is None:
                spec, profile, note = self._measure_isolated(runtime, spec, folder, content, report)
                _check_in_range(folder, spec, profile)
            content.check_unchanged()
        except Exception as error:
            reason = encodable(_describe_error(folder, spec, error))
            return inspected._replace(report=ModelReport(spec, None, reason))
        return inspected._replace(report=ModelReport(spec, profile, note=encodable(note)))

    def stop_measuring(self, folder: Path) -> None:
        """Stop `prepare_version` if it measures a model in a process of its own. May be called from any thread."""
        if (measured := self._measured.get(folder)) is not None:
            measured.stop()

    def runtime(self, name: str) -> Runtime:
        """Return a runtime, created at its first use. Raises `InvalidModel` if its package is not installed."""
        if name not in self.runtimes:
            try:
                self.runtimes[name] = self._factories[name](self._settings)
            except ImportError as error:
                raise InvalidModel(
                    f"runtime {name!r}: {error.name or error} is not installed "
                    f"(the extra `{EXTRAS.get(name, name)}` of the distribution)"
                ) from error
        return self.runtimes[name]

    def _measure_isolated(
        self, runtime: Runtime, spec: ModelSpec, folder: Path, content: Content, report: Callable[[str], None]
    ) -> Measured:
        measured = self._measured[folder] = runtime.measured_model()
        try:
            return self._measure(measured, spec, folder, content, report)
        finally:
            if self._measured.get(folder) is measured:  # else it was stopped, and is measured again
                del self._measured[folder]

    def _measure(
        self, runtime: Runtime, spec: ModelSpec, folder: Path, content: Content, report: Callable[[str], None]
    ) -> Measured:
        begin_ns, manifest = monotonic_ns(), read_manifest(folder)

        def measure(spec: ModelSpec, row_fault: str) -> Profile:
            runtime.prepare(spec, folder)
            return load_or_measure_profile(
                runtime, spec, folder, self._profiles, report, content.check_unchanged, row_fault
            )

        try:
            if manifest.batching == "on":
                return spec, measure(spec, ""), ""
            return *measure_unbatched_if_needed(spec, default_length(manifest), measure), ""
        except WarmUpFailed as error:
            content.check_unchanged()
            log.warning("model not measured yet", model=spec.key, reason=error.reason)
            note = f"not measured yet: failed on made-up inputs: {error.reason}"
            return spec, first_estimate(spec, monotonic_ns() - begin_ns), note


def _describe_error(folder: Path, spec: ModelSpec, error: Exception) -> str:
    if isinstance(error, HorologeError):
        return error.reason
    if isinstance(error, OSError):
        return f"{error.filename or folder}: {error.strerror or error}"
    log.exception("model unreadable", model=spec.key)
    return f"{folder}: {describe_exception(error)}"


def _declares_transfers(manifest: Manifest) -> bool:
    times = manifest.emulated
    return times is not None and bool(times.input_ms or times.output_ms or times.sharing)


def runtime_name(folder: Path, manifest: Manifest) -> str:
    """Return the name of a version's runtime. Raises `InvalidModel` if neither its manifest nor its files name one."""
    if manifest.emulated is not None and not manifest.runtime:
        return "emulated"
    if manifest.runtime in RUNTIMES:
        return manifest.runtime
    if manifest.runtime:
        where, wanted = manifest_path(folder), ", ".join(RUNTIMES)
        raise InvalidModel(f"{where}: runtime: got {manifest.runtime!r}, wanted one of {wanted}")
    if runtime := FILE_SUFFIXES.get(PurePath(manifest.file).suffix):
        return runtime
    candidates = [runtime for file, runtime in MODEL_FILES.items() if (folder / file).is_file()]
    if len(candidates) != 1:
        raise InvalidModel(
            f"{folder}: got {' and '.join(candidates) or 'no model file'}, wanted {' or '.join(MODEL_FILES)} "
            "(or `runtime` in model.toml)"
        )
    return candidates[0]


def _check_in_range(folder: Path, spec: ModelSpec, profile: Profile | None = None) -> None:
    """Raise `InvalidModel` for numbers and texts that no message can carry, and those that no scheduler can use."""
    try:
        check_spec(spec)
        check_size(spec)
        if profile is not None:
            check_profile(profile)
    except InvalidInput as error:
        raise InvalidModel(f"{folder}: {error.reason}") from error
