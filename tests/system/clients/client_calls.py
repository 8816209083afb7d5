"""Makes the calls of a client one after the other, in a process of its own, and reports the result of each.

The parent answers each report with a line, after it has noted which requests the call sent.
"""

from __future__ import annotations

import inspect
import json
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PASSED, REFUSED = "passed", "refused"


class Calls:
    """Makes the calls of a client, each described by its `label`. `package`: the one that contains the client."""

    def __init__(self, package: str) -> None:
        self.labels: list[str] = []
        self._send(package, version(package), "")

    async def passes(
        self, label: str, call: Callable[[], Any], is_right: Callable[[Any], object] = lambda result: True
    ) -> None:
        """Make a call that succeeds, and whose result is right."""
        try:
            result = await _result(call)
            self._report(label, PASSED if is_right(result) else f"wrong result: {result}")
        except Exception as error:
            self._report(label, f"failed: {error!r}")

    async def is_refused(self, label: str, call: Callable[[], Any]) -> None:
        """Make a call that the server does not support. Its error is reported."""
        try:
            self._report(label, f"wrong result: {await _result(call)}")
        except Exception as error:
            self._report(label, REFUSED, str(error))

    def missing(self, client: Any, *without_request: str) -> list[str]:
        """Return the methods of a client that no label names."""
        names = [name for name, _ in inspect.getmembers(client, callable) if not name.startswith("_")]
        called = " ".join(self.labels)
        return [name for name in names if name not in without_request and f"{name}(" not in called]

    def _report(self, label: str, result: str, error: str = "") -> None:
        self.labels.append(label)
        self._send(label, result, error)

    def _send(self, label: str, result: str, error: str) -> None:
        sys.stdout.write(json.dumps([label, result, error]) + "\n")
        sys.stdout.flush()
        sys.stdin.readline()


async def _result(call: Callable[[], Any]) -> Any:
    result = call()
    return await result if inspect.isawaitable(result) else result
