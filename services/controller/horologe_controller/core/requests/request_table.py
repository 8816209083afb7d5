"""Open requests of the controller, by submitter."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from horologe_controller.core.requests.request import Request

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from horologe_common.models import ModelSpec
    from horologe_common.wire import Submit


class RequestTable:
    """Open requests, by submitter and its id of the request."""

    def __init__(self) -> None:
        self._of: dict[str, dict[int, Request]] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def __iter__(self) -> Iterator[Request]:
        """Iterate over copies: the exporter's thread counts the requests."""
        return chain.from_iterable([list(requests.values()) for requests in list(self._of.values())])

    def create_request(
        self, sender: str, submit: Submit, spec: ModelSpec, arrival_ns: int, deadline_ns: int
    ) -> Request:
        """Return a new request. The caller adds it to the open requests of the submitter."""
        self._last_id += 1
        return Request(self._last_id, sender, submit, spec, arrival_ns, deadline_ns)

    def of_submitter(self, submitter: str) -> dict[int, Request]:
        """Return the open requests of a submitter by its ids."""
        requests = self._of.get(submitter)
        return self._of.setdefault(submitter, {}) if requests is None else requests

    def remove_request(self, request: Request) -> None:
        del self._of[request.submitter][request.submit_id]

    def discard_submitter(self, submitter: str) -> None:
        """Drop the table of a submitter that has disconnected and has no open request."""
        if not self._of.get(submitter, True):
            del self._of[submitter]

    def queued_for(self, models: Mapping[str, bool]) -> list[Request]:
        """Return the queued requests for these models, in the order of arrival."""
        queued = [request for request in self if request.queued and request.model in models]
        return sorted(queued)

    def check(self, placed: Sequence[Request], queued: int) -> None:
        """Assert that every open request is queued or in exactly one pending action."""
        assert len(placed) == len({request.id for request in placed})
        open_ids = {request.id for request in self}
        assert all(request.id in open_ids for request in placed)
        assert len(self) == len(placed) + queued
