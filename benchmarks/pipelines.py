"""Accuracy and device time of the demo's pipelines, beside those of the models that they call.

    python benchmarks/pipelines.py

The 450 held-out digits are sent one by one, so that each is a batch of its own.
"""

from __future__ import annotations

import struct
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from horologe import Client
from horologe_cli.demo.digits import held_out
from horologe_experiments.live.local_services import local_services
from horologe_sim.report.tables import Table

if TYPE_CHECKING:
    from numpy.typing import NDArray

MODELS = Path(__file__).parents[1] / "models"
NAMES = ("digits-linear", "digits-cnn", "cascade", "read-png")
SLO_MS = 20_000.0
READY_S = 60.0
SCALE = 4
"""Pixels of a PNG file per pixel of an image, in each dimension."""


class Measured(NamedTuple):
    """Result of one model or pipeline. `exec_ms`: device time per image."""

    accuracy: float
    exec_ms: float
    calls: dict[str, float]
    """Calls per query of a pipeline, by model."""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, local_services(MODELS, [f"worker.cache={folder}"]) as system:
        system.wait_ready(READY_S)
        with Client(system.topology.clients[0]) as client:
            measured = measure(client)
    table = Table(("served", "accuracy", "device time per image", "calls per query"), left=1)
    for name, one in measured.items():
        calls = ", ".join(f"{model} {share:.2f}" for model, share in one.calls.items())
        table.add_row(name, f"{one.accuracy:.1%}", f"{one.exec_ms:.2f} ms", calls or "-")
    print(table.text())


def measure(client: Client) -> dict[str, Measured]:
    """Send all images to each of `NAMES`, one after the other."""
    images, digits = held_out()
    measured = {}
    for name in NAMES:
        replies = []
        for image in images:
            inputs = {"file": np.array([png(image)], object)} if name == "read-png" else {"image": image[None]}
            replies.append(client.submit(name, inputs, slo_ms=SLO_MS).result())
        predicted = [int(reply.outputs["probabilities"].argmax()) for reply in replies]
        exec_ms = float(np.mean([reply.exec_ns for reply in replies])) / 1e6
        measured[name] = Measured(float(np.mean(np.array(predicted) == digits)), exec_ms, calls_per_query(client, name))
    return measured


def calls_per_query(client: Client, name: str) -> dict[str, float]:
    """Return the calls of a pipeline per query, by stage; none for a model."""
    if client.models(name)[0].spec.runtime != "pipeline":
        return {}
    structure = client.pipeline(name).structure
    return {stage.name: structure.scale_factor(stage.name) for stage in structure.stages} if structure else {}


def png(image: NDArray[Any]) -> bytes:
    """Return a PNG file of grey pixels of an 8x8 image with values from 0 to 16, enlarged."""
    grey = np.kron(image.reshape(8, 8), np.ones((SCALE, SCALE))) * 255 / 16
    rows = b"".join(b"\0" + row.tobytes() for row in grey.round().astype(np.uint8))
    side = 8 * SCALE
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


if __name__ == "__main__":
    main()
