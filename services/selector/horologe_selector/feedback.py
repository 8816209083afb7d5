from __future__ import annotations

from typing import Any


class Feedbacks:
    def __init__(self, *args: Any) -> None: ...
    def take(self) -> list[Any]:
        return []

    def take_wanted(self) -> list[Any]:
        return []

    def take_in(self, now_ns: int, frontend: str, message: Any) -> None: ...
    def joined(self, *args: Any) -> None: ...
    def remember(self, *args: Any) -> None: ...
    def tick(self, now_ns: int) -> None: ...
    def wakeup_ns(self) -> int | None:
        return None
