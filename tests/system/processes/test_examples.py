"""The models of `examples/` on real processes."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from harness.running_services import RunningServices
from horologe import Client
from horologe_cli.demo.digits import held_out

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = Path(__file__).parents[3] / "examples"
NEEDS = {"scikit-learn": "sklearn", "torch": "torch", "function": "numpy", "text": "numpy"}
"""Example -> the module it needs."""
LINES = 25
PATIENCE_MS = 20_000
"""Longer than a LOAD, which trains the model."""


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Serve the examples whose packages are installed."""
    folder = tmp_path_factory.mktemp("examples")
    for name, module in NEEDS.items():
        if find_spec(module):
            shutil.copytree(EXAMPLES / name, folder / "models" / name)
    with RunningServices(folder, "selector.store=memory") as system, Client(system.endpoint) as client:
        yield client


def test_every_example_is_tested_and_short() -> None:
    models = {path.name for path in EXAMPLES.iterdir() if (path / "1").is_dir()}
    assert set(NEEDS) == models
    others = {"planning", "sharing", "notebooks", "text-encoder"}  # in tests of their own
    assert {path.name for path in EXAMPLES.iterdir()} - models == others
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


def test_the_text_is_generated_token_by_token(examples: Client) -> None:
    inputs = {"text_input": ["The statement "], "max_tokens": [40], "seed": [1]}
    texts = [
        b"".join(item["text_output"][0] for item in examples.stream("text", inputs, first_item_ms=PATIENCE_MS))
        for _ in range(2)
    ]
    assert len(texts[0].decode()) == 40
    assert texts[0] == texts[1]
