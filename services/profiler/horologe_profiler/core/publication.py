"""What has been learned and not been told yet: of each model to the controller, all of it to the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable


class News:
    """Told every `every_ns` at most. `audience`: the models that somebody wants to hear of now."""

    def __init__(self, every_ns: int) -> None:
        self._every_ns = every_ns
        self._models: dict[str, bool] = {}
        self._unsaved = False
        self._next_ns = 0

    def learned(self, model: str) -> None:
        self._models[model] = self._unsaved = True

    def again(self, models: Iterable[str]) -> None:
        """Someone new, who knows nothing, is to be told of these at once."""
        self._models |= dict.fromkeys(models, True)
        self._next_ns = 0

    def due_ns(self, audience: Container[str]) -> int | None:
        """When something is to be told; None: nothing is new."""
        return self._next_ns if self._unsaved or any(model in audience for model in self._models) else None

    def take(self, now_ns: int, audience: Container[str]) -> tuple[list[str], bool]:
        """The models to tell of, and whether to save; they are not news any more."""
        self._next_ns = now_ns + self._every_ns
        models, unsaved = [model for model in self._models if model in audience], self._unsaved
        for model in models:
            del self._models[model]
        self._unsaved = False
        return models, unsaved
