"""How late the answer to an executed request was, and what deviated from the plan of its action."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from horologe_sim.explaining.request_history import Attempt, RequestHistory, SubmitHistory


def is_one_clock(request: RequestHistory, submit: SubmitHistory) -> bool:
    """Return whether the times of frontend and controller can be of one clock: the Submit came within the request."""
    return request.arrived_ns <= submit.arrived_ns <= (request.answered_ns or submit.arrived_ns)


def find_passed_time(request: RequestHistory, submit: SubmitHistory) -> int:
    """Return for how long the deadline had passed when the Submit arrived, at least 0: the controller counts from 0."""
    return max(0, submit.arrived_ns - request.deadline_ns) if is_one_clock(request, submit) else 0


def find_lateness(request: RequestHistory, submit: SubmitHistory, attempt: Attempt) -> int:
    """Return by how much the deadline was missed, at least 0.

    That is the answer with the outputs. The timer of the frontend answers LATE while the execution goes on. Then it is
    the end of the execution, against the planned deadline of the Submit.
    """
    answer_ns = request.answered_ns - request.deadline_ns
    if outlasts_answer(request, submit, attempt):
        return max(0, answer_ns, attempt.end_ns - submit.deadline_ns)
    return max(0, answer_ns)


def outlasts_answer(request: RequestHistory, submit: SubmitHistory, attempt: Attempt) -> bool:
    """Return whether the execution ended after the frontend had answered without outputs."""
    waited_ns = request.answered_ns - request.deadline_ns
    if is_one_clock(request, submit):
        return attempt.end_ns > request.answered_ns
    return attempt.end_ns - submit.deadline_ns > waited_ns


class Deviation(NamedTuple):
    """A difference to the plan of the action that ran the request. Positive: later or longer than planned."""

    deviation_ns: int
    sentence: str
    remedy: str


def find_deviations(request: RequestHistory, submit: SubmitHistory, attempt: Attempt) -> list[Deviation]:
    """Return the deviations of an executed action from its plan, the largest first."""
    took_ns = attempt.end_ns - attempt.begin_ns
    is_last = not submit.stage  # what a stage reserves is for the stages after it
    comes_back = is_last and is_one_clock(request, submit) and not outlasts_answer(request, submit, attempt)
    reserved_ns = request.deadline_ns - submit.deadline_ns
    returned_ns = request.answered_ns - attempt.end_ns
    deviations = (
        Deviation(
            attempt.begin_ns - attempt.planned_begin_ns,
            "its batch began {} later than planned",
            "A batch that begins when it is planned: no other program on the worker's cores (`horologe doctor`).",
        ),
        Deviation(
            took_ns - attempt.expected_ns,
            "its batch took {} longer than predicted",
            "A batch as fast as predicted: `horologe doctor` on the worker's machine, or a new profile.",
        ),
        Deviation(
            returned_ns - reserved_ns if comes_back else 0,
            "its answer took {} longer to the client than reserved",
            "An answer as fast as usual: no stall of worker, selector or frontend (`horologe doctor`).",
        ),
    )
    return sorted(deviations, reverse=True)
