"""The models' signatures as far as the client knows them, and the requests that wait to know one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from horologe.core.signature import Signature, choose
from horologe_common.status import HorologeError, Lost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe.core.call import Call
    from horologe_common.wire import ModelInfo, ModelState

Signatures = dict[tuple[str, str, str], Signature]
"""By model and wanted version ("" where the caller named none), or by application."""
Parked = list[tuple["Call", Any]]


class Catalogue:
    """Known signatures, and requests parked by model or application until the server has told theirs."""

    def __init__(self, known: Signatures) -> None:
        self.known = known
        self._parked: dict[tuple[str, str], Parked] = {}

    def park(self, call: Call, inputs: Any) -> bool:
        """Hold a request; True if it is the first of its kind. Arrays are copied: they stay the caller's."""
        model, _, application = call.subject
        waiting = self._parked.setdefault((model, application), [])
        waiting.append((call, _copied(inputs)))
        return len(waiting) == 1

    def waiting(self, question: ModelInfo) -> Parked:
        """The requests parked for the answer to this question, which are so no longer."""
        return self._parked.pop((question.model, question.application), [])

    def learn(self, call: Call, states: Sequence[ModelState]) -> Signature:
        """The signature for this request, remembered. Raises `UnknownModel`."""
        model, version, application = call.subject
        signature = self.known[call.subject] = choose(states, model or application, version)
        return signature

    def forget(self, call: Call) -> None:
        """The server disagreed with this request: ask again before the next one."""
        self.known.pop(call.subject, None)


class Fetch:
    """Sink of the question for a signature; asks again as long as requests wait for it."""

    def __init__(
        self, question: ModelInfo, settle: Callable[[ModelInfo, Sequence[ModelState] | HorologeError], None]
    ) -> None:
        self.question = question
        self._settle = settle

    def done(self) -> bool:
        return False

    def set_result(self, result: Any, /) -> None:
        self._settle(self.question, result)

    def set_exception(self, exception: BaseException, /) -> None:
        self._settle(self.question, exception if isinstance(exception, HorologeError) else Lost(str(exception)))


def _copied(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return {name: _copied(value) for name, value in inputs.items()}
    return inputs.copy() if isinstance(inputs, np.ndarray) else inputs
