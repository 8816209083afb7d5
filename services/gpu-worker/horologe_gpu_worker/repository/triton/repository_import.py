"""Imports a Triton repository: reads its models, and writes those that can be served in our form."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

from horologe_common.models import natural_sort_key
from horologe_common.status import InvalidInput
from horologe_gpu_worker.repository.manifest import MANIFEST, TRITON_CONFIG, InvalidModel, convert_manifest
from horologe_gpu_worker.repository.triton.config_file import config_document
from horologe_gpu_worker.repository.triton.ensembles import find_ensemble_faults, make_pipeline
from horologe_gpu_worker.repository.triton.findings import Finding
from horologe_gpu_worker.repository.triton.translation import Translation, read_versions, translate_version
from horologe_gpu_worker.repository.version_policy import TRITON_VERSION, choose_versions, convert_policy
from horologe_gpu_worker.runtimes.python.triton_model import INITIALIZE_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PIPELINES = "pipelines"
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class ImportedModel(NamedTuple):
    """A model of a Triton repository. `translation` is None if its configuration cannot be read."""

    name: str
    kind: str
    """Its runtime, or `pipeline`."""
    versions: tuple[str, ...]
    """The versions that are served."""
    findings: tuple[Finding, ...]
    translation: Translation | None

    @property
    def is_served(self) -> bool:
        """Return whether nothing is missing."""
        return self.translation is not None and all(finding.effect != "missing" for finding in self.findings)


def read_repository(repository: Path) -> list[ImportedModel]:
    """Return the models of a Triton repository, sorted by name. Raises OSError."""
    folders = sorted(entry for entry in repository.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    models = [_read_model(folder) for folder in folders]
    while True:  # an ensemble that is not served may be a step of another one
        served = {model.name for model in models if model.is_served}
        checked = [_check_ensemble(model, served) for model in models]
        if served == {model.name for model in checked if model.is_served}:
            return checked
        models = checked


def _read_model(folder: Path) -> ImportedModel:
    found = sorted(
        (entry for entry in folder.iterdir() if entry.is_dir() and TRITON_VERSION.fullmatch(entry.name)),
        key=lambda entry: natural_sort_key(entry.name),
    )
    try:
        versions = choose_versions(folder, convert_policy(read_versions(folder)), found)
        translations = [translate_version(version) for version in versions or [folder / "1"]]
        translation = translations[-1]
        # The sources of a Python model may differ.
        findings = {finding: None for translated in translations for finding in translated.findings}
        if translation.backend != "ensemble":
            if not versions:
                raise InvalidModel(f"{folder}: got no version folder, wanted {folder / '1'} with the model in it")
            if not translation.missing:
                convert_manifest(folder / TRITON_CONFIG, translation.manifest)
    except InvalidModel as error:
        finding = Finding(TRITON_CONFIG, "missing", error.reason)
        return ImportedModel(folder.name, "", (), (finding,), None)
    kind = "pipeline" if translation.backend == "ensemble" else translation.manifest["runtime"]
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and entry not in found and not entry.name.startswith((".", "__")):
            findings[Finding(f"{entry.name}/", "limited", "is not copied: it is no version")] = None
    names = ("1",) if kind == "pipeline" else tuple(version.name for version in versions)
    return ImportedModel(folder.name, kind, names, tuple(findings), translation)


def _check_ensemble(model: ImportedModel, served: set[str]) -> ImportedModel:
    if model.kind != "pipeline" or model.translation is None:
        return model
    own = [finding for finding in model.translation.findings if finding.field != "ensemble_scheduling"]
    return model._replace(findings=(*own, *find_ensemble_faults(model.translation.config, served)))


def write_repository(models: list[ImportedModel], source: Path, target: Path) -> None:
    """Write the models that are served to `target`, a new or empty folder. Raises `InvalidInput` for another, OSError.

    Files are copied. Versions that the policy leaves out are copied too.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InvalidInput(f"{target}: got an existing path, wanted a new or empty folder")
    target.mkdir(parents=True, exist_ok=True)
    pipelines: dict[str, Any] = {}
    for model in models:
        if not model.is_served or model.translation is None:
            continue
        if model.kind == "pipeline":
            form = make_pipeline(model.translation.config)
            (target / PIPELINES).mkdir(exist_ok=True)
            (target / PIPELINES / f"{model.name}.py").write_text(form.driver)
            pipelines[model.name] = form.table
        else:
            _write_model(model.translation, source / model.name, target / model.name)
    if pipelines:
        tables = [f"[{_key(name)}]\n{write_toml(table)}" for name, table in pipelines.items()]
        (target / PIPELINES / "pipeline.toml").write_text("\n".join(tables))


def _write_model(translation: Translation, source: Path, target: Path) -> None:
    target.mkdir()
    for entry in source.iterdir():
        if entry.is_dir() and (TRITON_VERSION.fullmatch(entry.name) or entry.name.startswith("__")):
            shutil.copytree(entry, target / entry.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif entry.is_file() and entry.name != TRITON_CONFIG:
            shutil.copy2(entry, target / entry.name)
    (target / MANIFEST).write_text(write_toml(translation.manifest))
    if translation.backend == "python":
        document = config_document(translation.config)
        (target / INITIALIZE_FILE).write_text(json.dumps(document, indent=1) + "\n")


def write_toml(table: Mapping[str, Any]) -> str:
    """Return a TOML table: a line for each key, and for each table of a list."""
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in table.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + "".join(f"  {_value(item)},\n" for item in value) + "]"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(key: str) -> str:
    return key if BARE_KEY.fullmatch(key) else _value(key)
