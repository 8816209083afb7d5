"""Describes what a request met: the work ahead of it, the LOAD that it waited for, and the actions that ran it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_sim.explaining.lateness import find_passed_time, is_one_clock

if TYPE_CHECKING:
    from horologe_controller.core.cluster.prediction_source import PredictionSource
    from horologe_sim.explaining.request_history import Attempt, LoadHistory, RequestHistory, SubmitHistory, Work

NAMED_MODELS = 5
"""Models of the work ahead that the text names."""
NOT_RUN = {
    "TOO_LATE": "its window had passed",
    "MISSING_INPUT": "its inputs had not arrived",
    "CANCELLED": "it was cancelled",
}
"""Why a worker does not run an action, by the status of a Result without a reason."""


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
        predicted = f"{format_ns(submit.expected_ns)} {describe_source(submit.source)}"
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
    took = f"took {format_ns(attempt.end_ns - attempt.begin_ns)}" if attempt.end_ns else "has no Result"
    ended = f"and {failure}" if (failure := describe_failure(submit.model, attempt)) else took
    return (
        f"{which} was sent to {attempt.worker}, share {attempt.share}, with {count(attempt.requests, 'request')}: "
        f"predicted {format_ns(attempt.expected_ns)} {describe_source(attempt.source)}, {ended}."
    )


def describe_failure(model: str, attempt: Attempt) -> str:
    """Return the failure of an action: what failed, when, and why. Empty if it has none, or has not ended."""
    why = f": {attempt.reason}" if attempt.reason else ""
    if attempt.status == "FAILED":
        hung = "hung and failed" if attempt.hung_model == model else "failed"
        return f"{model} {hung} on {attempt.worker} after {format_ns(attempt.end_ns - attempt.begin_ns)}{why}"
    if attempt.failed_ns:
        after = f"{format_ns(attempt.failed_ns - attempt.sent_ns)} after its action was sent"
        if attempt.status == "LOST":
            return f"{attempt.worker} disconnected {after}"
        hung = f"{attempt.hung_model} hung on {attempt.worker}" if attempt.hung_model else f"{attempt.worker} hung"
        return f"{hung}, as was found {after}"
    if attempt.status in ("", "OK"):
        return ""
    why = why or f": {NOT_RUN.get(attempt.status, attempt.status)}"
    after = f"{format_ns(attempt.end_ns - attempt.sent_ns)} after its action was sent"
    return f"{attempt.worker} did not run it, {after}{why}"


def describe_load(load: LoadHistory) -> str:
    """Return a sentence on a LOAD: where it ran, how long it took, and what was evicted for it."""
    evicted = f", after {', '.join(load.evicted[:NAMED_MODELS])} had been evicted" if load.evicted else ""
    if rest := load.evicted[NAMED_MODELS:]:
        evicted = evicted.replace(" had been", f" and {len(rest)} more had been")
    took = f"took {format_ns(load.end_ns - load.begin_ns)}" if load.end_ns else "has no Result"
    ended = took if load.status in ("", "OK") else f"{took}, ended as {load.status}"
    where = f"{load.worker}, share {load.share}"
    return f"Its LOAD on {where}, was predicted to take {format_ns(load.expected_ns)}{evicted}: it {ended}."


def describe_source(source: PredictionSource) -> str:
    """Return what a prediction was made of."""
    times = ", ".join(f"{took_ns / 1e6:.3f}" for took_ns in source.samples)
    executions = f"the last {count(len(source.samples), 'execution')} ({times})"
    left_out = f"{source.left_out_ns / 1e6:.3f}"
    match source.kind:
        case "executions":
            without = f", without one that took much longer ({left_out})" if source.left_out_ns else ""
            return f"by {executions}{without}"
        case "trial":
            return f"for a trial, less than by {executions if source.samples else 'the profile'}"
        case "distribution":
            return "by the distribution of its kind of request"
    made_of = "by a guess, as it has never been measured" if source.kind == "guess" else "by the profile"
    pace = f", times {source.pace_permille / 1000:.2f} for the pace of recent executions"
    without = f"; its only recent execution ({left_out}) took too long to count alone" if source.left_out_ns else ""
    return f"{made_of}{pace * (source.pace_permille != 1000)}{without}"


def describe_needs(request: RequestHistory, submit: SubmitHistory) -> list[str]:
    """Return a sentence on how the time of a request divides that could not be in time even alone."""
    if not submit.is_too_long:
        return []
    if find_passed_time(request, submit):
        what = f"the stage {submit.stage}" if submit.stage else "it"
        return [f"Its deadline had passed when {what} reached the controller."]
    from_ns, until_ns = submit.arrived_ns, submit.deadline_ns
    way, after = "", "the return of the answer and a margin"
    if is_one_clock(request, submit):
        from_ns, until_ns = request.arrived_ns, request.deadline_ns
        before = f"before the stage {submit.stage}" if submit.stage else "to the controller"
        way = f"{format_ns(submit.arrived_ns - from_ns)} {before}, "
        after = f"the stages after it, {after}" if submit.stage else after
    if submit.ended_ns > submit.arrived_ns:
        way += f"{format_ns(submit.ended_ns - submit.arrived_ns)} in the queue and in actions that did not run, "
    budget_ns, spent_ns = until_ns - from_ns, submit.ended_ns - from_ns
    # not below 0: within a process, the controller does not subtract the way to it
    reserved_ns = max(0, budget_ns - spent_ns + submit.missing_ns - submit.dispatch_ns - submit.expected_ns)
    worker, execution = format_ns(submit.dispatch_ns), format_ns(submit.expected_ns)
    needs = f"{way}{worker} to the worker, {execution} for the execution, {format_ns(reserved_ns)} for {after}"
    return [f"Even alone it needs more than its {format_ns(budget_ns)}: {needs}."]


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
