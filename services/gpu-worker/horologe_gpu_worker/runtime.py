"""The interface of whatever computes: a runtime opens models, an opened model runs batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from horologe_common.models import ModelSpec


class OpenModel(Protocol):
    """A model in memory. Used by one lane at a time."""

    def run(self, batch_size: int, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Run one batch of exactly `batch_size` rows (a compiled size).

        Raises `ModelFailed` with the model's own message.
        """

    def close(self) -> None:
        """Free what the model holds."""


class Runtime(Protocol):
    """Opens models of one kind. `inline_io`: INPUT and OUTPUT need no lane of their own (host memory)."""

    inline_io: bool

    def inspect(self, folder: Path) -> ModelSpec:
        """The signature of `<repository>/<name>/<version>` with its `model.toml`.

        Raises `InvalidModel` naming file, field, got and wanted.
        """

    def open(self, spec: ModelSpec, folder: Path) -> OpenModel:
        """Read the model into memory and warm every batch size. Blocking; runs on the LOAD lane."""
