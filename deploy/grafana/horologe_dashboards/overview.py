"""Dashboard `overview`: are requests answered in time, how many, and is there room for more?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_dashboards.expressions import ATTAINMENT, IN_TIME, MISSED, SATURATION, quantile, total
from horologe_dashboards.panels import Limits, Query, graph, number, page

if TYPE_CHECKING:
    from grafana_foundation_sdk.models.dashboard import Dashboard

ROWS = [
    (
        "Now",
        [
            number(
                "Attainment",
                "Part of the valid requests that were answered in time. Refused, late, lost and failed ones miss.",
                "percentunit",
                Query(ATTAINMENT),
                Limits.below(0.99, 0.999),
            ),
            number(
                "Goodput", "Requests answered in time, of models, pipelines and applications.", "reqps", Query(IN_TIME)
            ),
            number(
                "Refused",
                "Part of the requests to models that the controller refused.",
                "percentunit",
                Query(f"{total('horologe_refused_total')} / ({IN_TIME} + {MISSED})"),
                Limits.above(0.01, 0.05),
            ),
            number(
                "Workers ready",
                "Connected workers that get work.",
                "short",
                Query('sum(horologe_workers{state="ready"})'),
                Limits.below(0.5, 1),
            ),
        ],
    ),
    (
        "Requests",
        [
            graph(
                "Offered and answered in time",
                "All valid requests, and those answered in time.",
                "reqps",
                Query(f"{IN_TIME} + {MISSED}", "offered"),
                Query(IN_TIME, "in time"),
            ),
            graph(
                "Not answered in time",
                "Requests by the reason why they were not answered OK.",
                "reqps",
                Query(total("nv_inference_request_failure", by="reason"), "{{reason}}"),
                stacked=True,
            ),
            graph(
                "Latency",
                "Arrival to answer at the frontend, with refused requests.",
                "s",
                Query(quantile(0.5, "horologe_request_seconds"), "p50"),
                Query(quantile(0.99, "horologe_request_seconds"), "p99", exemplars=True),
                Query(quantile(0.999, "horologe_request_seconds"), "p99.9"),
            ),
        ],
    ),
    (
        "Room",
        [
            graph(
                "Slack",
                "Time left until the deadline, for requests answered in time: the least 1% and half.",
                "s",
                Query(quantile(0.01, "horologe_slack_seconds"), "p1", exemplars=True),
                Query(quantile(0.5, "horologe_slack_seconds"), "p50"),
            ),
            graph(
                "Saturation",
                "Part of the time in which a worker executes. 1: a share that is never idle.",
                "percentunit",
                Query(SATURATION, "{{instance}}"),
                limits=Limits.above(0.8, 0.95),
            ),
            graph(
                "Refusals",
                "Refused requests by reason.",
                "reqps",
                Query(total("horologe_refused_total", by="reason"), "{{reason}}"),
                stacked=True,
            ),
        ],
    ),
    (
        "Processes",
        [
            graph(
                "CPU",
                "CPU time per second of each process.",
                "percentunit",
                Query("rate(process_cpu_seconds_total[$__rate_interval])", "{{job}} {{instance}}"),
            ),
            graph(
                "Memory",
                "Resident memory of each process.",
                "bytes",
                Query("process_resident_memory_bytes", "{{job}} {{instance}}"),
            ),
            graph(
                "Versions",
                "Processes by version. Two versions at a time: an upgrade is under way.",
                "short",
                Query("count by (version) (horologe_build_info)", "{{version}}"),
                stacked=True,
            ),
        ],
    ),
]


def build() -> Dashboard:
    """Return the dashboard."""
    return page(
        "overview",
        "Horologe: overview",
        "Attainment, goodput and latency of all requests, and the state of the processes.",
        ROWS,
    )
