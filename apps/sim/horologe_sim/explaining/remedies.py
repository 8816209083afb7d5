"""Changes that each would have saved a request, by the durations that were predicted then."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from horologe_controller.core.scheduling.decisions import Reason
from horologe_sim.explaining.lateness import (
    find_deviations,
    find_lateness,
    find_passed_time,
    is_one_clock,
    outlasts_answer,
)
from horologe_sim.explaining.surroundings import count, format_ns

if TYPE_CHECKING:
    from horologe_sim.explaining.request_history import Attempt, RequestHistory, SubmitHistory

IN_TIME_BEFORE = "Batches before it as fast as predicted."
BEGINS_IN_WINDOW = "A worker that begins the batch in its window (`horologe doctor`)."


def find_remedies(request: RequestHistory, submit: SubmitHistory | None, attempt: Attempt | None) -> list[str]:
    """Return changes that each would have saved the request. Empty if it was in time, or time would not have helped."""
    if submit is None or request.status not in ("REFUSED", "LATE"):
        return []
    if submit.status == "REFUSED":
        return _without_refusal(request, submit)
    if not submit.attempts:
        return _without_refusal(request, submit) if submit.status in ("", "LATE") else []
    if attempt is None or request.status != "LATE":
        return []
    if attempt.status == "TOO_LATE":
        return [find_late_begin(attempt)]
    if attempt.status != "OK":
        return []
    if submit.stage and not outlasts_answer(request, submit, attempt):
        return []  # the query went on after this stage
    late_ns = find_lateness(request, submit, attempt)
    remedies = [f"A deadline {'at least ' * bool(submit.stage)}{format_ns(late_ns)} later."]
    deviations = find_deviations(request, submit, attempt)
    remedies += [deviation.remedy for deviation in deviations if deviation.deviation_ns >= late_ns]
    if attempt.overrun_ns >= late_ns:
        remedies.append(IN_TIME_BEFORE)
    return remedies


def find_late_begin(attempt: Attempt) -> str:
    """Return what would have let an action begin in its window."""
    late_ns = attempt.end_ns - attempt.planned_begin_ns
    return IN_TIME_BEFORE if attempt.overrun_ns >= late_ns else BEGINS_IN_WINDOW


def _without_refusal(request: RequestHistory, submit: SubmitHistory) -> list[str]:
    if submit.reason == Reason.NO_WORKER.sentence:
        return [f"A connected worker that serves {submit.model}."]
    if submit.reason == Reason.QUEUE_FULL.sentence:
        return ["Fewer queued requests, or a higher `controller.max_queued`."]
    too_late = [attempt for attempt in submit.attempts if attempt.status == "TOO_LATE"]
    remedies, missing_ns = [find_late_begin(attempt) for attempt in too_late[-1:]], submit.missing_ns
    if submit.is_too_long:
        return [*remedies, *_with_more_time(request, submit)]
    slack_ns = submit.deadline_ns - submit.arrived_ns - submit.expected_ns
    if submit.resident == 0 and submit.shares and slack_ns > 0:
        return [*remedies, f"{submit.model} resident before it arrived."]  # the missing time does not count the LOAD
    if missing_ns > 0:
        remedies += [f"A deadline at least {format_ns(missing_ns)} later.", *_with_less_work(submit, slack_ns)]
    return remedies


def _with_more_time(request: RequestHistory, submit: SubmitHistory) -> list[str]:
    """Return what saves a request that could not be in time even alone: other work and more devices play no part."""
    missing_ns = submit.missing_ns + find_passed_time(request, submit)
    rest_ns = submit.expected_ns - missing_ns
    remedies = [f"A deadline at least {format_ns(missing_ns)} later."]
    if sizes := [size for size, expected_ns in submit.shorter.items() if expected_ns <= rest_ns]:
        remedies.append(f"At most {count(max(sizes), 'row')} in the request, instead of {submit.rows}.")
    if rest_ns > 0:
        took = f"in at most {format_ns(rest_ns)} instead of {format_ns(submit.expected_ns)}"
        remedies.append(f"A device that executes it {took}.")
    if is_one_clock(request, submit) and submit.arrived_ns - request.arrived_ns >= missing_ns:
        way = "Stages before it that take" if submit.stage else "A way from the frontend to the controller that takes"
        remedies.append(f"{way} {format_ns(missing_ns)} less.")
    return remedies


def _with_less_work(submit: SubmitHistory, slack_ns: int) -> list[str]:
    """Return by how much more devices, or less work ahead, would have been enough."""
    total_ns = sum(work.work_ns for work in (*submit.queued, *submit.running))
    if slack_ns <= 0 or total_ns <= 0:
        return []
    excess_ns = max(submit.missing_ns * submit.shares, total_ns - slack_ns * submit.shares)
    devices = math.ceil(excess_ns / slack_ns)
    remedies = [f"{count(devices, 'share')} more that can run the models ahead."]
    largest = max(submit.queued, key=lambda work: work.work_ns, default=None)
    if largest and largest.work_ns >= excess_ns:
        fewer = math.ceil(excess_ns * largest.requests / largest.work_ns)
        remedies.append(f"{fewer} fewer of the {count(largest.requests, 'request')} for {largest.model} ahead.")
    return remedies
