"""Panels and pages as all dashboards use them: one look, every panel with a unit, a description and thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, timeseries
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    Dashboard,
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    Panel = stat.Panel | timeseries.Panel

SOURCE = DataSourceRef(type_val="prometheus", uid="$datasource")
HEIGHT, STAT_HEIGHT = 8, 4
COLUMNS = 24
GREEN, ORANGE, RED = "green", "orange", "red"


class Query(NamedTuple):
    """A PromQL expression, and the legend of its series as a template of labels.

    `exemplars`: also show the exemplars of its histogram, as points that link to traces.
    """

    expression: str
    legend: str = ""
    exemplars: bool = False


class Limits(NamedTuple):
    """Colours by value, from the lowest value on."""

    steps: tuple[tuple[float | None, str], ...] = ((None, GREEN),)

    @classmethod
    def above(cls, warning: float, bad: float) -> Limits:
        """Return limits of a value that should be low."""
        return cls(((None, GREEN), (warning, ORANGE), (bad, RED)))

    @classmethod
    def below(cls, bad: float, warning: float) -> Limits:
        """Return limits of a value that should be high."""
        return cls(((None, RED), (bad, ORANGE), (warning, GREEN)))


NO_LIMIT = Limits()


def graph(
    title: str, description: str, unit: str, *queries: Query, limits: Limits = NO_LIMIT, stacked: bool = False,
    highest: float | None = None,
) -> timeseries.Panel:  # fmt: skip
    """Return a panel of values over time. `highest`: upper end of the axis; None: that of the data."""
    panel = timeseries.Panel().title(title).description(description).unit(unit).datasource(SOURCE).min(0)
    panel = panel.thresholds(_thresholds(limits)).line_width(1).fill_opacity(30 if stacked else 8)
    panel = panel.show_points(VisibilityMode.NEVER).height(HEIGHT)
    style = GraphThresholdsStyleMode.OFF if limits is NO_LIMIT else GraphThresholdsStyleMode.DASHED
    panel = panel.thresholds_style(common_builders.GraphThresholdsStyleConfig().mode(style))
    legend = common_builders.VizLegendOptions().display_mode(LegendDisplayMode.LIST).show_legend(True)
    panel = panel.legend(legend.placement(LegendPlacement.BOTTOM))
    panel = panel.tooltip(common_builders.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    if stacked:
        panel = panel.stacking(common_builders.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    if highest is not None:
        panel = panel.max(highest)
    return _add_queries(panel, queries)


def number(title: str, description: str, unit: str, query: Query, limits: Limits = NO_LIMIT) -> stat.Panel:
    """Return a panel with the last value of one query."""
    panel = stat.Panel().title(title).description(description).unit(unit).datasource(SOURCE)
    panel = panel.thresholds(_thresholds(limits)).graph_mode(BigValueGraphMode.AREA).height(STAT_HEIGHT)
    panel = panel.reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
    return _add_queries(panel, [query])


def page(
    name: str, title: str, description: str, rows: Sequence[tuple[str, Sequence[Panel]]], variables: Sequence[str] = ()
) -> Dashboard:
    """Return a dashboard. `variables`: labels by which it can be filtered, each with a metric that has the label."""
    board = builders.Dashboard(title).uid(f"horologe-{name}").description(description).tags(["horologe"])
    board = board.refresh("10s").time("now-30m", "now").timezone("browser").tooltip(DashboardCursorSync.CROSSHAIR)
    link = builders.DashboardLink("Horologe").type(DashboardLinkType.DASHBOARDS).tags(["horologe"])
    board = board.link(link.as_dropdown(True).keep_time(True))
    source = builders.DatasourceVariable("datasource").label("Data source").type("prometheus")
    board = board.with_variable(source.current(VariableOption(text="Prometheus", value="prometheus")))
    for variable in variables:
        board = board.with_variable(_filter(*variable.split(" ")))
    for row, panels in rows:
        board = board.with_row(builders.Row(row))
        for panel in panels:
            board = board.with_panel(panel.span(COLUMNS // len(panels) if len(panels) < 4 else COLUMNS // 4))
    return board.build()


def _filter(label: str, metric: str) -> builders.QueryVariable:
    variable = builders.QueryVariable(label).label(label).datasource(SOURCE)
    variable = variable.query(f"label_values({metric}, {label})").refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    everything = VariableOption(selected=True, text="All", value="$__all")
    return (
        variable.sort(VariableSort.ALPHABETICAL_ASC).multi(True).include_all(True).all_value(".*").current(everything)
    )


def _thresholds(limits: Limits) -> builders.ThresholdsConfig:
    steps = [Threshold(value=value, color=color) for value, color in limits.steps]
    return builders.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def _add_queries(panel: Panel, queries: Sequence[Query]) -> Panel:
    for number_, query in enumerate(queries):
        target = prometheus.Dataquery().expr(query.expression).legend_format(query.legend or "__auto")
        if query.exemplars:
            target = target.exemplar(True)
        panel = panel.with_target(target.ref_id(chr(ord("A") + number_)).datasource(SOURCE))
    return panel
