"""The part that limits a running system, from the metrics of its processes."""

from __future__ import annotations

import pytest

from horologe_cli.doctor.limit_checks import SAMPLE_S, Usage, check_limit, parse_usage

IDLE = {"edge": Usage("edge", 5.0), "first": Usage("worker", 3.0, 1.0), "second": Usage("worker", 3.0, 1.0)}
PAGE = """# TYPE horologe_build_info gauge
horologe_build_info{service="worker",version="0.2.0",python="3.11"} 1.0
process_cpu_seconds_total 4.5
horologe_lane_busy_seconds_total{lane="exec"} 2.25
horologe_lane_busy_seconds_total{lane="load"} 9.0
"""


@pytest.mark.parametrize(
    ("used", "level", "found"),
    [
        ({}, "ok", "edge: busy edge 0%, worker 0%, device 0%"),
        ({"edge": Usage("edge", 5.9)}, "warn", "edge: busy edge 90%, worker 0%, device 0%"),
        ({"first": Usage("worker", 4.0, 1.9)}, "ok", "device: busy device 45%, worker 10%, edge 0%"),
        ({"first": Usage("worker", 3.8, 1.0)}, "warn", "worker: busy worker 80%, edge 0%, device 0%"),
        (
            {"first": Usage("worker", 4.0, 1.9), "second": Usage("worker", 4.0, 2.0)},
            "warn",
            "device: busy device 95%, worker 10%, edge 0%",
        ),
    ],
)
def test_the_busiest_part_is_the_limit(used: dict[str, Usage], level: str, found: str) -> None:
    readings = [IDLE, {**IDLE, **used}]
    (finding,) = check_limit(lambda: readings.pop(0), lambda seconds: None)
    assert SAMPLE_S == 1.0
    assert (finding.level, finding.found) == (level, found)
    assert bool(finding.hint) == (level == "warn")


def test_without_a_running_system_there_is_no_limit() -> None:
    assert not list(check_limit(dict, lambda seconds: None))


def test_usage_is_read_from_metrics() -> None:
    assert parse_usage(PAGE) == Usage("worker", 4.5, 2.25)
    with pytest.raises(ValueError, match="not a process of Horologe"):
        parse_usage("process_cpu_seconds_total 1.0\n")
