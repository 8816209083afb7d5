from __future__ import annotations

from typing import Any


class Contexts:
    def __init__(self, settings: Any) -> None:
        self.states: dict[Any, Any] = {}

    def get(self, now_ns: int, running: Any, context: str) -> Any:
        return self.states.setdefault((running.application.name, context), running.policy.init())

    def ready(self) -> list[tuple[str, str]]:
        return []

    def take(self) -> list[Any]:
        return []

    def tick(self, now_ns: int) -> None: ...
    def wakeup_ns(self) -> int | None:
        return None

    def handle(self, now_ns: int, message: Any) -> None: ...
    def forget(self, name: str) -> None: ...
    def count(self, name: str) -> int:
        return 0

    def check(self) -> None: ...
