"""The text encoder of `examples/`: exported from transformers, served in padded batches, equal to PyTorch."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import numpy as np
import pytest

from harness.running_up import Up
from harness.scripts import load_script
from horologe import Client

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")
pytest.importorskip("transformers", reason="transformers is not installed (pip install transformers onnxscript)")

EXAMPLE = "examples/text-encoder"


@pytest.mark.filterwarnings("ignore")  # of the exporter
def test_texts_of_different_lengths_share_batches_and_have_the_vectors_of_pytorch(tmp_path: Path) -> None:
    export, encode = load_script(f"{EXAMPLE}/export.py", "export"), load_script(f"{EXAMPLE}/encode.py", "encode")
    encoder, tokenizer = export.export("--random", tmp_path / "models" / "text-encoder")
    texts = [" ".join(export.TEXTS[number % 3].split()[: 1 + number % 7]) for number in range(40)]
    up = Up(tmp_path, "--no-tuner", "--no-profiler")
    with Client(up.ready["clients"][0]) as client:
        vectors = np.stack(encode.encode(client, tokenizer, texts, slo_ms=20_000))
    assert up.stop(signal.SIGTERM) == 0
    with torch.no_grad():
        wanted = [
            encoder(torch.tensor([text.ids]), torch.tensor([text.attention_mask]))[0].numpy()
            for text in tokenizer.encode_batch(texts)
        ]
    np.testing.assert_allclose(vectors, np.stack(wanted), atol=1e-5)
