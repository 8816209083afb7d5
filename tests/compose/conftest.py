"""A composed system. It ends with its module: an engine that leaves a swarm takes the networks of all containers."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

os.environ["TESTCONTAINERS_RYUK_DISABLED"] = "true"  # Ryuk is an image of a registry

from compose.stack import ROOT, Stack, wait_until
from harness.model_folders import SIGNATURE
from horologe import Client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TWICE_CODE = """
class Model:
    def predict_batch(self, inputs):
        return {"y": inputs["x"] * 2}
"""
TWICE_TOML = 'runtime = "python"\nbatch_sizes = [1, 2, 4]\nslo = "2s"\n' + SIGNATURE


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository with the demo's models, and a model whose answers depend on the input."""
    folder = tmp_path_factory.mktemp("models")
    shutil.copytree(ROOT / "models", folder, dirs_exist_ok=True)
    version = folder / "twice" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(TWICE_CODE)
    (version / "model.toml").write_text(TWICE_TOML)
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def stack(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Start the system, and check at the end that `down -v` leaves nothing."""
    with closing(Stack(tmp_path_factory.mktemp("compose"), repository)) as stack:
        try:
            stack.up()
            yield stack
        finally:
            stack.down()
            assert stack.leftovers() == []


@pytest.fixture(scope="module")
def keys(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the service's public key and the keys of clients and operators."""
    folder = tmp_path_factory.mktemp("keys")
    stack.copy_keys(folder)
    return folder


@pytest.fixture(scope="module")
def client(stack: Stack, keys: Path) -> Iterator[Client]:
    with Client(f"tcp://127.0.0.1:{stack.clients}", keys=keys) as client:
        wait_until("the models to be ready", 60, lambda: _all_ready(client))
        yield client


def _all_ready(client: Client) -> bool:
    models = client.models()
    return bool(models) and all(model.state == "READY" for model in models)
