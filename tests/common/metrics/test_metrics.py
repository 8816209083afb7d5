"""Counters and histograms of cores, as exported to Prometheus."""

from __future__ import annotations

import ast
from pathlib import Path

from common.exposition import read_samples
from harness.builders import a_spec
from horologe_common.clock import us
from horologe_common.core.instruments import MODELS_AT_ZERO, ModelCounters, Stats
from horologe_common.metrics.metric_definitions import METRICS


def test_error_histograms_have_buckets_between_a_quarter_and_a_third_of_a_millisecond() -> None:
    stats = Stats()
    for name in ("horologe_prediction_error_seconds", "horologe_completion_error_seconds"):
        for value in (us(250), us(251)):
            stats.observe(name, "infer", "under", value=value)
        histogram = stats.histograms[name, "infer", "under"]
        assert {us(200), us(250), us(300)} <= {*histogram.bounds}
        assert histogram.quantile(0.5) == us(250) < histogram.quantile(1.0) < us(300)
        assert list(histogram.bounds) == sorted(set(histogram.bounds))


def test_values_are_removed_by_their_first_label_or_all_of_a_metric() -> None:
    stats = Stats()
    for name in ("one", "two", "three"):
        stats.set("horologe_application_model_loss_total", name, "m", to=1)
        stats.observe("horologe_application_request_seconds", name, value=us(1))
    stats.set("horologe_pages_free", "one", "0", to=1)
    stats.remove_values("horologe_application_", "one", "two")
    assert {key[1] for key in (*stats.values, *stats.histograms)} == {"three", "one"}
    stats.remove_values("horologe_application_")
    assert ([*stats.values], stats.histograms) == ([("horologe_pages_free", "one", "0")], {})


def test_every_metric_has_a_help_text_and_seconds_are_no_counters() -> None:
    for name, metric in METRICS.items():
        assert metric.help
        if name.endswith("_seconds"):
            assert metric.kind in ("histogram", "gauge")


def test_every_metric_that_services_count_is_declared() -> None:
    """A metric that is counted but not in `METRICS` would fail only when it is exported."""
    names = set()
    for path in (Path(__file__).parents[3] / "services").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                continue
            first, receiver = node.args[0], ast.unparse(node.func.value)
            if node.func.attr not in ("count", "set", "observe") or not receiver.endswith("stats"):
                continue
            if isinstance(first, ast.Constant):
                names.add(first.value)
    assert len(names) >= 20
    assert names <= METRICS.keys()


def test_counters_of_many_models_exist_once_they_have_a_request() -> None:
    stats, names = Stats(), [f"m{number}" for number in range(10 * MODELS_AT_ZERO)]
    counters = ModelCounters(stats, "horologe_model_failures_total", ("error", "hang"))
    counters.announce([a_spec(name) for name in names])
    assert len(stats.values) == 2 * MODELS_AT_ZERO
    counters.create(names[-1], "1")
    counters.count(names[-2], "1", "hang")
    counters.announce([a_spec(name) for name in names])
    assert len(stats.values) == 2 * (MODELS_AT_ZERO + 2)
    assert [value for key, value in stats.values.items() if value] == [1]


def test_counters_start_at_zero_and_keep_their_counts() -> None:
    stats = Stats()
    stats.count("horologe_actions_total", "infer", "FAILED")
    stats.create_counters("horologe_actions_total", ("load", "infer"), ("FAILED", "REFUSED"))
    samples = read_samples([stats])
    values = {(sample.labels["action"], sample.labels["status"]): sample.value for sample in samples}
    assert values == {
        ("infer", "FAILED"): 1, ("infer", "REFUSED"): 0, ("load", "FAILED"): 0, ("load", "REFUSED"): 0
    }  # fmt: skip
