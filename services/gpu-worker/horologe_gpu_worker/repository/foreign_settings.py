"""Settings of other servers in a model's folder. Triton's are used if there is no `model.toml`; others have no effect.

Each file has a note, which names what is not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.status import describe_error, encodable
from horologe_gpu_worker.repository.manifest import TRITON_CONFIG, InvalidModel, manifest_path

if TYPE_CHECKING:
    from pathlib import Path

FOREIGN_FILES = {
    TRITON_CONFIG: "Triton",
    "model-settings.json": "MLServer",
    "model-config.yaml": "TorchServe",
    "MAR-INF/MANIFEST.json": "TorchServe",
    "tfserving_warmup_requests": "TensorFlow Serving",
    "assets.extra/tf_serving_warmup_requests": "TensorFlow Serving",
}
"""File in the folder of a model or of a version -> the server that reads it."""
SHOWN_FINDINGS, SHOWN_CHARACTERS = 40, 200


def foreign_notes(folder: Path) -> tuple[str, ...]:
    """Return a note for each file of another server in the folder of a version, or in that of its model."""
    notes = []
    for place in (folder.parent, folder):
        for name, server in FOREIGN_FILES.items():
            path = place / name
            try:
                if path.is_file():
                    notes.append(_describe(folder, path, name, server))
            except OSError as error:
                notes.append(f"{name} of {server}: not used, and cannot be read: {describe_error(error)}")
    return tuple(encodable(note) for note in notes if note)


def _describe(folder: Path, path: Path, name: str, server: str) -> str:
    if path != folder.parent / TRITON_CONFIG:
        return f"{name} of {server} is not used: set what it declares in model.toml"
    manifest = manifest_path(folder)
    if manifest is not None:
        return f"{name} of {server} is not used, because there is a {manifest.name}"
    return _describe_findings(folder)


def _describe_findings(folder: Path) -> str:
    """Return what of a used `config.pbtxt` has no effect. Empty if all of it has, or if the model is not served."""
    from horologe_gpu_worker.repository.triton.translation import translate_version  # imports protobuf

    try:
        translation = translate_version(folder)
    except InvalidModel:
        return ""  # the reason why the model is not served
    shown = [
        f"{finding.field[:SHOWN_CHARACTERS]}: {finding.effect}: {finding.text[:SHOWN_CHARACTERS]}"
        for finding in translation.findings
        if finding.effect in ("not needed", "limited")
    ]
    more = [f"and {len(shown) - SHOWN_FINDINGS} more"] if len(shown) > SHOWN_FINDINGS else []
    return f"{TRITON_CONFIG} of Triton: {'; '.join([*shown[:SHOWN_FINDINGS], *more])}" if shown else ""
