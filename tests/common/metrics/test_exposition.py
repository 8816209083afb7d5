"""The pages of metrics: the text format, native histograms in protobuf, and the limit of models."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest

from common.exposition import LATENCY, all_metrics, read_fields, read_samples, read_varint, render_text
from horologe_common.clock import ms, s, us
from horologe_common.core.buckets import NATIVE_NS, classic_bounds
from horologe_common.core.instruments import Histogram, Stats
from horologe_common.metrics import protobuf_exposition
from horologe_common.metrics.exposition import NAMED_MODELS, OTHER, ModelLimit, TextPage, group_series
from horologe_common.metrics.metric_definitions import METRICS
from horologe_common.metrics.process_stats import process_stats
from selector.selector_harness import ApplicationHarness

PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian package prometheus)")
def test_promtool_has_nothing_to_say_about_any_metric() -> None:
    assert PROMTOOL is not None
    page = render_text([all_metrics()])
    result = subprocess.run([PROMTOOL, "check", "metrics"], input=page, capture_output=True, text=True, timeout=30)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_label_values_are_escaped() -> None:
    stats = Stats()
    name = 'a "quoted" \\ name\n'
    stats.set("nv_inference_request_success", name, "1", to=2)
    (sample,) = read_samples([stats])
    assert sample.labels == {"model": name, "version": "1"}


def test_values_are_exact_and_bools_and_infinity_are_numbers() -> None:
    stats = Stats()
    stats.set("horologe_tuner_blind", to=True)
    stats.set("horologe_staged_bytes", to=2**53 + 1)
    stats.set("horologe_profiler_keys", to=float("inf"))
    values = {sample.name: sample.value for sample in read_samples([stats])}
    assert values == {
        "horologe_tuner_blind": 1,
        "horologe_staged_bytes": 2**53 + 1,
        "horologe_profiler_keys": float("inf"),
    }
    assert f"horologe_staged_bytes {2**53 + 1}\n" in render_text([stats])


def test_classic_buckets_count_exactly_what_is_below_their_bounds() -> None:
    stats = Stats()
    values = [0, us(10), us(10) + 1, ms(1), ms(1) + 1, s(10), s(100)]
    for value in values:
        stats.observe(LATENCY, "m", "1", value=value)
    buckets = {sample.labels["le"]: sample.value for sample in read_samples([stats]) if sample.name.endswith("_bucket")}
    assert list(buckets) == [*(repr(bound / 1e9) for bound in classic_bounds(LATENCY)), "+Inf"]
    for bound in classic_bounds(LATENCY):
        assert buckets[repr(bound / 1e9)] == sum(value <= bound for value in values)
    assert buckets["+Inf"] == len(values)


def test_lines_are_kept_between_pages_only_for_series_that_exist() -> None:
    page, stats = TextPage(), Stats()
    stats.set("horologe_pages_free", "w", "0", to=1)
    first = page.render(group_series([stats]))
    assert page.render(group_series([stats])) == first
    stats.remove_values("horologe_pages_free")
    assert page.render(group_series([stats])) == b""


def test_labels_hold_no_free_text_of_clients() -> None:
    """Contexts, request ids and unknown names have no label: 10,000 contexts add no series."""
    labels = {label for metric in METRICS.values() for label in metric.labels}
    assert labels == {
        "model", "version", "application", "pipeline", "stage", "workload", "key",  # declared, or in the catalogue
        "worker", "share", "incarnation", "device", "type", "hardware", "peer", "gpu_uuid",  # connected
        "status", "reason", "action", "side", "lane", "cause", "state", "fate", "result", "direction", "mode", "window",
        "service", "python", "message",
    }  # fmt: skip


def test_contexts_add_no_series() -> None:
    harness = ApplicationHarness(models=("a",))
    sizes = []
    harness.checks = False  # each looks at all open queries
    for number in range(10_000):
        harness.query(number, context=f"user-{number}", hashed=number.to_bytes(32, "big"))
        harness.selector.out.clear()
        if number in (10, 9_999):
            harness.selector.refresh_stats()
            stats = harness.selector.stats
            sizes.append(len(stats.values) + len(stats.histograms))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("models", [NAMED_MODELS, 10 * NAMED_MODELS])
def test_the_number_of_series_is_bounded(models: int) -> None:
    """The frontend has the most: two histograms, two counters and twelve failures for each model."""
    stats, limit = Stats(), ModelLimit()
    for number in range(models):
        labels = f"m{number}", "1"
        stats.observe(LATENCY, *labels, value=ms(number % 100))
        stats.set("nv_inference_request_success", *labels, to=1)
        stats.set("nv_inference_pending_request_count", *labels, to=0)
    groups = group_series([stats])
    limit.fold(groups)
    for name, value in (
        (LATENCY, None),
        ("nv_inference_request_success", models),
        ("nv_inference_pending_request_count", 0),
    ):
        assert len(groups[name]) <= NAMED_MODELS + 1
        if value is not None:
            assert sum(groups[name].values()) == value  # type: ignore[arg-type]
    histograms = [value for value in groups[LATENCY].values() if isinstance(value, Histogram)]
    assert sum(histogram.total for histogram in histograms) == models
    assert ((OTHER, "") in groups[LATENCY]) == (models > NAMED_MODELS)


def test_models_with_requests_keep_their_names_and_idle_ones_make_room() -> None:
    stats, limit = Stats(), ModelLimit(2)
    name = "nv_inference_request_success"
    for model, count in (("idle", 0), ("one", 1), ("idler", 0)):
        stats.set(name, model, "1", to=count)
    groups = group_series([stats])
    limit.fold(groups)
    assert groups[name] == {("idle", "1"): 0, ("one", "1"): 1, (OTHER, ""): 0}
    stats.set(name, "two", "1", to=5)
    stats.set(name, "three", "1", to=7)
    groups = group_series([stats])
    limit.fold(groups)
    assert groups[name] == {("one", "1"): 1, ("two", "1"): 5, (OTHER, ""): 7}


def unpack_varints(packed: bytes) -> list[int]:
    values, at = [], 0
    while at < len(packed):
        value, at = read_varint(packed, at)
        values.append(value)
    return values


def unzigzag(value: int) -> int:
    return value >> 1 if value % 2 == 0 else -(value + 1 >> 1)


def native_buckets(histogram: list[tuple[int, Any]]) -> dict[int, int]:
    """Return the counts by index of a Histogram message."""
    deltas = [unzigzag(value) for key, packed in histogram if key == 13 for value in unpack_varints(packed)]
    buckets, index, count = {}, 0, 0
    for span in (dict(read_fields(value)) for key, value in histogram if key == 12):
        index += unzigzag(span[1])
        for _ in range(span[2]):
            count += deltas.pop(0)
            buckets[index] = count
            index += 1
    assert not deltas
    return buckets


def test_native_buckets_hold_the_values_between_their_bounds() -> None:
    stats = Stats()
    values = [0, us(5), NATIVE_NS[0] + 1, us(100), us(101), ms(3), s(1), s(60), s(1000)]
    for value in values:
        stats.observe(LATENCY, "m", "1", value=value)
    page = protobuf_exposition.render(group_series([stats]), 0)
    ((_, message),) = read_fields(b"\x0a" + page)  # as the first field of a message: each family follows its length
    family = dict(read_fields(message))
    assert (family[1].decode(), family[3]) == (LATENCY, 4)
    histogram = list(read_fields(dict(read_fields(family[4]))[7]))
    numbers = dict(histogram)
    assert numbers[1] == len(values)
    assert unzigzag(numbers[5]) == 3
    assert numbers[7] == 2
    assert numbers[6] * 1e9 == pytest.approx(NATIVE_NS[0], abs=1)
    buckets = native_buckets(histogram)
    assert sum(buckets.values()) + numbers[7] == len(values)
    assert buckets.pop(49) == 1, "above 64 s"
    for index, count in buckets.items():
        low, high = (2 ** (at / 8) * 1e9 for at in (index - 1, index))
        assert count == sum(low < value <= high for value in values)


def test_process_metrics_are_those_of_this_process() -> None:
    values = {sample.name: sample.value for sample in read_samples([process_stats("edge")])}
    assert values["process_resident_memory_bytes"] > 1e6
    assert values["process_open_fds"] <= values["process_max_fds"]
    assert values["horologe_build_info"] == 1
