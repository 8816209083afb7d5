"""What a core counts, as Prometheus reads it."""

from __future__ import annotations

import socket

import pytest

from horologe_common.clock import us
from horologe_common.core.counters import Stats
from horologe_common.service.metrics import METRICS, MetricsSettings, families, serve
from horologe_common.service.settings import SettingsError


def test_an_address_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        bind = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(SettingsError, match=f"metrics.bind: got {bind}"):
            serve(MetricsSettings(bind), tuple, lambda: True)


def test_error_histograms_tell_a_quarter_of_a_millisecond_from_a_third() -> None:
    stats = Stats()
    for name in ("horologe_prediction_error_seconds", "horologe_completion_error_seconds"):
        for value in (us(250), us(251)):
            stats.observe(name, "infer", "under", value=value)
        histogram = stats.histograms[name, "infer", "under"]
        assert (histogram.quantile(0.5), histogram.quantile(1.0)) == (us(250), us(300))
        assert list(histogram.bounds) == sorted(set(histogram.bounds))


def test_what_lanes_do_is_scraped_in_seconds() -> None:
    stats = Stats()
    stats.count("horologe_lane_operations_total", "exec", "OK")
    stats.count("horologe_lane_busy_seconds_total", "exec", by=0.25)
    stats.observe("horologe_lane_wait_seconds", "exec", value=us(40))
    samples = {sample.name: sample for family in families([stats]) for sample in family.samples}
    assert samples["horologe_lane_operations_total"].labels == {"lane": "exec", "status": "OK"}
    assert samples["horologe_lane_busy_seconds_total"].value == 0.25
    assert samples["horologe_lane_wait_seconds_sum"].value == pytest.approx(40e-6)


def test_values_are_forgotten_by_their_first_label_or_all_of_a_kind() -> None:
    stats = Stats()
    for name in ("one", "two", "three"):
        stats.set("horologe_application_model_loss_total", name, "m", to=1)
        stats.observe("horologe_application_request_seconds", name, value=us(1))
    stats.set("horologe_pages_free", "one", "0", to=1)
    stats.remove_values("horologe_application_", "one", "two")
    assert {key[1] for key in (*stats.values, *stats.histograms)} == {"three", "one"}
    stats.remove_values("horologe_application_")
    assert ([*stats.values], stats.histograms) == ([("horologe_pages_free", "one", "0")], {})


def test_every_metric_says_what_it_is_and_seconds_are_histograms_or_totals() -> None:
    for name, metric in METRICS.items():
        assert metric.help
        if name.endswith("_seconds"):
            assert metric.kind == "histogram"
