"""The open requests, by the controller's number and by that of whoever submitted them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_controller.core.requests.request import Request

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from horologe_common.models import ModelSpec
    from horologe_common.wire import Submit


class Book:
    """Every request from its Submit to its one end."""

    def __init__(self) -> None:
        self._open: dict[int, Request] = {}
        self._by_submit: dict[tuple[str, int], Request] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._open.values())

    def enter(self, sender: str, submit: Submit, spec: ModelSpec, arrival_ns: int, deadline_ns: int) -> Request:
        self._last_id += 1
        request = Request(
            self._last_id,
            sender,
            submit.id,
            spec,
            submit.model,
            submit.rows,
            submit.holder,
            submit.input_id,
            arrival_ns,
            deadline_ns,
            submit.best_effort,
            submit.shape_key,
            submit.length,
            submit.application,
            submit.solo,
        )
        if submit.solo:
            request.shape_key = -request.id  # nothing is like it: no batch has others in it
        self._open[request.id] = self._by_submit[sender, submit.id] = request
        return request

    def leave(self, request: Request) -> None:
        del self._open[request.id]
        del self._by_submit[request.submitter, request.submit_id]

    def find(self, submitter: str, submit_id: int) -> Request | None:
        return self._by_submit.get((submitter, submit_id))

    def of(self, submitter: str) -> list[int]:
        """The submitter's own numbers of its requests."""
        return [submit_id for one, submit_id in self._by_submit if one == submitter]

    def queued(self, models: Mapping[str, bool]) -> list[Request]:
        """Requests for these models that wait in a queue."""
        return [request for request in self._open.values() if request.queued and request.model in models]

    def check(self, placed: Sequence[Request], queued: int) -> None:
        """Every open request is queued or in exactly one pending action."""
        assert len(placed) == len({request.id for request in placed})
        assert all(request.id in self._open for request in placed)
        assert len(self._open) == len(self._by_submit) == len(placed) + queued
