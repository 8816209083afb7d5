"""Metrics of a process in Prometheus' text format, and in that of OpenMetrics 1.0 with exemplars.

prometheus-client writes the same format at 15 times the CPU time, while it holds the interpreter lock that the event
loop needs (docs/observing.md#cost-of-metrics).
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, NamedTuple

from horologe_common.core.buckets import classic_bounds, classic_positions
from horologe_common.core.instruments import Histogram
from horologe_common.metrics.metric_definitions import METRICS, MODEL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_common.core.instruments import Exemplar, Stats

    Labels = tuple[str, ...]
    Groups = dict[str, dict[Labels, float | Histogram]]
    """Metric name -> label values -> value."""

TEXT = "text/plain"
TEXT_CONTENT_TYPE = f"{TEXT}; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"
OPENMETRICS_CONTENT_TYPE = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"
TRITON_PATH = "/metrics/triton"
TRITON_SUFFIX = "_us"
"""Triton's names with this suffix have a page of their own: `promtool check metrics` rejects abbreviated units."""
NAMED_MODELS = 1000
"""Models with series of their own. 10,000 models would be 750,000 series of a frontend."""
OTHER = "other"


def group_series(stats: Iterable[Stats], *, triton: bool = False) -> Groups:
    """Return all series by name; with `triton` those of the page `TRITON_PATH`."""
    groups: Groups = {}
    for source in stats:
        series: list[tuple[Labels, float | Histogram]] = [*source.values.items(), *source.histograms.items()]
        for (name, *labels), value in series:
            if name.endswith(TRITON_SUFFIX) is triton:
                groups.setdefault(name, {})[tuple(labels)] = value
    return groups


class ModelLimit:
    """Limit of models with series of their own. The series of the others are added up as the model `other`.

    The first models with requests keep their names. A model whose values are all 0 has one while there is room.
    """

    def __init__(self, limit: int = NAMED_MODELS) -> None:
        self._limit = limit
        self._named: dict[Labels, bool] = {}

    def fold(self, groups: Groups) -> None:
        """Replace the series of models beyond the limit by their sums."""
        by_model = [(name, series, at) for name, series in groups.items() if (at := _model_position(name)) is not None]
        if not self._named and all(len(series) <= self._limit for _, series, _ in by_model):
            return
        used: dict[Labels, bool] = {}
        for _, series, (start, end) in by_model:
            for labels, value in series.items():
                model = labels[start:end]
                used[model] = used.get(model, False) or bool(value.total if isinstance(value, Histogram) else value)
        if len(used) <= self._limit and not self._named:
            return
        for model in [model for model, is_used in used.items() if is_used]:
            if len(self._named) < self._limit:
                self._named[model] = True
        idle = [model for model in used if model not in self._named]
        kept = self._named | dict.fromkeys(idle[: self._limit - len(self._named)], True)
        for name, series, (start, end) in by_model:
            groups[name] = _fold_series(series, kept, start, end)


def _model_position(name: str) -> tuple[int, int] | None:
    """Return the slice of a metric's labels that names a model, or None. `model` may stand without a `version`."""
    labels = METRICS[name].labels
    if MODEL[0] not in labels:
        return None
    start = labels.index(MODEL[0])
    return start, start + (2 if labels[start + 1 : start + 2] == MODEL[1:] else 1)


def _fold_series(
    series: dict[Labels, float | Histogram], kept: dict[Labels, bool], start: int, end: int
) -> dict[Labels, float | Histogram]:
    folded: dict[Labels, float | Histogram] = {}
    for labels, value in series.items():
        if labels[start:end] in kept:
            folded[labels] = value
            continue
        other = (*labels[:start], OTHER, *("",) * (end - start - 1), *labels[end:])
        before = folded.get(other)
        if isinstance(value, Histogram):
            if not isinstance(before, Histogram):
                before = folded[other] = Histogram(value.bounds)
            before.merge(value)
        else:
            folded[other] = value + (before if isinstance(before, int | float) else 0)
    return folded


