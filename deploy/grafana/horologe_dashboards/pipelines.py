"""Dashboard `pipelines`: stages of pipelines, decisions of the tuner, and work of the profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_dashboards.expressions import or_zero, total
from horologe_dashboards.panels import Limits, Query, graph, page

if TYPE_CHECKING:
    from grafana_foundation_sdk.models.dashboard import Dashboard

PIPELINE = 'pipeline=~"$pipeline"'
CALLS = total("horologe_pipeline_calls_total", PIPELINE, "pipeline, stage")
DROPS = total("horologe_pipeline_drops_total", PIPELINE, "pipeline, stage")

ROWS = [
    (
        "Pipelines",
        [
            graph(
                "Open queries",
                "Queries of a pipeline that are not finished, and their limit.",
                "short",
                Query(f"horologe_pipeline_open{{{PIPELINE}}}", "{{pipeline}}"),
                Query(f"horologe_pipeline_open_limit{{{PIPELINE}}}", "limit {{pipeline}}"),
            ),
            graph("Calls", "Calls of a stage with outputs.", "ops", Query(CALLS, "{{pipeline}} {{stage}}")),
            graph(
                "Dropped calls",
                "Part of the calls of a stage without outputs.",
                "percentunit",
                Query(f"{DROPS} / ({CALLS} + {DROPS})", "{{pipeline}} {{stage}}"),
                limits=Limits.above(0.01, 0.05),
                highest=1,
            ),
            graph(
                "Device time",
                "Device time of the calls, by result of their query. Time of failed queries is wasted.",
                "percentunit",
                Query(
                    total("horologe_pipeline_device_seconds_total", PIPELINE, "pipeline, result"),
                    "{{pipeline}} {{result}}",
                ),
                stacked=True,
            ),
            graph(
                "Restarts of drivers",
                "Processes of drivers that have ended, in five minutes.",
                "short",
                Query(f"increase(horologe_pipeline_driver_restarts_total{{{PIPELINE}}}[5m])", "{{pipeline}}"),
                limits=Limits.above(1, 3),
            ),
        ],
    ),
    (
        "Tuner: replicas",
        [
            graph(
                "Replicas",
                "Replicas that a plan has at present.",
                "short",
                Query("horologe_tuner_replicas", "{{pipeline}} {{stage}}"),
            ),
            graph(
                "Rate by window",
                "Highest rate of the last check, by window in seconds.",
                "reqps",
                Query("horologe_tuner_rate", "{{pipeline}} {{window}} s"),
            ),
            graph(
                "Workers",
                "Workers, wanted and running.",
                "short",
                Query("horologe_tuner_workers", "{{hardware}} {{state}}"),
            ),
            graph(
                "Decisions",
                "Changes of replicas in five minutes.",
                "short",
                Query(
                    "sum by (pipeline, direction) (increase(horologe_tuner_decisions_total[5m]))",
                    "{{pipeline}} {{direction}}",
                ),
                limits=Limits.above(4, 10),
            ),
        ],
    ),
    (
        "Tuner: shares",
        [
            graph(
                "Share of a workload",
                "Percent of the device that serves a workload.",
                "percent",
                Query("horologe_tuner_share_percent", "{{workload}} {{device}}"),
            ),
            graph(
                "Beyond the SLO",
                "Part of a workload's requests in the last second that exceeded its SLO.",
                "percentunit",
                Query("horologe_tuner_beyond_slo", "{{workload}}"),
                limits=Limits.above(0.01, 0.05),
                highest=1,
            ),
            graph(
                "Switches",
                "Workloads that switched to another share in five minutes, by reason.",
                "short",
                Query(
                    "sum by (workload, reason) (increase(horologe_tuner_switches_total[5m]))", "{{workload}} {{reason}}"
                ),
                limits=Limits.above(2, 6),
            ),
            graph(
                "Blind",
                "1 while the tuner sees no arrivals and changes nothing.",
                "bool",
                Query("max(horologe_tuner_blind)", "blind"),
                limits=Limits.above(0.5, 1),
            ),
            graph(
                "Errors of the scaler",
                "Failed calls of the scaler in five minutes.",
                "short",
                Query(or_zero("sum(increase(horologe_tuner_scaler_errors_total[5m]))"), "errors"),
                limits=Limits.above(0.5, 3),
            ),
        ],
    ),
    (
        "Profiler",
        [
            graph(
                "Samples",
                "Requests that the profiler receives, by fate.",
                "ops",
                Query(total("horologe_profiler_samples_total", by="fate"), "{{fate}}"),
                stacked=True,
            ),
            graph(
                "Runs",
                "Samples run alone, by status. REFUSED: deadlines leave no time.",
                "ops",
                Query(total("horologe_profiler_runs_total", by="status"), "{{status}}"),
                stacked=True,
            ),
            graph(
                "Error of the fit",
                "Median error of c0 + c1 k l over recent batches.",
                "percentunit",
                Query("horologe_profiler_fit_error", "{{model}}"),
                limits=Limits.above(0.1, 0.3),
            ),
            graph(
                "Waiting samples",
                "Samples that wait for a run.",
                "short",
                Query("horologe_profiler_queued_samples", "waiting"),
            ),
        ],
    ),
]


def build() -> Dashboard:
    """Return the dashboard."""
    return page(
        "pipelines",
        "Horologe: pipelines, tuner and profiler",
        "Stages of pipelines, decisions of the tuner, and work of the profiler.",
        ROWS,
        ["pipeline horologe_pipeline_open"],
    )
