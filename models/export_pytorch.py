"""Write small PyTorch models as torch.export programs, for tests and as an example.

    python models/export_pytorch.py --out /tmp/models            # all models
    python models/export_pytorch.py --out /tmp/models convnet

Needs the extra `torch`. Weights are random with a fixed seed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_ROWS = 16


class Echo(torch.nn.Module):
    """Echo: `y` = `x` [rows, 4], multiplied by a weight of ones."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": x * self.scale}


class ConvNet(torch.nn.Module):
    """ConvNet: image [rows, 3, 16, 16] -> scores [rows, 10], with convolution, batch norm and tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(16)
        self.mix = torch.nn.Linear(16, 16)
        self.tied = torch.nn.Linear(16, 16)
        self.tied.weight = self.mix.weight
        self.head = torch.nn.Linear(16, 10)

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        features = torch.relu(self.norm(self.conv(image))).mean((2, 3))
        return {"scores": self.head(torch.relu(self.tied(torch.relu(self.mix(features)))))}


class Wide(torch.nn.Module):
    """Wide: `x` [rows, 64] -> `y` [rows, 1] through one matrix of 20 MiB, a tensor larger than a page."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Linear(64, 80 << 10, bias=False)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": self.wide(x).mean(1, keepdim=True)}


MODELS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "echo": (Echo, (4,)),
    "convnet": (ConvNet, (3, 16, 16)),
    "wide": (Wide, (64,)),
}
"""Name -> module class, and the shape of one row of its input."""


def program(model: torch.nn.Module, row: tuple[int, ...], max_rows: int = MAX_ROWS) -> Any:
    """Export the model for 1 to `max_rows` rows, with an example of two rows: a size of one would become a constant."""
    example = torch.zeros(2, *row)
    rows = torch.export.Dim("rows", min=1, max=max_rows)
    return torch.export.export(model.eval(), (example,), dynamic_shapes=({0: rows},))


def export(out: Path, name: str, seed: int = 0) -> Path:
    """Write `<out>/<name>/1/model.pt2`; returns the version's folder."""
    build, row = MODELS[name]
    torch.manual_seed(seed)
    folder = out / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    torch.export.save(program(build(), row), folder / "model.pt2")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description="Write small PyTorch models.")
    parser.add_argument("--out", type=Path, required=True, help="model repository to write to")
    parser.add_argument("names", nargs="*", help=f"models among {', '.join(MODELS)} (default: all)")
    arguments = parser.parse_args()
    for name in arguments.names or MODELS:
        folder = export(arguments.out, name)
        print(f"{folder}: {(folder / 'model.pt2').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
