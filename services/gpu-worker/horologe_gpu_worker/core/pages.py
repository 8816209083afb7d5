"""Which model's weights hold how many pages of a share (Clockwork section 5.2). Pure accounting."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class PageCache:
    """Law: free pages and the pages of resident models add up to `total`; every model holds at least one."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.free_pages = total
        self._held: dict[str, int] = {}

    def __contains__(self, model: str) -> bool:
        return model in self._held

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    @property
    def resident(self) -> tuple[str, ...]:
        """Models that hold pages, in the order in which they took them."""
        return tuple(self._held)

    def held(self, model: str) -> int:
        """Pages the model holds; 0 if it is not resident."""
        return self._held.get(model, 0)

    def allocate(self, model: str, pages: int) -> bool:
        """Give the model `pages` pages (at least 1); False, and nothing given, when fewer are free.

        A model that has its pages keeps them: asking again changes nothing.
        """
        if model in self._held:
            return True
        if pages < 1 or pages > self.free_pages:
            return False
        self._held[model] = pages
        self.free_pages -= pages
        return True

    def free(self, model: str) -> int:
        """Take the model's pages back; returns how many that were. Always succeeds."""
        pages = self._held.pop(model, 0)
        self.free_pages += pages
        return pages

    def check(self) -> None:
        assert self.free_pages + sum(self._held.values()) == self.total
        assert self.free_pages >= 0
        assert all(pages >= 1 for pages in self._held.values())
