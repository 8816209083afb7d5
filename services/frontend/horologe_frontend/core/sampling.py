"""Samples for the profiler: some finished requests of each model and application, while their inputs are staged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import s
from horologe_common.core.protocol import Out
from horologe_common.pipelines import PIPELINE_RUNTIME
from horologe_common.status import Status
from horologe_common.wire import Sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.staging import StagedInputs
    from horologe_common.wire import Answer
    from horologe_frontend.core.model_versions import ModelVersions
    from horologe_frontend.core.requests import ClientRequest
    from horologe_frontend.settings import FrontendSettings

SAMPLED_STATUSES = frozenset({int(Status.OK), int(Status.LATE), int(Status.REFUSED)})
"""Refused requests are sampled too. With only timely ones, long requests would seem rarer than they are."""
KINDS_MAX = 1024
"""Maximum number of (model, application) pairs with a rate limit. Beyond it, the pair sampled least recently is
dropped, and its limit starts again."""


class SampleLimits(msgspec.Struct, frozen=True):
    """Limits of the samples that a frontend sends to the profiler."""

    burst: int = 20
    """Maximum number of consecutive samples of a model and application after a pause."""
    most_bytes: int = 4 << 20
    """Maximum size of a sample's inputs. Requests with larger inputs are not sampled."""
    bytes_per_s: int = 16 << 20
    """Maximum rate of all samples together."""


class RequestSampler:
    """Rate limits of samples: by model and application, and in bytes for all together.

    `profiler` is the address of the profiler, empty if none is connected.
    """

    def __init__(
        self, settings: FrontendSettings, staging: StagedInputs, catalogue: ModelVersions, limits: SampleLimits
    ) -> None:
        self.profiler = ""
        self._catalogue = catalogue
        self._settings = settings
        self._limits = limits
        self._staging = staging
        self._used_until_ns: dict[tuple[str, str], int] = {}
        """Time until which the samples so far have used up the rate of their pair."""
        self._bytes_used_until_ns = 0
        self._burst_ns = (limits.burst - 1) * settings.sample_ns

    def remove_profiler(self, address: str) -> None:
        if address == self.profiler:
            self.profiler = ""

    def sample_request(self, now_ns: int, request: ClientRequest, answer: Answer) -> Sequence[Out]:
        """Return the finished request as a Sample for each model that ran it, if the rate limits allow."""
        query = request.query
        if self._used_until_ns.get((query.model, query.application), 0) > now_ns + self._burst_ns:
            return ()  # nearly always
        if request.spec.runtime == PIPELINE_RUNTIME or query.stream is not None:
            return ()
        if not self._settings.sample_ns or answer.cached or answer.status not in SAMPLED_STATUSES:
            return []
        if request.application is None:
            return self._sample(now_ns, request, request.query.model)
        specs = [self._catalogue.find_in_any_state(name) for name in (*answer.models, *answer.missing)]
        return [out for spec in specs if spec for out in self._sample(now_ns, request, spec.key)]

    def _sample(self, now_ns: int, request: ClientRequest, model: str) -> list[Out]:
        interval_ns, query = self._settings.sample_ns, request.query
        kind = model, query.application
        used_ns = max(now_ns, self._used_until_ns.get(kind, 0))
        if used_ns > now_ns + self._burst_ns or self._bytes_used_until_ns > now_ns:
            return []
        staged = self._staging.inputs_of(request.id)
        if staged is None or (size := sum(map(len, staged[1]))) > self._limits.most_bytes:
            return []
        self._used_until_ns.pop(kind, None)
        if len(self._used_until_ns) >= KINDS_MAX:
            del self._used_until_ns[next(iter(self._used_until_ns))]
        self._used_until_ns[kind] = used_ns + interval_ns
        self._bytes_used_until_ns = now_ns + size * s(1) // self._limits.bytes_per_s
        return [Out(self.profiler, Sample(model, staged[0], query.rows, query.length, query.application), staged[1])]

    def check(self) -> None:
        assert len(self._used_until_ns) <= KINDS_MAX
