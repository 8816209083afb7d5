"""Explains requests of recordings for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.recording.recording_file import Ticked, read_segments
from horologe_common.status import Status
from horologe_common.wire import Answer
from horologe_sim.explaining.recorded_requests import find_requests
from horologe_sim.explaining.request_explanation import Explanation, explain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


EXPLAINED = 3


def answers(path: Path, status: Status) -> Iterator[tuple[str, Answer]]:
    """Yield the client and the answer of requests that ended with this status."""
    for segment in read_segments(path):
        for entry in segment.entries:
            if segment.core.startswith("frontend") and isinstance(entry, Ticked):
                for to, message, _ in entry.outs:
                    if isinstance(message, Answer) and message.status == status:
                        yield to, message


def the_request(path: Path, client: str, number: int) -> Any:
    (request,) = find_requests([path], f"{client}:{number}")
    return request


def explanations(path: Path, status: Status) -> list[tuple[Any, Explanation]]:
    """Return the last requests that ended with this status, with their explanations. No time in these is negative."""
    requests = [the_request(path, client, answer.id) for client, answer in list(answers(path, status))[-EXPLAINED:]]
    explained = [(request, explain(request)) for request in requests]
    for request, explanation in explained:
        assert " -" not in explanation.verdict
        assert all(part.took_ns >= 0 for part in explanation.parts)
        assert sum(part.took_ns for part in explanation.parts) == request.answered_ns - request.arrived_ns
    return explained
