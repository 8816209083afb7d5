"""Open models that are not loaded, in host memory: LOAD makes such a model resident without opening it."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_common.models import ModelSpec

Kept = TypeVar("Kept")


class KeptModels(Generic[Kept]):
    """Open models by key, with sizes. Those that were kept first are closed first. Used by all lanes.

    Only models of the content that was opened last are kept. Invariant: `held` is the sum of all sizes and at most
    `limit`.
    """

    def __init__(self, limit: int, close: Callable[[Kept], object]) -> None:
        self.limit = limit
        self.held = 0
        self._close = close
        self._models: dict[str, list[tuple[Kept, int]]] = {}
        self._contents: dict[str, tuple[object, ...]] = {}
        """Model key -> content that was opened last."""
        self._lock = Lock()

    def __contains__(self, spec: ModelSpec) -> bool:
        return spec.key in self._models and self._contents[spec.key] == _content(spec)

    def set_content(self, spec: ModelSpec) -> None:
        """Record that this content of the model was opened, and close the models of the content before."""
        closed = []
        with self._lock:
            while self._contents.get(spec.key) != _content(spec) and spec.key in self._models:
                closed.append(self._pop(spec.key))
            self._contents[spec.key] = _content(spec)
        self._close_all(closed)

    def take(self, spec: ModelSpec) -> Kept | None:
        """Remove and return a model of this content; None if there is none."""
        with self._lock:
            return self._pop(spec.key) if spec in self else None

    def keep(self, spec: ModelSpec, model: Kept, size: int) -> None:
        """Add a model, and close others if the limit is exceeded. Close it if it is too large or of another content."""
        closed = []
        with self._lock:
            if not spec.content_hash or size > self.limit or self._contents.get(spec.key) != _content(spec):
                closed.append(model)
            else:
                while self.held + size > self.limit:
                    closed.append(self._pop(next(iter(self._models))))
                # at the end: closed last
                self._models[spec.key] = [*self._models.pop(spec.key, []), (model, size)]
                self.held += size
        self._close_all(closed)

    def close(self) -> None:
        """Close all models."""
        with self._lock:
            closed = [self._pop(key) for key, models in list(self._models.items()) for _ in list(models)]
        self._close_all(closed)

    def check(self) -> None:
        assert self.held == sum(size for models in self._models.values() for _, size in models) <= self.limit
        assert all(self._models.values())

    def _pop(self, key: str) -> Kept:
        model, size = self._models[key].pop()
        self.held -= size
        if not self._models[key]:
            del self._models[key]
        return model

    def _close_all(self, models: list[Kept]) -> None:
        for model in models:
            self._close(model)


def _content(spec: ModelSpec) -> tuple[object, ...]:
    """Return what a kept model depends on: it may also have been opened with batches, and later without."""
    return spec.content_hash, spec.batched, spec.batch_sizes
