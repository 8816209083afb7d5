"""Why a request was refused, late or slow, and what would have saved it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from horologe_sim.explaining.lateness import find_deviations, find_lateness, is_one_clock, outlasts_answer
from horologe_sim.explaining.remedies import find_remedies
from horologe_sim.explaining.surroundings import count, describe_ahead, describe_failure, describe_needs, format_ns

if TYPE_CHECKING:
    from horologe_sim.explaining.request_history import Attempt, RequestHistory, SubmitHistory

NO_SUBMIT = (
    "No Submit of it was recorded: it was answered from the cache, joined an equal request, belongs to a pipeline "
    "whose selector was not recorded, or the recording of the controller begins later."
)
NO_STAGE = (
    "It is a query of a pipeline, and no Submit of a stage was recorded: none was submitted, or the recording of the "
    "controller begins later."
)
EXECUTED = ("OK", "FAILED")
"""Status of actions that have run the model."""


class Part(msgspec.Struct, frozen=True):
    """A part of the request's time."""

    name: str
    took_ns: int


class Explanation(msgspec.Struct, frozen=True):
    """The explanation of one request."""

    verdict: str
    parts: list[Part]
    ahead: list[str]
    """The work that was ahead of the request, and what it waited for."""
    remedies: list[str]
    """Changes that each would have saved it, by the durations that were predicted then."""


def explain(request: RequestHistory) -> Explanation:
    """Return the explanation of a request in a recording."""
    submit = find_decisive(request)
    attempt = find_answer(submit) if submit else None
    ahead = describe_calls(request, submit)
    if submit:
        ahead += [*describe_ahead(submit, attempt), *describe_needs(request, submit)]
    return Explanation(
        describe_end(request, submit, attempt),
        split_time(request, submit, attempt),
        ahead,
        find_remedies(request, submit, attempt),
    )


def find_decisive(request: RequestHistory) -> SubmitHistory | None:
    """Return the Submit that explains the request: the last to end, of those that ended as the request if any did."""
    alike = [submit for submit in request.submits if request.status != "LATE" and ended_alike(request, submit)]
    return max(alike or request.submits, key=end_of, default=None)


def ended_alike(request: RequestHistory, submit: SubmitHistory) -> bool:
    """Return whether the Submit, or an action of it, failed with the status of the request."""
    statuses = submit.status, *[attempt.status for attempt in submit.attempts]
    return request.status not in ("", "OK") and request.status in statuses


def find_answer(submit: SubmitHistory) -> Attempt | None:
    """Return the action that answered the request: the first that ran the model to its end. Without one, the last.

    A request whose action hangs is sent again. The first action may fail or end nevertheless, and answer it.
    """
    executed = [attempt for attempt in submit.attempts if attempt.status in EXECUTED]
    return min(executed, key=lambda attempt: attempt.end_ns, default=submit.attempts[-1] if submit.attempts else None)


def end_of(submit: SubmitHistory) -> int:
    """Return when the Submit ended, or its arrival if that was not recorded."""
    ends = [attempt.end_ns for attempt in submit.attempts]
    return max(submit.ended_ns, submit.arrived_ns, *ends)


def describe_calls(request: RequestHistory, submit: SubmitHistory | None) -> list[str]:
    """Return sentences on the Submits of a request that has none or several, and on the one that is explained."""
    number = len(request.submits)
    if submit is None:
        missing = NO_STAGE if request.is_pipeline else NO_SUBMIT
        return [missing] if request.request_id else []
    ended = f"ended as {request.status}" if ended_alike(request, submit) else "was the last to end"
    if submit.stage:
        stages = list(dict.fromkeys(each.stage for each in request.submits))
        explained = f"request {submit.request_id} for {submit.model}, explained here"
        return [
            f"It called {count(len(stages), 'stage')}: {', '.join(stages)}. Stage {submit.stage} {ended}: {explained}."
        ]
    if number == 1:
        return []
    if submit.step:
        return [f"It ran {number} steps. The last to end was step {submit.step} of {submit.model}."]
    return [f"It called {number} models. {submit.model} {ended}."]


