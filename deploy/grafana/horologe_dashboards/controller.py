"""Dashboard `controller`: what is queued and refused, how good are the predictions, which scheduler is in use?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_dashboards.expressions import quantile, rate, total
from horologe_dashboards.panels import Limits, Query, graph, page

if TYPE_CHECKING:
    from grafana_foundation_sdk.models.dashboard import Dashboard

PREDICTION, COMPLETION = "horologe_prediction_error_seconds", "horologe_completion_error_seconds"
RATIO = f"{total('horologe_exec_seconds_total')} / {total('horologe_expected_exec_seconds_total')}"

ROWS = [
    (
        "Queue",
        [
            graph(
                "Open requests",
                "Requests that wait for execution, or are executed.",
                "short",
                Query("sum(nv_inference_pending_request_count)", "open"),
            ),
            graph(
                "Oldest request",
                "Age of the oldest queued request that has a deadline.",
                "s",
                Query("max(horologe_oldest_request_seconds)", "age"),
                limits=Limits.above(1, 5),
            ),
            graph(
                "Slack at admission",
                "Time left until the deadline when the controller receives a request.",
                "s",
                Query(quantile(0.01, "horologe_admission_slack_seconds"), "p1"),
                Query(quantile(0.5, "horologe_admission_slack_seconds"), "p50"),
            ),
        ],
    ),
    (
        "Decisions",
        [
            graph(
                "Actions",
                "Finished LOADs and INFERs, by status.",
                "ops",
                Query(total("horologe_actions_total", by="action, status"), "{{action}} {{status}}"),
            ),
            graph(
                "Refusals",
                "Refused requests by reason.",
                "reqps",
                Query(total("horologe_refused_total", by="reason"), "{{reason}}"),
                stacked=True,
            ),
            graph(
                "Rows in a batch",
                "Mean rows of the executed batches, and the largest 1%.",
                "short",
                Query(f"{total('horologe_batch_rows_sum')} / {total('horologe_batch_rows_count')}", "mean"),
                Query(quantile(0.99, "horologe_batch_rows"), "p99"),
            ),
        ],
    ),
    (
        "Predictions",
        [
            graph(
                "Actual divided by predicted time",
                "Execution time of all batches divided by its prediction. The "
                "prediction is a high percentile, so that values below 1 are normal.",
                "short",
                Query(RATIO, "actual / predicted"),
                limits=Limits.above(1, 1.2),
            ),
            graph(
                "Prediction error",
                "Actual minus predicted duration, 99th percentile. under: it took longer.",
                "s",
                Query(quantile(0.99, PREDICTION, by="action, side"), "{{action}} {{side}}"),
            ),
            graph(
                "Completion error",
                "Actual minus planned end, 99th percentile. under: it ended later.",
                "s",
                Query(quantile(0.99, COMPLETION, by="action, side"), "{{action}} {{side}}"),
            ),
        ],
    ),
    (
        "Health",
        [
            graph(
                "Workers",
                "Connected workers by state.",
                "short",
                Query("sum by (state) (horologe_workers)", "{{state}}"),
                stacked=True,
            ),
            graph(
                "Links",
                "Complete links of each process, and links lost per second.",
                "short",
                Query("horologe_links_connected", "connected {{instance}}"),
                Query("sum(rate(horologe_links_made_total[$__rate_interval]))", "made per second"),
            ),
            graph(
                "Faults of cores",
                "Exceptions in a core in five minutes. Each has a traceback in the log.",
                "short",
                Query("sum by (instance) (increase(horologe_core_faults_total[5m]))", "{{instance}}"),
                limits=Limits.above(0.5, 1),
            ),
            graph(
                "Dropped messages",
                "Messages whose receiver has disconnected, restarted, or does not read.",
                "ops",
                Query(rate("horologe_messages_dropped_total"), "{{instance}}"),
                limits=Limits.above(1, 100),
            ),
        ],
    ),
]


def build() -> Dashboard:
    """Return the dashboard."""
    return page(
        "controller", "Horologe: controller", "Queues, admission, batches, errors of predictions, schedulers.", ROWS
    )
