"""What the loops send to: something that takes request numbers and says what became of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.workload import Inputs, Scenario

Done: TypeAlias = "Callable[[int, int, int, object], None]"
"""`done(index, now_ns, code, answer)`: exactly once for every request that was sent and answered."""


class Target(Protocol):
    async def start(self, clients: int, done: Done) -> None: ...
    def send(self, index: int) -> None: ...
    def decode(self, answer: object) -> object: ...
    def hits(self) -> int: ...
    async def stop(self) -> None: ...


def target(url: str, dialect: str, scenario: Scenario, inputs: Inputs) -> Target:
    """HTTP for `http://` addresses, the SDK for `tcp://` and `ipc://` ones."""
    if url.startswith("http://"):
        from bench.http import HttpTarget

        return HttpTarget(url, dialect, scenario, inputs)
    from bench.sdk import SdkTarget

    return SdkTarget(url, scenario, inputs)
