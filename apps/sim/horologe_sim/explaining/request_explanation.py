"""Why a request was refused, late or slow, and what would have saved it."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from horologe_controller.core.scheduling.decisions import Reason

if TYPE_CHECKING:
    from horologe_sim.explaining.request_history import Attempt, LoadHistory, RequestHistory, SubmitHistory, Work

NAMED_MODELS = 5
"""Models of the work ahead that the text names."""


NO_SUBMIT = (
    "No Submit of it was recorded: it was answered from the cache, joined an equal request, belongs to a pipeline, or "
    "the recording of the controller begins later."
)


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
    submit = max(request.submits, key=end_of, default=None)
    attempt = submit.attempts[-1] if submit and submit.attempts else None
    parts = split_time(request, submit, attempt)
    ahead = describe_ahead(submit, attempt) if submit else []
    if submit and len(request.submits) > 1:
        did = f"It ran {len(request.submits)} steps" if submit.step else f"It called {len(request.submits)} models"
        ahead.insert(0, f"{did}. The last to end was {f'step {submit.step} of ' * bool(submit.step)}{submit.model}.")
    if not submit and request.request_id:
        ahead.append(NO_SUBMIT)
    return Explanation(describe_end(request, submit, attempt), parts, ahead, find_remedies(request, submit, attempt))


def end_of(submit: SubmitHistory) -> int:
    """Return when the Submit ended, or its arrival if that was not recorded."""
    ends = [attempt.end_ns for attempt in submit.attempts]
    return max(submit.ended_ns, submit.arrived_ns, *ends)


def describe_end(request: RequestHistory, submit: SubmitHistory | None, attempt: Attempt | None) -> str:
    """Return one sentence on how the request ended."""
    name = f"the request for {request.model}"
    if not request.status:
        return f"{name} was not answered before the end of the recording"
    took = format_ns(request.answered_ns - request.arrived_ns)
    reason = (submit.reason if submit and submit.status else "") or request.reason
    if request.status == "OK":
        if request.best_effort:
            return f"{name} was answered after {took}; it had no deadline"
        return f"{name} was answered after {took}, {format_ns(request.deadline_ns - request.answered_ns)} in time"
    end = f"{name} ended as {request.status} after {took}"
    if attempt and attempt.failed_ns:
        worker = f"{attempt.worker} disconnected" if attempt.status == "LOST" else f"{attempt.worker} hung"
        after = f"{worker} {format_ns(attempt.failed_ns - attempt.sent_ns)} after its action was sent"
        return f"{end}: {after}{f' ({reason})' * bool(reason)}"
    if request.status == "LATE" and submit and attempt and attempt.end_ns:
        largest = find_deviations(request, submit, attempt)[0]
        cause = largest.sentence.format(format_ns(largest.deviation_ns)) if largest.deviation_ns > 0 else "as planned"
        return f"{end}, {describe_lateness(request, submit, attempt)}: {cause}"
    return f"{end}: {reason}" if reason else end


def is_one_clock(request: RequestHistory, submit: SubmitHistory) -> bool:
    """Return whether the times of frontend and controller can be of one clock: the Submit came within the request."""
    return request.arrived_ns <= submit.arrived_ns <= (request.answered_ns or submit.arrived_ns)


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


def describe_lateness(request: RequestHistory, submit: SubmitHistory, attempt: Attempt) -> str:
    """Return when the execution or the answer ended, against the deadline."""
    late = f"{format_ns(find_lateness(request, submit, attempt))} after"
    if outlasts_answer(request, submit, attempt):
        return f"without outputs; its execution ended {late} the latest end that was planned"
    end_ns = attempt.end_ns - request.deadline_ns
    if is_one_clock(request, submit) and end_ns > 0:
        return f"{late} its deadline; its execution ended {format_ns(end_ns)} after it"
    return f"{late} its deadline"


class Deviation(NamedTuple):
    """A difference to the plan of the action that ran the request. Positive: later or longer than planned."""

    deviation_ns: int
    sentence: str
    remedy: str


def find_deviations(request: RequestHistory, submit: SubmitHistory, attempt: Attempt) -> list[Deviation]:
    """Return the deviations of an executed action from its plan, the largest first."""
    took_ns = attempt.end_ns - attempt.begin_ns
    comes_back = is_one_clock(request, submit) and not outlasts_answer(request, submit, attempt)
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


def split_time(request: RequestHistory, submit: SubmitHistory | None, attempt: Attempt | None) -> list[Part]:
    """Return the parts of the time between arrival and answer, in their order. Negative ones are left out.

    They occur if frontend and controller have different clocks.
    """
    times = [("", request.arrived_ns)]
    if submit:
        times.append(("from the frontend to the controller", submit.arrived_ns))
        if (load := submit.load) and load.begin_ns and load.end_ns > submit.arrived_ns:
            times.append(("in the controller's queue, before its LOAD", max(load.begin_ns, submit.arrived_ns)))
            times.append(("loading its model", load.end_ns))
        if attempt is None and submit.ended_ns:
            times.append(("in the controller's queue", submit.ended_ns))
    if attempt:
        failed = len(submit.attempts) - 1 if submit else 0
        again = f" and in {failed} earlier actions" if failed else ""
        times.append((f"in the controller's queue{again}", attempt.sent_ns))
        if not attempt.end_ns and attempt.failed_ns:
            times.append((f"until {attempt.worker} was lost or hung", attempt.failed_ns))
        elif attempt.status == "TOO_LATE":
            times.append(("at the worker, until its window had passed", attempt.end_ns))
        elif attempt.begin_ns:
            times.append(("at the worker, before its batch began", attempt.begin_ns))
            times.append(("executing", attempt.end_ns))
    if request.answered_ns and submit and attempt and attempt.end_ns and outlasts_answer(request, submit, attempt):
        if is_one_clock(request, submit):
            times = [(name, min(at_ns, request.answered_ns)) for name, at_ns in times]
    elif request.answered_ns:
        times.append(("back to the client", request.answered_ns))
    pairs = pairwise(times)
    return [Part(name, at_ns - before_ns) for (_, before_ns), (name, at_ns) in pairs if at_ns >= before_ns]


def describe_ahead(submit: SubmitHistory, attempt: Attempt | None) -> list[str]:
    """Return sentences on the work that was ahead of the request, and on what it waited for."""
    lines = []
    if submit.shares == 0:
        return [f"No share could run {submit.model}."]
    if submit.resident == 0:
        where = count(submit.shares, "share")
        lines.append(f"{submit.model} was resident on none of {where} when it arrived: it waited for a LOAD.")
        lines += [describe_load(submit.load)] if submit.load else []
    if submit.queued:
        lines.append(f"Queued with earlier deadlines: {list_work(submit.queued)}.")
    if submit.running:
        where = count(submit.shares, "share")
        lines.append(f"Running or sent before, on {where}: {list_work(submit.running)} left to execute.")
    if not submit.queued and not submit.running:
        lines.append("Nothing was ahead of it when it arrived.")
    if submit.expected_ns and not submit.attempts:
        predicted = f"{format_ns(submit.expected_ns)} {describe_samples(submit.samples)}"
        lines.append(f"A batch of its own was predicted to take {predicted}.")
    if submit.executed and not submit.attempts:
        lines.append(f"Executed while it waited: {list_work(submit.executed)}.")
    lines += [describe_attempt(submit, number) for number in range(len(submit.attempts))]
    if attempt and attempt.before:
        lines.append(f"Executed on that share while it waited: {list_work(attempt.before)}.")
    if attempt and attempt.overrun_ns:
        lines.append(f"Those batches took {format_ns(attempt.overrun_ns)} longer than predicted together.")
    return lines


def describe_attempt(submit: SubmitHistory, number: int) -> str:
    """Return a sentence on an action with the request: where it ran, what was predicted, how it ended."""
    attempt, attempts = submit.attempts[number], len(submit.attempts)
    which = f"Action {number + 1} of {attempts}" if attempts > 1 else "Its action"
    if attempt.failed_ns and not attempt.end_ns:
        failed = "disconnected" if attempt.status == "LOST" else "hung"
        ended = f"and {attempt.worker} {failed} {format_ns(attempt.failed_ns - attempt.sent_ns)} later"
    elif attempt.status == "TOO_LATE":
        ended = "not run, because its window had passed"
    else:
        took = f"took {format_ns(attempt.end_ns - attempt.begin_ns)}" if attempt.end_ns else "has no Result"
        ended = took if attempt.status in ("", "OK") else f"{took}, ended as {attempt.status}"
    return (
        f"{which} was sent to {attempt.worker}, share {attempt.share}, with {count(attempt.requests, 'request')}: "
        f"predicted {format_ns(attempt.expected_ns)} {describe_samples(attempt.samples)}, {ended}."
    )


def describe_load(load: LoadHistory) -> str:
    """Return a sentence on a LOAD: where it ran, how long it took, and what was evicted for it."""
    evicted = f", after {', '.join(load.evicted[:NAMED_MODELS])} had been evicted" if load.evicted else ""
    if rest := load.evicted[NAMED_MODELS:]:
        evicted = evicted.replace(" had been", f" and {len(rest)} more had been")
    took = f"took {format_ns(load.end_ns - load.begin_ns)}" if load.end_ns else "has no Result"
    ended = took if load.status in ("", "OK") else f"{took}, ended as {load.status}"
    where = f"{load.worker}, share {load.share}"
    return f"Its LOAD on {where}, was predicted to take {format_ns(load.expected_ns)}{evicted}: it {ended}."


def describe_samples(samples: list[int]) -> str:
    """Return what a prediction was made of: measurements, or the profile."""
    if not samples:
        return "by the profile"
    times = ", ".join(f"{took_ns / 1e6:.3f}" for took_ns in samples)
    return f"by the last {count(len(samples), 'execution')} ({times})"


def find_remedies(request: RequestHistory, submit: SubmitHistory | None, attempt: Attempt | None) -> list[str]:
    """Return changes that each would have saved the request. Empty if it was in time."""
    if submit is None or request.status in ("", "OK", "CANCELLED", "INVALID_INPUT"):
        return []
    if submit.status == "REFUSED" or not submit.attempts:
        return [*_without_refusal(submit)]
    if attempt is None or not attempt.end_ns or request.status != "LATE":
        return []
    late_ns = find_lateness(request, submit, attempt)
    remedies = [f"A deadline {format_ns(late_ns)} later."]
    deviations = find_deviations(request, submit, attempt)
    remedies += [deviation.remedy for deviation in deviations if deviation.deviation_ns >= late_ns]
    if attempt.overrun_ns >= late_ns:
        remedies.append("Batches before it as fast as predicted.")
    return remedies


def _without_refusal(submit: SubmitHistory) -> list[str]:
    if submit.reason == Reason.NO_WORKER.sentence:
        return [f"A connected worker that serves {submit.model}."]
    remedies, missing_ns = [], submit.missing_ns
    slack_ns = submit.deadline_ns - submit.arrived_ns - submit.expected_ns
    if any(attempt.status == "TOO_LATE" for attempt in submit.attempts):
        remedies.append("A worker that begins the batch in its window (`horologe doctor`).")
    if submit.resident == 0 and submit.shares and slack_ns > 0:
        return [*remedies, f"{submit.model} resident before it arrived."]  # the missing time does not count the LOAD
    if missing_ns <= 0:
        return remedies
    remedies.append(f"A deadline at least {format_ns(missing_ns)} later.")
    total_ns = sum(work.work_ns for work in (*submit.queued, *submit.running))
    excess_ns = max(missing_ns * submit.shares, total_ns - slack_ns * submit.shares)
    if slack_ns <= 0 or total_ns <= 0:
        return remedies
    devices = math.ceil(excess_ns / slack_ns)
    remedies.append(f"{count(devices, 'share')} more that can run the models ahead.")
    largest = max(submit.queued, key=lambda work: work.work_ns, default=None)
    if largest and largest.work_ns >= excess_ns:
        fewer = math.ceil(excess_ns * largest.requests / largest.work_ns)
        remedies.append(f"{fewer} fewer of the {count(largest.requests, 'request')} for {largest.model} ahead.")
    return remedies


def list_work(works: list[Work]) -> str:
    """Return the works in words, the largest first."""
    named = [
        f"{count(work.requests, 'request')} for {work.model}"
        + (f" in {count(work.batches, 'batch', 'batches')}" if work.batches else "")
        + f" ({format_ns(work.work_ns)})"
        for work in works[:NAMED_MODELS]
    ]
    rest = works[NAMED_MODELS:]
    if rest:
        rest_ns = format_ns(sum(work.work_ns for work in rest))
        named.append(f"{sum(work.requests for work in rest)} requests for {len(rest)} other models ({rest_ns})")
    return ", ".join(named)


def count(number: int, singular: str, plural: str = "") -> str:
    """Return the number with its noun."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def format_ns(duration_ns: int) -> str:
    """Return a duration in milliseconds with three digits after the point."""
    return f"{duration_ns / 1e6:.3f} ms"
