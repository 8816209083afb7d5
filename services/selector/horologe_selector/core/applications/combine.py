"""The answer of an application from what its models have predicted (Clipper sections 5.2.1, 5.2.2). Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.status import Status
from horologe_common.wire import Answer
from horologe_selector.core.predictions.tensor_values import tensors_of
from horologe_selector.policy import Ballot, Guess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_selector.core.applications.ensemble import Ensemble

OK = int(Status.OK)


def answer_of(now_ns: int, ensemble: Ensemble, state: Any) -> tuple[Answer, Sequence[Buffer], tuple[Guess, ...]]:
    """The answer, as of now, with its tensors, and what was combined for each row, before any default."""
    application = ensemble.running.application
    there = tuple(model for model in ensemble.selection.models if model in ensemble.landings)
    missing = tuple(model for model in ensemble.selection.models if model not in ensemble.landings)
    if application.task == "any" and there:
        landing = ensemble.landings[there[0]]
        return _answer(now_ns, ensemble, landing.outputs, there, missing, 1.0, False), landing.buffers, ()
    guesses = _guesses(ensemble, there, missing, state) if there else ()
    default = application.default
    if default is None:
        if not there:
            return _failure(ensemble), (), ()
        defaulted = [False] * len(guesses)
    else:
        defaulted = [guess.confidence < application.confidence for guess in guesses] or [True] * ensemble.query.rows
    given = guesses or (Guess(0.0, 0.0),) * ensemble.query.rows
    shown = [
        guess._replace(value=default) if flag and default is not None else guess
        for guess, flag in zip(given, defaulted, strict=True)
    ]
    outputs, buffers = tensors_of(application, shown, defaulted)
    confidence = min(guess.confidence for guess in shown)
    return _answer(now_ns, ensemble, outputs, there, missing, confidence, any(defaulted)), buffers, guesses


def _guesses(ensemble: Ensemble, there: Sequence[str], missing: Sequence[str], state: Any) -> tuple[Guess, ...]:
    """Row by row."""
    running, values = ensemble.running, ensemble.values
    regression = running.application.task == "regression"
    absent = {model: running.stand_ins[model].shares() for model in missing}
    return tuple(
        running.policy.combine(state, Ballot({model: values[model][row] for model in there}, absent, regression))
        for row in range(ensemble.query.rows)
    )


def _answer(
    now_ns: int,
    ensemble: Ensemble,
    outputs: Any,
    there: tuple[str, ...],
    missing: tuple[str, ...],
    confidence: float,
    flag: bool,
) -> Answer:
    landings = [ensemble.landings[model] for model in there]
    one = landings[0] if len(landings) == 1 else None
    cached = bool(landings) and all(landing.cached for landing in landings)
    exec_ns = max((landing.exec_ns for landing in landings), default=0)
    queue_ns = 0 if cached else max(0, now_ns - ensemble.arrival_ns - exec_ns)
    return Answer(
        ensemble.query.id,
        OK,
        outputs,
        "",
        0,
        ensemble.running.application.name,
        "",
        queue_ns,
        exec_ns,
        one.batch_size if one else 0,
        cached,
        confidence,
        there,
        missing,
        flag,
        ensemble.prediction,
        bool(ensemble.open),
    )


def _failure(ensemble: Ensemble) -> Answer:
    """Nothing is there, and nothing was declared to be said then: as the first model failed, else refused."""
    name = ensemble.running.application.name
    if ensemble.refused and not ensemble.waits():
        first = next(iter(ensemble.refused.values()))
        status, reason, retry_after_ns = first.status, first.reason, first.retry_after_ns
    else:
        status, reason, retry_after_ns = int(Status.REFUSED), "no model answered in time", 0
    missing = ensemble.selection.models
    return Answer(
        ensemble.query.id,
        status,
        (),
        reason,
        retry_after_ns,
        name,
        missing=missing,
        inputs_retained=bool(ensemble.open),
    )