def describe_end(request: RequestHistory, submit: SubmitHistory | None, attempt: Attempt | None) -> str:
    """Return one sentence on how the request ended."""
    name = f"the request for {request.model}"
    if not request.status:
        return f"{name} was not answered before the end of the recording"
    took = format_ns(request.answered_ns - request.arrived_ns)
    reason = (submit.reason if submit and submit.status and not submit.stage else "") or request.reason
    if request.status == "OK":
        if request.best_effort:
            return f"{name} was answered after {took}; it had no deadline"
        return f"{name} was answered after {took}, {format_ns(request.deadline_ns - request.answered_ns)} in time"
    end = f"{name} ended as {request.status} after {took}"
    if submit and attempt and (failure := describe_failure(submit.model, attempt)):
        known = not reason or reason in failure or (attempt.reason and attempt.reason in reason)
        return f"{end}: {failure}" if known else f"{end}: {failure} ({reason})"
    is_executed = request.status == "LATE" and attempt is not None and attempt.status == "OK"
    if is_executed and submit and attempt and (not submit.stage or outlasts_answer(request, submit, attempt)):
        largest = find_deviations(request, submit, attempt)[0]
        cause = largest.sentence.format(format_ns(largest.deviation_ns)) if largest.deviation_ns > 0 else "as planned"
        return f"{end}, {describe_lateness(request, submit, attempt)}: {cause}"
    return f"{end}: {reason}" if reason else end


def describe_lateness(request: RequestHistory, submit: SubmitHistory, attempt: Attempt) -> str:
    """Return when the execution or the answer ended, against the deadline."""
    late = f"{format_ns(find_lateness(request, submit, attempt))} after"
    if outlasts_answer(request, submit, attempt):
        return f"without outputs; its execution ended {late} the latest end that was planned"
    end_ns = attempt.end_ns - request.deadline_ns
    if is_one_clock(request, submit) and end_ns > 0:
        return f"{late} its deadline; its execution ended {format_ns(end_ns)} after it"
    return f"{late} its deadline"


def split_time(request: RequestHistory, submit: SubmitHistory | None, attempt: Attempt | None) -> list[Part]:
    """Return the parts of the time between arrival and answer, in their order. Negative ones are left out.

    They occur if frontend and controller have different clocks.
    """
    times = [("", request.arrived_ns)]
    if submit:
        way = (
            f"until its stage {submit.stage} reached the controller"
            if submit.stage
            else "from the frontend to the controller"
        )
        times.append((way, submit.arrived_ns))
        if (load := submit.load) and load.begin_ns and load.end_ns > submit.arrived_ns:
            times.append(("in the controller's queue, before its LOAD", max(load.begin_ns, submit.arrived_ns)))
            times.append(("loading its model", load.end_ns))
        if attempt is None and submit.ended_ns:
            times.append(("in the controller's queue", submit.ended_ns))
    if attempt:
        failed = submit.attempts.index(attempt) if submit else 0
        again = f" and in {failed} earlier actions" if failed else ""
        times.append((f"in the controller's queue{again}", attempt.sent_ns))
        if not attempt.end_ns and attempt.failed_ns:
            lost = attempt.hung_model or attempt.worker
            times.append((f"until {lost} was lost or hung", attempt.failed_ns))
        elif attempt.status == "TOO_LATE":
            times.append(("at the worker, until its window had passed", attempt.end_ns))
        elif attempt.end_ns and attempt.status not in EXECUTED:
            times.append(("at the worker, until it ended its action without running it", attempt.end_ns))
        elif attempt.begin_ns:
            times.append(("at the worker, before its batch began", attempt.begin_ns))
            times.append(("executing", attempt.end_ns))
    if request.answered_ns and submit and attempt and attempt.end_ns and outlasts_answer(request, submit, attempt):
        if is_one_clock(request, submit):
            times = [(name, min(at_ns, request.answered_ns)) for name, at_ns in times]
    elif request.answered_ns:
        back = "after that stage, and back to the client" if submit and submit.stage else "back to the client"
        times.append((back, request.answered_ns))
    pairs = pairwise(times)
    return [Part(name, at_ns - before_ns) for (_, before_ns), (name, at_ns) in pairs if at_ns >= before_ns]
