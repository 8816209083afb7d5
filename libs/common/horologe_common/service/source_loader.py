"""Import of a user's Python file from its source."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import CodeType


class SourceLoader(SourceFileLoader):
    """Compiles a module from its source. A `__pycache__` may be of an earlier source with the same size and time."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the module. Raises SyntaxError and OSError."""
        return self.source_to_code(self.get_data(self.path), self.path)
