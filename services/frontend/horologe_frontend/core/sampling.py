"""Which finished requests a profiler gets to see: a few of each model and application, before inputs are freed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import s
from horologe_common.core.protocol import Out
from horologe_common.status import Status
from horologe_common.wire import Sample

if TYPE_CHECKING:
    from horologe_common.core.staging import StagedInputs
    from horologe_common.wire import Answer
    from horologe_frontend.core.catalogue import Catalogue
    from horologe_frontend.core.requests import Request
    from horologe_frontend.settings import FrontendSettings

ENDS = frozenset({int(Status.OK), int(Status.LATE), int(Status.REFUSED)})
"""Refused ones too: were only those seen that were done in time, long ones would seem rarer than they are."""
KINDS_MAX = 1024
"""Models x applications whose rate is known; beyond, the one sampled the longest ago begins anew."""


class Sampling:
    """Rates by model and application, and one of bytes for all. `profiler` is its address, empty without one."""

    def __init__(self, settings: FrontendSettings, staging: StagedInputs, catalogue: Catalogue) -> None:
        self.profiler = ""
        self._catalogue = catalogue
        self._settings = settings
        self._staging = staging
        self._used_ns: dict[tuple[str, str], int] = {}
        """Until when the samples taken so far have used up their kind's rate."""
        self._bytes_used_ns = 0

    def gone(self, address: str) -> None:
        if address == self.profiler:
            self.profiler = ""

    def samples(self, now_ns: int, request: Request, answer: Answer) -> list[Out]:
        """The request as a Sample, if it is the turn of one; an application's for each model that was asked."""
        if not self._settings.sample_ns or answer.cached or answer.status not in ENDS:
            return []
        if request.application is None:
            return self._sample(now_ns, request, request.query.model)
        specs = [self._catalogue.known(name) for name in (*answer.models, *answer.missing)]
        return [out for spec in specs if spec for out in self._sample(now_ns, request, spec.key)]

    def _sample(self, now_ns: int, request: Request, model: str) -> list[Out]:
        every_ns, query = self._settings.sample_ns, request.query
        kind = model, query.application
        used_ns = max(now_ns, self._used_ns.get(kind, 0))
        if used_ns > now_ns + (self._settings.sample_burst - 1) * every_ns or self._bytes_used_ns > now_ns:
            return []
        held = self._staging.inputs_of(request.id)
        if held is None or (size := sum(map(len, held[1]))) > self._settings.sample_bytes:
            return []
        self._used_ns.pop(kind, None)
        if len(self._used_ns) >= KINDS_MAX:
            del self._used_ns[next(iter(self._used_ns))]
        self._used_ns[kind] = used_ns + every_ns
        self._bytes_used_ns = now_ns + size * s(1) // self._settings.sample_rate_bytes
        return [Out(self.profiler, Sample(model, held[0], query.rows, query.length, query.application), held[1])]

    def check(self) -> None:
        assert len(self._used_ns) <= KINDS_MAX
