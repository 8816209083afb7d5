"""The Grafana dashboards of Horologe, one module each, built with Grafana's Foundation SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_dashboards import applications, controller, models, overview, pipelines, workers

if TYPE_CHECKING:
    from grafana_foundation_sdk.models.dashboard import Dashboard


def build_dashboards() -> dict[str, Dashboard]:
    """Return all dashboards by the name of their file."""
    modules = (overview, controller, workers, models, applications, pipelines)
    return {module.__name__.rpartition(".")[2]: module.build() for module in modules}
