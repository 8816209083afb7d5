"""The keys of a folder as Kubernetes Secrets, for the chart in deploy/helm."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

GROUPS = {
    "service": "*.key*",
    "peers": "*.key*",
    "clients": "*.key",
    "management": "*.key",
    "http": "*.txt",
}
"""Folders of `horologe keys` -> files that services read. The secret keys of clients stay with the clients."""


def secret_manifests(folder: Path, prefix: str) -> dict[str, Any]:
    """Return a List with one Secret, `PREFIX-GROUP`, for each folder of keys. Raises OSError."""
    secrets = []
    for group, pattern in GROUPS.items():
        files = {
            file.name: base64.b64encode(file.read_bytes()).decode() for file in sorted((folder / group).glob(pattern))
        }
        metadata = {"name": f"{prefix}-{group}", "labels": {"app.kubernetes.io/name": "horologe"}}
        secrets.append({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": files})
    return {"apiVersion": "v1", "kind": "List", "items": secrets}
