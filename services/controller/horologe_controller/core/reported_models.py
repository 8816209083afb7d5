"""The state of a model, combined from the reports of all workers that have it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.protocol import instance
from horologe_common.wire import ModelState
from horologe_controller.core.cluster.capable_shares import missing_batch_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_common.models import ModelSpec
    from horologe_common.wire import ModelReport


def combine_reports(
    reports: Mapping[str, ModelReport], before: ModelState | None, *, scanned: bool
) -> tuple[ModelState, str, bool]:
    """Return (state of a model, why a worker serves a content that its repository does not have, is retired).

    The state has the content that all workers are to run. The second is empty if there is no such worker. The model is
    retired if no worker's repository has the version any more. `reports`: by worker. `before`: its last state.
    `scanned`: an operator has had it read again.
    """
    servable = {worker: report for worker, report in reports.items() if report.profile is not None}
    if not servable:
        return _describe_unserved(reports, before), "", False
    spec, state_reason, stale = _choose_content(list(servable.values()), before, scanned=scanned), "", ""
    for worker, report in servable.items():
        other, profile, reason = report.spec, report.profile, report.reason
        if other.content_hash != spec.content_hash:
            state_reason = f"not at {worker}: its content is {other.content_hash}, wanted {spec.content_hash}"
        elif not other.has_same_rows(spec):
            state_reason = f"not at {worker}: it batches the model, and another worker found its rows dependent"
        elif profile and (missing := missing_batch_sizes(profile, spec.batch_sizes)):
            state_reason = f"not at {worker}: batch sizes: {missing} not measured there"
        elif report.retired:
            state_reason = reason
        elif reason:
            stale = state_reason = f"serves the content before: {reason}"
        else:
            state_reason = state_reason or report.note
    is_retired = all(report.retired for report in servable.values())
    return ModelState(spec, "READY", state_reason), stale, is_retired


def _describe_unserved(reports: Mapping[str, ModelReport], before: ModelState | None) -> ModelState:
    """Return the state of a model that no worker can serve now. While it is loading, its last signature holds."""
    loading = next(((worker, report) for worker, report in reports.items() if report.loading), None)
    if loading is None:
        first = next(iter(reports.values()))
        return ModelState(first.spec, "UNAVAILABLE", first.reason)
    worker, report = loading
    spec = before.spec if before is not None and before.spec.has_signature else report.spec
    return ModelState(spec, "LOADING", f"{instance(worker)}: {report.loading}")


def _choose_content(servable: Sequence[ModelReport], before: ModelState | None, *, scanned: bool) -> ModelSpec:
    """Return the spec with the content to serve: the present one while a worker has it.

    After a load it is a content that has changed, if any worker has one: the one that most workers have.
    """
    present = before.spec.content_hash if before else None
    contents = [report.spec.content_hash for report in servable]
    changed = [content for content in contents if content != present]
    if changed and (present not in contents or scanned):
        chosen = max(changed, key=changed.count)
    else:
        chosen = contents[contents.index(present) if present in contents else 0]
    specs = [report.spec for report in servable if report.spec.content_hash == chosen]
    return next((spec for spec in specs if not spec.batched), specs[0])  # a dependence of rows may be found once
