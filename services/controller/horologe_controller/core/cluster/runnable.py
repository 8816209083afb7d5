"""Which models a worker, and each of its shares, could run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_controller.core.cluster.estimates import missing_batch_sizes

if TYPE_CHECKING:
    from horologe_common import wire
    from horologe_common.models import ModelSpec, Profile

    WorkerModel = tuple[ModelSpec, Profile | None, str, str]
    """Spec, profile, reason and note. Without a profile the worker cannot serve the model, for the reason."""


def servable_models(message: wire.Register) -> dict[str, WorkerModel]:
    """Return the models that a worker reports, by key."""
    most_pages = max((share.pages_total for share in message.shares), default=0)
    return {report.spec.key: _servable_model(report, most_pages) for report in message.models}


def _servable_model(report: wire.ModelReport, most_pages: int) -> WorkerModel:
    """Return (spec, profile, reason, note); no profile if the model fits none of the worker's shares."""
    pages = report.spec.pages
    if report.profile is None or pages <= most_pages:
        return report.spec, report.profile, report.reason, report.note
    return report.spec, None, f"pages: needs {pages:g} of 16 MiB, the largest share has {most_pages}", ""


def runnable_profile(
    model: WorkerModel, served: ModelSpec | None, pages_total: int, *, reloading: bool
) -> Profile | None:
    """Return the model's profile if a share of `pages_total` could run it; None for another content or batch sizes.

    `served`: the spec of all workers, None if there is none yet. `reloading`: workers read the model again, and may
    run the content before or the new one.
    """
    spec, profile, *_ = model
    served = served or spec
    same_content = spec.content_hash == served.content_hash and spec.has_same_rows(served)
    right_content = same_content or (reloading and spec.is_compatible(served))
    fits = right_content and spec.pages <= pages_total
    if profile is None or not fits or missing_batch_sizes(profile, served.batch_sizes):
        return None
    return profile