class _Lines(NamedTuple):
    """Beginnings of the lines of one series: name, labels and a space."""

    value: str
    buckets: tuple[str, ...] = ()
    sum: str = ""


class TextPage:
    """Writes both text formats. The beginnings of lines are kept from one page to the next."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, Labels], _Lines] = {}

    def render(self, groups: Groups, wall_offset_ns: int | None = None) -> bytes:
        """Return the page in Prometheus' format. Durations of histograms are converted to seconds.

        With `wall_offset_ns`, Unix time minus the monotonic clock: in the format of OpenMetrics, with exemplars.
        """
        known, self._lines = self._lines, {}
        parts: list[str] = []
        for name, series in groups.items():
            parts.append(_header(name, openmetrics=wall_offset_ns is not None))
            for labels, value in series.items():
                lines = self._lines[name, labels] = known.get((name, labels)) or _create_lines(name, labels)
                if isinstance(value, Histogram):
                    parts += _histogram_lines(name, lines, value, wall_offset_ns)
                else:
                    parts.append(f"{lines.value}{value if type(value) is int else float(value)}\n")
        if wall_offset_ns is not None:
            parts.append("# EOF\n")
        return "".join(parts).encode()


def _header(name: str, *, openmetrics: bool) -> str:
    """Return help and type. In OpenMetrics, a counter's family has the name without `_total`."""
    metric = METRICS[name]
    if not openmetrics:
        return f"# HELP {name} {_escape_help(metric.help)}\n# TYPE {name} {metric.kind}\n"
    family = name.removesuffix("_total") if metric.kind == "counter" else name
    kind = "unknown" if metric.kind == "untyped" else metric.kind
    return f"# HELP {family} {_escape(metric.help)}\n# TYPE {family} {kind}\n"


def _create_lines(name: str, labels: Labels) -> _Lines:
    pairs = [f'{key}="{_escape(value)}"' for key, value in zip(METRICS[name].labels, labels, strict=True)]
    text = ",".join(pairs)
    braces = f"{{{text}}}" if pairs else ""
    if METRICS[name].kind != "histogram":
        return _Lines(f"{name}{braces} ")
    scale = bucket_scale(name)
    bounds = [*(repr(bound / scale) for bound in classic_bounds(name)), "+Inf"]
    prefix = ",".join([*pairs, 'le="'])
    buckets = tuple(f'{name}_bucket{{{prefix}{bound}"}} ' for bound in bounds)
    return _Lines(f"{name}_count{braces} ", buckets, f"{name}_sum{braces} ")


def _histogram_lines(name: str, lines: _Lines, histogram: Histogram, wall_offset_ns: int | None) -> list[str]:
    counts = histogram.cumulative_counts(classic_positions(name))
    scale = bucket_scale(name)
    text = [f"{line}{count}\n" for line, count in zip(lines.buckets, counts, strict=True)]
    if wall_offset_ns is not None:
        for at, exemplar in latest_exemplars(name, histogram).items():
            time_s = (exemplar.at_ns + wall_offset_ns) / 1e9
            mark = f'{{trace_id="{exemplar.trace_id}"}} {exemplar.value / scale} {time_s:.3f}'
            text[at] = f"{text[at][:-1]} # {mark}\n"
    return [*text, f"{lines.sum}{histogram.sum / scale}\n", f"{lines.value}{counts[-1]}\n"]


def latest_exemplars(name: str, histogram: Histogram) -> dict[int, Exemplar]:
    """Return the latest exemplar of each classic bucket that has one, by the position of the bucket."""
    positions = classic_positions(name)
    latest: dict[int, Exemplar] = {}
    for position, exemplar in list(histogram.exemplars.items()):
        at = bisect.bisect_left(positions, position)
        if at not in latest or latest[at].at_ns < exemplar.at_ns:
            latest[at] = exemplar
    return latest


def bucket_scale(name: str) -> float:
    """Return the number of a histogram's units in the unit of its name: nanoseconds in a second, or 1."""
    return 1e9 if name.endswith("_seconds") else 1


def _escape(value: str) -> str:
    return _escape_help(value).replace('"', '\\"')


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
