"""Reads metrics as Prometheus would."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from horologe_common.service.exposition import TextPage, group_series

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.samples import Sample

    from horologe_common.core.instruments import Stats


def render_text(stats: Iterable[Stats]) -> str:
    """Return the page of these metrics in the text format."""
    return TextPage().render(group_series(stats)).decode()


def read_samples(stats: Iterable[Stats]) -> list[Sample]:
    """Return the samples of the page that these metrics give."""
    return [sample for family in text_string_to_metric_families(render_text(stats)) for sample in family.samples]
