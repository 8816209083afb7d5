"""Dashboard `workers`: lanes, memory, speed and clocks of workers and devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_dashboards.expressions import quantile, total
from horologe_dashboards.panels import Limits, Query, graph, page

if TYPE_CHECKING:
    from grafana_foundation_sdk.models.dashboard import Dashboard

INSTANCE = 'instance=~"$instance"'

ROWS = [
    (
        "Lanes",
        [
            graph(
                "Busy time",
                "Part of the time in which a lane is busy, summed over the shares of a worker.",
                "percentunit",
                Query(total("horologe_lane_busy_seconds_total", INSTANCE, "instance, lane"), "{{instance}} {{lane}}"),
                limits=Limits.above(0.8, 0.95),
            ),
            graph(
                "Queueing delay of lanes",
                "Begin of an operation after the earliest time at which it could begin, 99th percentile.",
                "s",
                Query(
                    quantile(0.99, "horologe_lane_wait_seconds", INSTANCE, "instance, lane"), "{{instance}} {{lane}}"
                ),
            ),
            graph(
                "Start error",
                "EXEC begin after window start, end of the previous EXEC, and arrival of the inputs: "
                "how late the worker wakes up.",
                "s",
                Query(quantile(0.5, "horologe_start_error_seconds", INSTANCE, "instance"), "p50 {{instance}}"),
                Query(quantile(0.99, "horologe_start_error_seconds", INSTANCE, "instance"), "p99 {{instance}}"),
                limits=Limits.above(0.001, 0.005),
            ),
            graph(
                "Operations",
                "Finished operations by lane and status.",
                "ops",
                Query(total("horologe_lane_operations_total", INSTANCE, "lane, status"), "{{lane}} {{status}}"),
            ),
        ],
    ),
    (
        "Memory",
        [
            graph(
                "Pages in use",
                "Part of the 16 MiB pages of a share that hold models.",
                "percentunit",
                Query(
                    f"1 - horologe_pages_free{{{INSTANCE}}} / horologe_pages_capacity{{{INSTANCE}}}",
                    "{{worker}} share {{share}}",
                ),
                limits=Limits.above(0.9, 1),
                highest=1,
            ),
            graph(
                "LOADs and UNLOADs",
                "Models that were loaded and unloaded. Steady traffic on all models of a worker "
                "whose pages are too few loads all the time.",
                "ops",
                Query(
                    total("horologe_lane_operations_total", f'lane=~"load|unload",{INSTANCE}', "instance, lane"),
                    "{{instance}} {{lane}}",
                ),
            ),
            graph(
                "Resident memory",
                "Resident memory of the worker processes.",
                "bytes",
                Query(f"process_resident_memory_bytes{{{INSTANCE}}}", "{{instance}}"),
            ),
            graph(
                "Staged inputs",
                "Bytes of inputs held until their outcome is known.",
                "bytes",
                Query("horologe_staged_bytes", "{{instance}}"),
            ),
        ],
    ),
    (
        "Devices",
        [
            graph(
                "Slowness",
                "Recent execution time divided by profiled time. 1: as profiled.",
                "short",
                Query("horologe_device_slowness", "{{worker}} share {{share}}"),
                limits=Limits.above(1.2, 2),
            ),
            graph(
                "Shares of devices",
                "Sum of the shares that workers own.",
                "percent",
                Query("horologe_device_share_percent", "{{device}} {{type}}"),
                limits=Limits.above(100.5, 150),
            ),
            graph(
                "Failures of models",
                "Failed operations by cause.",
                "ops",
                Query(total("horologe_model_failures_total", INSTANCE, "cause"), "{{cause}}"),
                limits=Limits.above(0.01, 1),
            ),
        ],
    ),
    (
        "Clocks",
        [
            graph(
                "Drift of clocks",
                "Change of the offset between a worker's clock and the controller's, in "
                "microseconds per second. Clocks of one machine do not drift.",
                "ppm",
                Query("1e6 * abs(deriv(horologe_clock_offset_seconds[5m]))", "{{worker}}"),
                limits=Limits.above(100, 250),
            ),
            graph(
                "Error of clock offsets",
                "Half of the shortest round trip to a worker.",
                "s",
                Query("horologe_clock_error_seconds", "{{worker}}"),
                limits=Limits.above(0.001, 0.005),
            ),
        ],
    ),
]


def build() -> Dashboard:
    """Return the dashboard."""
    return page(
        "workers",
        "Horologe: workers and devices",
        "Lanes, memory, speed and clocks of workers and devices.",
        ROWS,
        ["instance horologe_lane_busy_seconds_total"],
    )
