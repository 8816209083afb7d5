"""Dashboard `models`: requests, latency, batches, memory and cost of each model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_dashboards.expressions import MISSES, quantile, total
from horologe_dashboards.panels import Limits, Query, graph, page

if TYPE_CHECKING:
    from grafana_foundation_sdk.models.dashboard import Dashboard

MODEL = 'model=~"$model"'
SUCCESS = total("nv_inference_request_success", MODEL, "model")
MISSED = total("nv_inference_request_failure", f'reason=~"{MISSES}",{MODEL}', "model")
EXEC = total("horologe_exec_seconds_total", MODEL, "model")
BATCHES = total("horologe_batch_rows_count", MODEL, "model")

ROWS = [
    (
        "Requests",
        [
            graph("Answered in time", "Requests answered in time.", "reqps", Query(SUCCESS, "{{model}}")),
            graph(
                "Attainment",
                "Part of the valid requests that were answered in time.",
                "percentunit",
                Query(f"{SUCCESS} / ({SUCCESS} + {MISSED})", "{{model}}"),
                limits=Limits.below(0.99, 0.999),
                highest=1,
            ),
            graph(
                "Failures",
                "Requests not answered OK, by status.",
                "reqps",
                Query(total("nv_inference_request_failure", MODEL, "model, reason"), "{{model}} {{reason}}"),
            ),
            graph(
                "Refusals",
                "Requests refused by the controller, by reason.",
                "reqps",
                Query(total("horologe_refused_total", MODEL, "model, reason"), "{{model}} {{reason}}"),
            ),
        ],
    ),
    (
        "Time",
        [
            graph(
                "Latency, p99",
                "Arrival to answer at the frontend.",
                "s",
                Query(quantile(0.99, "horologe_request_seconds", MODEL, "model"), "{{model}}", exemplars=True),
            ),
            graph(
                "Slack, p1",
                "Time left until the deadline, the least 1% of the requests answered in time.",
                "s",
                Query(quantile(0.01, "horologe_slack_seconds", MODEL, "model"), "{{model}}", exemplars=True),
            ),
            graph(
                "Queueing delay, mean",
                "Arrival to execution of the requests answered OK.",
                "s",
                Query(f"{total('horologe_queue_seconds_total', MODEL, 'model')} / {SUCCESS}", "{{model}}"),
            ),
            graph(
                "Execution of a batch, mean",
                "Execution time of a batch.",
                "s",
                Query(f"{EXEC} / {BATCHES}", "{{model}}"),
            ),
        ],
    ),
    (
        "Batches and predictions",
        [
            graph(
                "Rows in a batch, mean",
                "Rows of the executed batches.",
                "short",
                Query(f"{total('horologe_batch_rows_sum', MODEL, 'model')} / {BATCHES}", "{{model}}"),
            ),
            graph(
                "Actual divided by predicted time",
                "Values above 1: the model takes longer than predicted.",
                "short",
                Query(f"{EXEC} / {total('horologe_expected_exec_seconds_total', MODEL, 'model')}", "{{model}}"),
                limits=Limits.above(1, 1.2),
            ),
            graph(
                "Planned by distributions",
                "1: execution times depend on the input.",
                "bool",
                Query(f"horologe_model_dynamic{{{MODEL}}}", "{{model}} {{version}}"),
            ),
        ],
    ),
    (
        "Memory and cost",
        [
            graph(
                "Resident bytes",
                "Bytes of the pages of a model on all shares.",
                "bytes",
                Query(f"sum by (model) (horologe_model_resident_bytes{{{MODEL}}})", "{{model}}"),
                stacked=True,
            ),
            graph(
                "Resident shares",
                "Shares that hold the model.",
                "short",
                Query(f"sum by (model) (horologe_model_resident_shares{{{MODEL}}})", "{{model}}"),
            ),
            graph(
                "Device time per row",
                "Execution time divided by executed rows: what a request costs.",
                "s",
                Query(f"{EXEC} / {total('horologe_batch_rows_sum', MODEL, 'model')}", "{{model}}"),
            ),
            graph(
                "Cache hits",
                "Part of the look-ups in the prediction cache that found a prediction.",
                "percentunit",
                Query(
                    f"{total('nv_cache_num_hits_per_model', MODEL, 'model')} / "
                    f"({total('nv_cache_num_hits_per_model', MODEL, 'model')} + "
                    f"{total('nv_cache_num_misses_per_model', MODEL, 'model')})",
                    "{{model}}",
                ),
                highest=1,
            ),
        ],
    ),
]


def build() -> Dashboard:
    """Return the dashboard."""
    return page(
        "models",
        "Horologe: models",
        "Requests, latency, batches, memory and cost of each model. Pipelines count as models.",
        ROWS,
        ["model nv_inference_request_success"],
    )
