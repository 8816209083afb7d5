"""Metrics of a process in Prometheus' text format.

prometheus-client writes the same format at 15 times the CPU time, while it holds the interpreter lock that the event
loop needs (docs/observing.md#cost-of-metrics).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from horologe_common.core.buckets import classic_bounds, classic_positions
from horologe_common.core.instruments import Histogram
from horologe_common.service.metric_definitions import METRICS, MODEL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_common.core.instruments import Stats

    Labels = tuple[str, ...]
    Groups = dict[str, dict[Labels, float | Histogram]]
    """Metric name -> label values -> value."""

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
    """Writes the text format. The beginnings of lines are kept from one page to the next."""

    CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self._lines: dict[tuple[str, Labels], _Lines] = {}

    def render(self, groups: Groups) -> bytes:
        """Return the page. Durations of histograms are converted to seconds."""
        known, self._lines = self._lines, {}
        parts: list[str] = []
        for name, series in groups.items():
            metric = METRICS[name]
            parts.append(f"# HELP {name} {_escape_help(metric.help)}\n# TYPE {name} {metric.kind}\n")
            for labels, value in series.items():
                lines = self._lines[name, labels] = known.get((name, labels)) or _create_lines(name, labels)
                if isinstance(value, Histogram):
                    parts += _histogram_lines(name, lines, value)
                else:
                    parts.append(f"{lines.value}{value if type(value) is int else float(value)}\n")
        return "".join(parts).encode()


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


def _histogram_lines(name: str, lines: _Lines, histogram: Histogram) -> list[str]:
    counts = histogram.cumulative_counts(classic_positions(name))
    text = [f"{line}{count}\n" for line, count in zip(lines.buckets, counts, strict=True)]
    return [*text, f"{lines.sum}{histogram.sum / bucket_scale(name)}\n", f"{lines.value}{counts[-1]}\n"]


def bucket_scale(name: str) -> float:
    """Return the number of a histogram's units in the unit of its name: nanoseconds in a second, or 1."""
    return 1e9 if name.endswith("_seconds") else 1


def _escape(value: str) -> str:
    return _escape_help(value).replace('"', '\\"')


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
