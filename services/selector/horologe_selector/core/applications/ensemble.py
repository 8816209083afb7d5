"""One query of an application under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_selector.policy import Guess, Selection

if TYPE_CHECKING:
    from horologe_common.wire import Query
    from horologe_selector.core.applications.active_application import Running
    from horologe_selector.core.predictions.flight import Landing, Waiter


class Ensemble(msgspec.Struct, eq=False):
    """One query of an application. By model as declared: `open` fly, `values` have landed, `refused` never will."""

    id: int
    frontend: str
    query: Query
    running: Running
    arrival_ns: int
    due_ns: int
    prediction: bytes
    token: int = 0
    """Of feedback that wants the predictions; 0: a client waits for an answer."""
    selection: Selection = Selection(())
    open: dict[str, Waiter] = {}
    landings: dict[str, Landing] = {}
    values: dict[str, tuple[float, ...]] = {}
    refused: dict[str, Landing] = {}
    cache_keys: dict[str, bytes] = {}
    guesses: tuple[Guess, ...] = ()
    answered: bool = False

    def waits(self) -> bool:
        """Whether a model that was selected has not ended yet; shadows are not waited for."""
        return any(model in self.open for model in self.selection.models)
