"""Series of `promtool test rules`, recorded from a Prometheus."""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING

from dashboard_queries import ask  # its folder is on the path of prometheus_server

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def record_series(
    prometheus: str, metrics: Iterable[str], start_s: float, scrapes: int, interval_s: int, instances: Mapping[str, str]
) -> dict[str, str]:
    """Return the values of each series in promtool's notation, one for each scrape from `start_s` on.

    `instances`: names to put in the place of addresses.
    """
    recorded = {}
    for metric in sorted(metrics):
        query = f"{metric}[{scrapes * interval_s}s]"
        for series in ask(prometheus, "query", query=query, time=start_s + scrapes * interval_s)["result"]:
            labels = series["metric"] | {"instance": instances[series["metric"]["instance"]]}
            text = ",".join(f"{name}={json.dumps(labels[name])}" for name in sorted(labels) if name != "__name__")
            values = {int((at_s - start_s) // interval_s): float(value) for at_s, value in series["values"]}
            recorded[f"{metric}{{{text}}}"] = encode_values([values.get(number) for number in range(scrapes)])
    return recorded


def encode_values(values: Sequence[float | None]) -> str:
    """Return values in promtool's notation. None: the scrape failed, which ends the series with a stale marker."""
    words = []
    ended = True
    for value, group in groupby(values):
        count = len(list(group))
        if value is None:
            missing = count if ended else count - 1
            words += [] if ended else ["stale"]
            words += [f"_x{missing}"] if missing else []
        else:
            number = f"{value:.9f}".rstrip("0").rstrip(".")
            words.append(f"{number}x{count - 1}" if count > 1 else number)
        ended = value is None
    return " ".join(words)
