"""Networks of common architectures with random weights: only their execution times matter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_ROWS = 16
ROWS = torch.export.Dim("rows", min=1, max=MAX_ROWS)


class Bottleneck(nn.Module):
    """ResNet's bottleneck block of 1x1, 3x3 and 1x1 convolutions (He et al. 2016, version 1.5: the 3x3 one has the
    stride).
    """

    def __init__(self, inside: int, width: int, outside: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inside, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, outside, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.layers(x) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet: image [rows, 3, side, side] -> scores [rows, classes]. (3, 4, 6, 3) blocks of width 64 are ResNet-50."""

    def __init__(self, blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        layers: list[nn.Module] = []
        inside = width
        for stage, count in enumerate(blocks):
            for block in range(count):
                outside = width << stage + 2
                layers.append(Bottleneck(inside, width << stage, outside, 2 if stage and not block else 1))
                inside = outside
        self.layers = nn.Sequential(nn.MaxPool2d(3, 2, 1), *layers)
        self.head = nn.Linear(inside, classes)

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scores": self.head(self.layers(self.stem(image)).mean((2, 3)))}


class Block(nn.Module):
    """Transformer block: attention over all positions, then two dense layers (Vaswani et al. 2017, normalised as in
    BERT).
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.mix(x).reshape(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], mask)
        x = self.norms[0](x + self.out(seen.transpose(1, 2).reshape(rows, length, width)))
        return self.norms[1](x + self.narrow(F.gelu(self.widen(x))))


class Transformer(nn.Module):
    """Transformer: words [rows, length] (INT64) -> scores [rows, 2]. 12 blocks of 768 with 12 heads over 128 words are
    BERT-base.
    """

    def __init__(self, length: int = 128, width: int = 768, blocks: int = 12, heads: int = 12, words: int = 30522):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(length, width))
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(blocks)])
        self.head = nn.Linear(width, 2)

    def forward(self, words: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scores": self.scores(words, None)}

    def scores(self, words: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        x = self.words(words) + self.places[: words.shape[1]]
        for block in self.blocks:
            x = block(x, mask)
        scores: torch.Tensor = self.head(x[:, 0])
        return scores


class AnyLength(Transformer):
    """Transformer over up to `length` words. Word 0 is padding, which no word attends to."""

    def forward(self, words: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scores": self.scores(words, (words != 0)[:, None, None, :])}


def _convolutions(plan: tuple[tuple[int, int, int, bool], ...], inside: int = 3) -> list[nn.Module]:
    """Return convolutions of (width, kernel, stride, followed by a maximum over 2x2), each with ReLU."""
    layers: list[nn.Module] = []
    for width, kernel, stride, pooled in plan:
        layers += [nn.Conv2d(inside, width, kernel, stride, kernel // 2), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if pooled else []
        inside = width
    return layers


class Plain(nn.Module):
    """Convolutions, then three dense layers: AlexNet (Krizhevsky et al. 2012) and VGG-19 (Simonyan et al. 2014)."""

    def __init__(self, plan: tuple[tuple[int, int, int, bool], ...], side: int) -> None:
        super().__init__()
        width = plan[-1][0] * side * side
        dense = [nn.Linear(width, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)]
        self.layers = nn.Sequential(*_convolutions(plan), nn.AdaptiveAvgPool2d(side), nn.Flatten(), *dense)

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scores": self.layers(image)}


ALEXNET = ((64, 11, 4, True), (192, 5, 1, True), (384, 3, 1, False), (256, 3, 1, False), (256, 3, 1, True))
VGG19 = tuple(
    (width, 3, 1, number == count) for width, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
    for number in range(1, count + 1)
)  # fmt: skip


class Net(NamedTuple):
    """Builds a network, and an input of `rows` rows for it."""

    build: Callable[[], nn.Module]
    example: Callable[[int], torch.Tensor]


NETS = {
    "resnet50": Net(ResNet, lambda rows: torch.randn(rows, 3, 224, 224)),
    "transformer": Net(Transformer, lambda rows: torch.randint(0, 30522, (rows, 128))),
}
SHARED_NETS = {
    **NETS,
    "alexnet": Net(lambda: Plain(ALEXNET, 6), lambda rows: torch.randn(rows, 3, 224, 224)),
    "vgg19": Net(lambda: Plain(VGG19, 7), lambda rows: torch.randn(rows, 3, 224, 224)),
}
"""Networks of `sharing.py`. Three of iGniter's four are among them."""
TINY = {
    "resnet50": Net(lambda: ResNet((1, 1), 8, 10), lambda rows: torch.randn(rows, 3, 32, 32)),
    "transformer": Net(lambda: Transformer(8, 16, 1, 2, 100), lambda rows: torch.randint(0, 100, (rows, 8))),
}
"""Tiny networks of the same code, for --cpu."""


def exported(net: Net, half: bool) -> Any:
    """Export the network as a torch.export program for 1 to 16 rows; with `half`, in FP16."""
    torch.manual_seed(0)
    model = net.build().eval()
    example = net.example(2)
    if half:
        model, example = model.half(), example.half() if example.is_floating_point() else example
    return torch.export.export(model, (example,), dynamic_shapes=({0: ROWS},))


def exported_lengths(length: int, **sizes: int) -> Any:
    """Export a transformer for 1 to 16 rows of 2 to `length` words."""
    torch.manual_seed(0)
    words = torch.export.Dim("words", min=2, max=length)
    example = torch.ones(2, length // 2, dtype=torch.int64)
    return torch.export.export(AnyLength(length, **sizes).eval(), (example,), dynamic_shapes=({0: ROWS, 1: words},))
