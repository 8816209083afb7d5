"""What is counted of every request: per model, and of applications per application. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.service.metrics import Stats
from horologe_common.status import Status
from horologe_frontend.core.stats import Statistics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_common.wire import Answer, Predict
    from horologe_frontend.core.catalogue import Catalogue
    from horologe_frontend.core.declared_applications import Declared
    from horologe_frontend.core.requests import Request

PREFIX = "horologe_application_"


class Counts:
    """Labels are names of the catalogue and of declared applications only, whatever clients send."""

    def __init__(self, catalogue: Catalogue, declared: Declared) -> None:
        self.stats = Stats()
        self.statistics = Statistics()
        self._catalogue = catalogue
        self._declared = declared

    def rejected(self, message: Predict, status: Status) -> None:
        """A request that never was open."""
        if message.application and not message.model:
            name = message.application if message.application in self._declared else ""
            self.stats.count(f"{PREFIX}requests_total", name, status.name)
        else:
            labels = self._catalogue.labels(message.model, message.version)
            self.stats.count("nv_inference_request_failure", *labels, status.name)

    def ended(self, now_ns: int, request: Request, answer: Answer) -> None:
        """An open request has its one answer."""
        spec, status = request.spec, Status(answer.status).name
        took_ns, slack_ns = now_ns - request.arrival_ns, request.deadline_ns - now_ns
        if request.application is None:
            self.statistics.observe(now_ns, spec, answer, request.query.rows, took_ns, slack_ns)
            if answer.status != Status.OK:
                self.stats.count("nv_inference_request_failure", spec.name, spec.version, status)
        elif spec.name in self._declared:
            self.stats.count(f"{PREFIX}requests_total", spec.name, status)
            self.stats.observe(f"{PREFIX}request_seconds", spec.name, value=took_ns)
            if answer.defaulted:
                self.stats.count(f"{PREFIX}defaulted_total", spec.name)

    def withdrawn(self, applications: Iterable[str]) -> None:
        """Forget what was counted of these: whoever declares new names for ever would fill the memory."""
        if names := tuple(applications):
            self.stats.remove_values(PREFIX, *names)
