"""PromQL that several dashboards use. Alerts use the same, as recording rules."""

from __future__ import annotations

MISSES = "REFUSED|LATE|LOST|FAILED"
"""Statuses that count against the objective. Invalid requests and cancelled ones do not."""
RANGE = "[$__rate_interval]"


def rate(metric: str, matchers: str = "") -> str:
    """Return the rate per second of each series of a counter."""
    return f"rate({metric}{{{matchers}}}{RANGE})" if matchers else f"rate({metric}{RANGE})"


def total(metric: str, matchers: str = "", by: str = "") -> str:
    """Return the rate per second of a counter, added up, or by labels."""
    return f"sum{f' by ({by})' if by else ''} ({rate(metric, matchers)})"


def quantile(q: float, metric: str, matchers: str = "", by: str = "") -> str:
    """Return a quantile of a classic histogram."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q:g}, sum by ({labels}) ({rate(f'{metric}_bucket', matchers)}))"


def or_zero(expression: str) -> str:
    """Return the expression, or 0 where it has no series."""
    return f"({expression} or vector(0))"


IN_TIME = f"{total('nv_inference_request_success')} + " + or_zero(
    total("horologe_application_requests_total", 'status="OK"')
)
"""Goodput: requests answered in time, of models, pipelines and applications."""
MISSED = (
    total("nv_inference_request_failure", f'reason=~"{MISSES}"')
    + " + "
    + or_zero(total("horologe_application_requests_total", f'status=~"{MISSES}"'))
)
ATTAINMENT = f"({IN_TIME}) / ({IN_TIME} + {MISSED})"
"""Part of the valid requests that were answered in time."""
SATURATION = total("horologe_lane_busy_seconds_total", 'lane="exec"', by="instance")
"""Part of the time in which a worker executes; 1 for each share that is never idle."""
