"""Which versions of a model are served: `versions` in `model.toml`, or the policy in Triton's `config.pbtxt`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from horologe_common.models import natural_sort_key
from horologe_gpu_worker.repository.manifest import MANIFEST, TRITON_CONFIG, InvalidModel, read_manifest_file
from horologe_gpu_worker.repository.manifest_fields import ALL_VERSIONS, LatestVersions, Manifest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Policy: TypeAlias = str | LatestVersions | tuple[str, ...]
"""All versions, the newest, or these."""
TRITON_VERSION = re.compile(r"[1-9][0-9]*")
"""Triton ignores all other folders: those of warm-up data and of further configurations."""


def served_versions(model: Path, folders: Sequence[Path]) -> list[Path]:
    """Return the folders of the versions that are served. All of them, if the policy cannot be read: each then says so.

    Raises `InvalidModel` if the policy leaves none.
    """
    triton = is_triton_model(model, folders)
    kept = [folder for folder in folders if not triton or TRITON_VERSION.fullmatch(folder.name)]
    try:
        policy = _read_policy(model, kept, triton)
    except InvalidModel:
        return kept
    return choose_versions(model, policy, kept)


def choose_versions(model: Path, policy: Policy, folders: Sequence[Path]) -> list[Path]:
    """Return the folders that a policy chooses. Raises `InvalidModel` if it leaves none of them."""
    if isinstance(policy, LatestVersions):
        newest = sorted(folders, key=lambda folder: natural_sort_key(folder.name))[-policy.latest :]
        return [folder for folder in folders if folder in newest]
    if policy == ALL_VERSIONS:
        return list(folders)
    served = [folder for folder in folders if folder.name in policy]
    if folders and not served:
        names = ", ".join(folder.name for folder in folders)
        raise InvalidModel(f"{model}: versions: got {', '.join(policy) or 'none'}, wanted some of {names}")
    return served


def is_triton_model(model: Path, folders: Sequence[Path]) -> bool:
    """Return whether a model is described by `config.pbtxt`, and by no `model.toml`."""
    manifests = [model / MANIFEST, *(folder / MANIFEST for folder in folders)]
    return (model / TRITON_CONFIG).is_file() and not any(path.is_file() for path in manifests)


def _read_policy(model: Path, folders: Sequence[Path], triton: bool) -> Policy:
    if triton:
        from horologe_gpu_worker.repository.triton.translation import read_versions  # imports protobuf

        return convert_policy(read_versions(model))
    path = model / MANIFEST
    return read_manifest_file(path).versions if path.is_file() else ALL_VERSIONS


def convert_policy(versions: Any) -> Policy:
    """Return the value of the key `versions` of a `model.toml` as a policy."""
    return msgspec.convert({"versions": versions}, Manifest).versions
