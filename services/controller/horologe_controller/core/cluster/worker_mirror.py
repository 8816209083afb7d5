"""Mirror of a worker: the offset of its clock, its shares, and the models that it reports."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from horologe_controller.core.cluster.stalls import Stalls

if TYPE_CHECKING:
    from horologe_common.models import ModelSpec, Profile
    from horologe_common.wire import ModelReport, Register
    from horologe_controller.core.cluster.share import Share

WINDOW = 16
"""Round trips that the estimate uses."""


class ClockOffset:
    """Offset of a peer's monotonic clock to this machine's, from the round trips of pings.

    The estimate uses the shortest of the last `WINDOW` round trips. Its error is at most half of that round trip
    (Cristian's algorithm with a minimum filter, as in NTP).
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=WINDOW)
        self.offset_ns = 0

    @property
    def is_measured(self) -> bool:
        """Return whether there was a round trip. Before, `offset_ns` is 0 and meaningless."""
        return bool(self._samples)

    @property
    def error_ns(self) -> int:
        """Return the largest possible error of `offset_ns`: half of the shortest round trip. 0 before there was one."""
        return min(self._samples)[0] // 2 if self._samples else 0

    def observe(self, sent_ns: int, peer_ns: int, received_ns: int) -> None:
        """Add a round trip: `sent_ns` and `received_ns` on this clock, `peer_ns` on the peer's in between."""
        self._samples.append((received_ns - sent_ns, peer_ns - (sent_ns + received_ns) // 2))
        self.offset_ns = min(self._samples)[1]


class WorkerMirror:
    """A connected worker process. `same_host`: it shares the controller's monotonic clock."""

    def __init__(self, address: str, same_host: bool) -> None:
        self.address = address
        self.same_host = same_host
        self.draining = False
        self.last_register = 0
        """Number of its last Register."""
        self.clock = ClockOffset()
        self.stalls = Stalls()
        self.shares: dict[int, Share] = {}
        self.models: dict[str, ModelReport] = {}
        """Without a profile the worker cannot serve the model, for the reason."""
        self._load_failures: dict[str, tuple[str, str]] = {}
        """Models that no share could load -> (content, reason)."""

    @property
    def reachable(self) -> bool:
        """Return whether actions can be sent. A worker on another host needs a measured clock offset first."""
        return (self.same_host or self.clock.is_measured) and not self.draining

    def offset_ns(self) -> int:
        """Return what to add to the controller's time to get the worker's; 0 on the same host."""
        return 0 if self.same_host else self.clock.offset_ns

    def update_models(self, message: Register) -> None:
        """Replace the models by those that the worker reports, without the profiles of those that fit no share.

        A model that could not be loaded stays unavailable until its content changes or an operator loads it.
        """
        most_pages = max((share.pages_total for share in message.shares), default=0)
        self.models = {report.spec.key: report for report in message.models}
        for key, report in self.models.items():
            if report.profile is not None and (pages := report.spec.pages) > most_pages:
                self._withdraw(key, f"pages: needs {pages:g} of 16 MiB, the largest share has {most_pages}")
        if message.scans is None or message.scans:
            self._load_failures.clear()
        for key, (content_hash, reason) in self._load_failures.items():
            if key in self.models and self.models[key].spec.content_hash == content_hash:
                self._withdraw(key, reason)

    def mark_load_failed(self, key: str, reason: str) -> None:
        """Record that no share of the worker can load a model."""
        self._withdraw(key, reason)
        self._load_failures[key] = (self.models[key].spec.content_hash, reason)

    def _withdraw(self, key: str, reason: str) -> None:
        self.models[key] = msgspec.structs.replace(self.models[key], profile=None, reason=reason, note="")


def runnable_profile(
    model: ModelReport, served: ModelSpec | None, pages_total: int, *, reloading: bool
) -> Profile | None:
    """Return the model's profile if a share of `pages_total` could run it; None for another content or batch sizes.

    `served`: the spec of all workers, None if there is none yet. `reloading`: workers read the model again, and may
    run the content before or the new one.
    """
    spec, profile = model.spec, model.profile
    served = served or spec
    same_content = spec.content_hash == served.content_hash and spec.has_same_rows(served)
    right_content = same_content or (reloading and spec.is_compatible(served))
    fits = right_content and spec.pages <= pages_total
    if profile is None or not fits or missing_batch_sizes(profile, served.batch_sizes):
        return None
    return profile


def missing_batch_sizes(profile: Profile, sizes: tuple[int, ...]) -> list[int]:
    """Return the batch sizes that the profile has no measurement of."""
    return [size for size in sizes if size not in profile.exec_ns]
