"""The models of `examples/` on real processes. Crashes and hangs of one model do not affect others."""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from harness.model_folders import ECHO, a_python_model
from horologe import AsyncClient, Client
from horologe_cli.demo.digits import held_out
from horologe_common.status import HorologeError, ModelFailed
from horologe_experiments.live.local_services import local_services

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = Path(__file__).parents[3] / "examples"
NEEDS = {"scikit-learn": "sklearn", "torch": "torch", "function": "numpy"}
"""Example -> the module it needs."""
LINES = 25
READY_S = 50
COMMANDED = """
import ctypes, os

class Model:
    def predict_batch(self, inputs):
        command = inputs["x"][0, 0]
        if command == 1:
            os._exit(7)
        if command == 2:
            ctypes.string_at(0)
        while command == 3:
            pass
        return {"y": inputs["x"]}
"""
FINE, EXIT, SEGFAULT, HANG = 0, 1, 2, 3
PATIENCE_MS = 20_000
"""Longer than a LOAD, which trains the model, and than the `timeout` of a hanging batch."""


@contextmanager
def running_services(folder: Path) -> Iterator[str]:
    """Start the services on `folder`/models. Yield the client endpoint."""
    with local_services(folder / "models", [f"worker.cache={folder / 'cache'}"]) as system:
        system.wait_ready(READY_S)
        yield system.topology.clients[0]


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Serve the examples whose packages are installed."""
    folder = tmp_path_factory.mktemp("examples")
    for name, module in NEEDS.items():
        if find_spec(module):
            shutil.copytree(EXAMPLES / name, folder / "models" / name)
    with running_services(folder) as endpoint, Client(endpoint) as client:
        yield client


def test_every_example_is_tested_and_short() -> None:
    models = {path.name for path in EXAMPLES.iterdir() if (path / "1").is_dir()}
    assert set(NEEDS) == models
    assert {path.name for path in EXAMPLES.iterdir()} - models == {"planning", "sharing"}, "in test_planned_examples.py"
    for name in NEEDS:
        assert len((EXAMPLES / name / "1" / "model.py").read_text().splitlines()) <= LINES


def test_the_scikit_learn_classifier_reads_digits_it_has_not_seen(examples: Client) -> None:
    images, digits = held_out()
    found = [examples.predict("scikit-learn", images[at : at + 16], slo_ms=PATIENCE_MS) for at in range(0, 448, 16)]
    assert np.mean(np.concatenate(found).argmax(axis=1) == digits[:448]) > 0.95


def test_the_torch_module_knows_distances(examples: Client) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")
    points = np.array([[0.3, 0.4], [-0.6, 0.8], [0, -0.5]], np.float32)
    found = examples.predict("torch", points, slo_ms=PATIENCE_MS)
    np.testing.assert_allclose(found[:, 0], [0.5, 1, 0.5], atol=0.05)


def test_the_function_counts_words(examples: Client) -> None:
    texts = np.array([[b"to be or not to be"], [b""], ["größer als".encode()]], object)
    assert examples.predict("function", texts, slo_ms=PATIENCE_MS)[:, 0].tolist() == [6, 0, 2]


@pytest.fixture(scope="module")
def crash_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a model that crashes on command and a good model on one worker. Yield the client endpoint."""
    folder = tmp_path_factory.mktemp("crash")
    a_python_model(folder / "models", COMMANDED, name="commanded", timeout='"500ms"')
    a_python_model(folder / "models", ECHO, name="good")
    with running_services(folder) as endpoint:
        yield endpoint


@pytest.mark.parametrize(
    ("command", "message"),
    [(EXIT, r"exit code 7"), (SEGFAULT, "SIGSEGV"), (HANG, r"no answer within 0\.5 s")],
    ids=["exit", "segfault", "endless-loop"],
)
def test_a_crash_of_a_model_does_not_affect_others(crash_endpoint: str, command: int, message: str) -> None:
    async def ask(client: AsyncClient, model: str, value: int) -> None:
        x = np.full((1, 4), value, np.float32)
        np.testing.assert_array_equal(await client.predict(model, x, slo_ms=PATIENCE_MS), x)

    async def scenario() -> None:
        async with AsyncClient(crash_endpoint) as client:
            await ask(client, "commanded", FINE)
            bad = asyncio.ensure_future(ask(client, "commanded", command))
            others = []
            for number in range(100):  # before, during and after: none of them may fail
                others.append(asyncio.ensure_future(ask(client, "good", number)))
                await asyncio.sleep(0.01)
            with pytest.raises(ModelFailed, match=message):
                await bad
            await asyncio.gather(*others)
            await wait_for_restart(client)

    async def wait_for_restart(client: AsyncClient) -> None:
        end = time.monotonic() + 20
        while True:
            try:
                return await ask(client, "commanded", FINE)
            except HorologeError:
                assert time.monotonic() < end
                await asyncio.sleep(0.05)

    asyncio.run(scenario())
