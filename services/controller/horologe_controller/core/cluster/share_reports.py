"""Reports of a worker about the models in a share's pages, and standby models, which schedulers do not see."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_common import wire
    from horologe_controller.core.cluster.estimates import Estimate
    from horologe_controller.core.cluster.share import Share


def adopt_pages(share: Share, report: wire.Share, pages: Mapping[str, float]) -> None:
    """Mirror what a new share holds and loads. `pages`: of the models that its worker reports."""
    held = {**dict.fromkeys(report.resident, False), **{key: True for key, _ in report.loading}}
    for model, loading in held.items():
        if model in pages:
            share.reserve_pages(model, pages[model], loading=loading)


def adopt_report(share: Share, report: wire.Share, changed: Mapping[str, float]) -> None:
    """Adopt what the worker did to models whose content changed: unloaded them, or reduced them to these pages.

    A Result precedes the report of the model that it made resident, so what is missing there has been unloaded.
    """
    reported = {*report.resident, *(key for key, _ in report.loading)}
    for models in (share.resident, share.held):
        for model in [model for model in models if model in changed]:
            if model not in reported:
                share.unload_model(model)
            elif (surplus := models[model] - changed[model]) > 0:
                models[model] = changed[model]
                share.pages_free += surplus


def begin_standby(share: Share, model: str, estimate: Estimate) -> None:
    """Hide the model from schedulers. It stays loaded, or is loaded as a model that the plan keeps on the share."""
    if model in share.standby:
        return
    if model in share.resident or model in share.loading:
        share.residency.remove_model(share, model)
    share.standby[model] = estimate
    if model in share.resident:
        share.held[model] = share.resident.pop(model)
        share.unused.pop(model, None)


def end_standby(share: Share, model: str) -> bool:
    """Show the model to schedulers again if it stands by. Return whether it does."""
    if share.standby.pop(model, None) is None:
        return False
    if model in share.held:
        share.resident[model] = share.held.pop(model)
    if model in share.resident or model in share.loading:
        share.residency.add_model(share, model, resident=model in share.resident)
    return True
