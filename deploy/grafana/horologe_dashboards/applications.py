"""Dashboard `applications`: answers, defaults, and how good the models of an application are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_dashboards.expressions import MISSES, quantile, total
from horologe_dashboards.panels import Limits, Query, graph, page

if TYPE_CHECKING:
    from grafana_foundation_sdk.models.dashboard import Dashboard

APPLICATION = 'application=~"$application"'
REQUESTS = "horologe_application_requests_total"
GOOD = total(REQUESTS, f'status="OK",{APPLICATION}', "application")
MISSED = total(REQUESTS, f'status=~"{MISSES}",{APPLICATION}', "application")
ANSWERED = total("horologe_application_model_answered_total", APPLICATION, "application, model")
MISSING = total("horologe_application_model_missing_total", APPLICATION, "application, model")
AGREED = total("horologe_application_model_agreed_total", APPLICATION, "application, model")
OBSERVED = total("horologe_application_model_observations_total", APPLICATION, "application, model")
LOSS = total("horologe_application_model_loss_total", APPLICATION, "application, model")

ROWS = [
    (
        "Requests",
        [
            graph(
                "Requests",
                "Requests by final status.",
                "reqps",
                Query(total(REQUESTS, APPLICATION, "application, status"), "{{application}} {{status}}"),
            ),
            graph(
                "Attainment",
                "Part of the valid requests that were answered in time.",
                "percentunit",
                Query(f"{GOOD} / ({GOOD} + {MISSED})", "{{application}}"),
                limits=Limits.below(0.99, 0.999),
                highest=1,
            ),
            graph(
                "Latency, p99",
                "Arrival to answer at the frontend.",
                "s",
                Query(
                    quantile(0.99, "horologe_application_request_seconds", APPLICATION, "application"),
                    "{{application}}",
                    exemplars=True,
                ),
            ),
            graph(
                "Answered by the default",
                "Part of the answers with a row that holds the declared default.",
                "percentunit",
                Query(
                    f"{total('horologe_application_defaulted_total', APPLICATION, 'application')} / {GOOD}",
                    "{{application}}",
                ),
                limits=Limits.above(0.05, 0.2),
            ),
        ],
    ),
    (
        "Models of applications",
        [
            graph(
                "Missing predictions",
                "Part of the predictions that were not there in time.",
                "percentunit",
                Query(f"{MISSING} / ({ANSWERED} + {MISSING})", "{{application}} {{model}}"),
                limits=Limits.above(0.05, 0.2),
                highest=1,
            ),
            graph(
                "Agreement",
                "Part of the predictions that equal the application's answer.",
                "percentunit",
                Query(f"{AGREED} / {ANSWERED}", "{{application}} {{model}}"),
                highest=1,
            ),
            graph(
                "Mean loss",
                "Mean loss of the predictions with feedback, 0 to 1.",
                "short",
                Query(f"{LOSS} / {OBSERVED}", "{{application}} {{model}}"),
                highest=1,
            ),
            graph("Feedback", "Predictions with feedback.", "ops", Query(OBSERVED, "{{application}} {{model}}")),
        ],
    ),
]


def build() -> Dashboard:
    """Return the dashboard."""
    return page(
        "applications",
        "Horologe: applications",
        "Answers of applications, and the quality of their models.",
        ROWS,
        [f"application {REQUESTS}"],
    )
