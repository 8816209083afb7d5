"""Answer of an application query from its models' predictions (Clipper sections 5.2.1, 5.2.2). Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.application_answers import answer_tensors
from horologe_common.status import Status
from horologe_common.wire import Answer
from horologe_selector.policy import CombinedPrediction, RowPredictions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_selector.core.applications.query import ApplicationQuery

OK = int(Status.OK)


def build_answer(
    now_ns: int, query: ApplicationQuery, state: Any
) -> tuple[Answer, Sequence[Buffer], tuple[CombinedPrediction, ...]]:
    """Return the answer with its tensor bytes, and the combined prediction of each row before defaults are applied."""
    declared = query.active.application
    present = tuple(model for model in query.selection.models if model in query.results)
    missing = tuple(model for model in query.selection.models if model not in query.results)
    if declared.task == "any" and present:
        result = query.results[present[0]]
        return _answer(now_ns, query, result.outputs, present, missing, 1.0, False), result.buffers, ()
    combined = _combine_rows(query, present, missing, state) if present else ()
    default = declared.default
    if default is None:
        if not present:
            return _failure(query), (), ()
        defaulted = [False] * len(combined)
    else:
        defaulted = [row.confidence < declared.confidence for row in combined] or [True] * query.query.rows
    rows = combined or (CombinedPrediction(0.0, 0.0),) * query.query.rows
    answered = [
        row._replace(value=default) if use_default and default is not None else row
        for row, use_default in zip(rows, defaulted, strict=True)
    ]
    confidences = [row.confidence for row in answered]
    outputs, buffers = answer_tensors(declared, [row.value for row in answered], confidences, defaulted)
    return _answer(now_ns, query, outputs, present, missing, min(confidences), any(defaulted)), buffers, combined


def _combine_rows(
    query: ApplicationQuery, present: Sequence[str], missing: Sequence[str], state: Any
) -> tuple[CombinedPrediction, ...]:
    active, values = query.active, query.values
    regression = active.application.task == "regression"
    fallbacks = {model: active.fallbacks[model].shares() for model in missing}
    rows = [{model: values[model][row] for model in present} for row in range(query.query.rows)]
    return tuple(active.policy.combine(state, RowPredictions(row, fallbacks, regression)) for row in rows)


def _answer(
    now_ns: int,
    query: ApplicationQuery,
    outputs: Any,
    present: tuple[str, ...],
    missing: tuple[str, ...],
    confidence: float,
    defaulted: bool,
) -> Answer:
    results = [query.results[model] for model in present]
    cached = bool(results) and all(result.cached for result in results)
    exec_ns = max((result.exec_ns for result in results), default=0)
    queue_ns = 0 if cached else max(0, now_ns - query.arrival_ns - exec_ns)
    contents = tuple([result.content_hash for result in results]) if query.query.content_hash else ()
    return Answer(
        query.query.id,
        OK,
        outputs,
        "",
        0,
        query.active.application.name,
        "",
        queue_ns,
        exec_ns,
        results[0].batch_size if len(results) == 1 else 0,
        cached,
        confidence,
        present,
        missing,
        defaulted,
        query.prediction,
        bool(query.pending),
        contents,
    )


def _failure(query: ApplicationQuery) -> Answer:
    """Return the answer without any prediction or default: the first model's failure, or REFUSED at the deadline."""
    name = query.active.application.name
    if query.failures and not query.is_waiting():
        first = next(iter(query.failures.values()))
        status, reason, retry_after_ns = first.status, first.reason, first.retry_after_ns
    else:
        status, reason, retry_after_ns = int(Status.REFUSED), "no model answered in time", 0
    missing = query.selection.models
    return Answer(
        query.query.id, status, (), reason, retry_after_ns, name, missing=missing, inputs_retained=bool(query.pending)
    )
