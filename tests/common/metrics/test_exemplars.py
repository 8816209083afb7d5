"""Pages of metrics for a reader that stores exemplars: OpenMetrics, and exemplars in protobuf."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from common.exposition import LATENCY, PROMETHEUS, TRACES, all_metrics, read_fields, read_samples, traced_stats
from horologe_common.clock import ms, s
from horologe_common.core.instruments import Exemplar, Stats
from horologe_common.metrics import protobuf_exposition
from horologe_common.metrics.exposition import OPENMETRICS, TEXT, ModelLimit, TextPage, group_series
from horologe_common.metrics.metric_definitions import METRICS
from horologe_common.metrics.metrics_pages import choose_format

OFFSET_NS = s(1_700_000_000)
"""Unix time minus the monotonic clock."""


def read_openmetrics(stats: Stats) -> Any:
    page = TextPage().render(group_series([stats]), OFFSET_NS).decode()
    assert page.endswith("# EOF\n")
    return list(text_string_to_metric_families(page))  # type: ignore[no-untyped-call]


def test_the_openmetrics_page_has_the_same_samples() -> None:
    stats = all_metrics()
    stats.set("nv_inference_request_success", 'a "quoted" \\ name\n', "1", to=2)
    families = read_openmetrics(stats)
    samples = [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]
    assert samples == [(sample.name, sample.labels, sample.value) for sample in read_samples([stats])]
    types = {family.name: family.type for family in families}
    assert types.keys() == {name.removesuffix("_total") for name in METRICS if not name.endswith("_us")}
    assert types["horologe_actions"] == "counter"
    assert types["nv_inference_count"] == "unknown"
    assert {family.name: family.documentation for family in families}[LATENCY] == METRICS[LATENCY].help


def test_exemplars_are_in_the_buckets_of_their_values() -> None:
    (family,) = read_openmetrics(traced_stats())
    linked = [sample for sample in family.samples if sample.exemplar]
    assert [sample.labels["le"] for sample in linked] == ["1e-05", "0.003", "0.005", "+Inf"]
    for number, sample in enumerate(linked):
        exemplar = sample.exemplar
        assert (exemplar.labels, exemplar.value) == ({"trace_id": f"{number:032x}"}, TRACES[number] / 1e9)
        assert float(exemplar.timestamp) == OFFSET_NS / 1e9 + number


def test_a_bucket_has_the_latest_exemplar_and_sums_of_models_keep_them() -> None:
    stats = traced_stats()
    later = Exemplar("a" * 32, ms(4), s(9))
    stats.histograms[LATENCY, "m", "1"].add_exemplar(later)
    stats.set("nv_inference_request_success", "another", "1", to=1)
    groups = group_series([stats])
    ModelLimit(1).fold(groups)
    page = TextPage().render(groups, 0).decode()
    assert 'le="0.005"} 3 # {trace_id="' + "a" * 32 + '"} 0.004 9.000\n' in page
    assert "trace_id" not in TextPage().render(groups).decode()


def test_protobuf_buckets_have_exemplars() -> None:
    page = protobuf_exposition.render(group_series([traced_stats()]), OFFSET_NS + 5)
    ((_, message),) = read_fields(b"\x0a" + page)
    histogram = list(read_fields(dict(read_fields(dict(read_fields(message))[4]))[7]))
    buckets = [dict(read_fields(value)) for key, value in histogram if key == 3]
    linked = [bucket for bucket in buckets if 3 in bucket]
    assert [bucket[2] for bucket in linked] == [1e-5, 0.003, 0.005, float("inf")]
    assert buckets[-1][1] == dict(histogram)[1] == len(TRACES) + 1
    for number, bucket in enumerate(linked):
        exemplar = dict(read_fields(bucket[3]))
        label = dict(read_fields(exemplar[1]))
        assert (label[1], label[2]) == (b"trace_id", f"{number:032x}".encode())
        assert exemplar[2] == TRACES[number] / 1e9
        assert dict(read_fields(exemplar[3])) == {1: 1_700_000_000 + number, 2: 5}


PROTOBUF = protobuf_exposition.CONTENT_TYPE.replace(" ", "")


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/html, text/plain", TEXT),
        (PROMETHEUS, OPENMETRICS),
        (f"{PROTOBUF},{PROMETHEUS}", protobuf_exposition.MEDIA_TYPE),
        (f"{PROTOBUF};q=0.4,{PROMETHEUS.replace('1.0.0', '1.0.0;q=0.6')}", OPENMETRICS),
        ("application/openmetrics-text; version=1.0.0; q=0, text/plain; q=0.1", TEXT),
        ("application/openmetrics-text;q=nonsense;;,", OPENMETRICS),
    ],
)
def test_the_format_is_the_one_that_the_reader_prefers(accept: str, media_type: str) -> None:
    assert choose_format(accept) == media_type
