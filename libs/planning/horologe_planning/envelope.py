"""Traffic envelopes: how many arrivals fall into windows of several lengths (InferLine section 5, network calculus).

The windows start at the service time of the pipeline and double up to 60 s. Short windows show bursts, long ones the
rate.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import ms, s

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

LONGEST_NS = s(60)
LONGEST_MAX_NS, WINDOWS_MAX, COUNT_MAX = s(600), 64, 1 << 40
"""Bounds of an envelope that comes from a plan. Its tuner keeps a number for each bin of the longest window."""
BIN_NS = ms(10)
"""Width of the bins in which arrivals are counted."""
LEAST_BINS = 4
"""Bins in the shortest window. A burst that is as long as the window counts to at least three quarters."""


class TrafficEnvelope(msgspec.Struct, frozen=True):
    """Most arrivals of a trace in any window of each length: `counts[i]` in `windows_ns[i]`."""

    windows_ns: tuple[int, ...]
    counts: tuple[int, ...]

    def rates(self) -> tuple[float, ...]:
        """Return the most arrivals per second by window."""
        return tuple(count * 1e9 / window for window, count in zip(self.windows_ns, self.counts, strict=True))

    def validate(self) -> None:
        """Raise ValueError unless windows and counts are positive, equally many, ascending and within their bounds."""
        windows, counts = self.windows_ns, self.counts
        if not 1 <= len(windows) == len(counts) <= WINDOWS_MAX:
            wanted = f"wanted as many, 1 to {WINDOWS_MAX}"
            raise ValueError(f"envelope: got {len(windows)} windows and {len(counts)} counts, {wanted}")
        if not 0 < windows[0] <= windows[-1] <= LONGEST_MAX_NS or any(b <= a for a, b in itertools.pairwise(windows)):
            wanted = f"ascending positive nanoseconds up to {LONGEST_MAX_NS}"
            raise ValueError(f"envelope.windows_ns: got {list(windows)}, wanted {wanted}")
        if not 0 < counts[0] <= counts[-1] <= COUNT_MAX or any(b < a for a, b in itertools.pairwise(counts)):
            wanted = f"positive counts up to {COUNT_MAX} that do not fall"
            raise ValueError(f"envelope.counts: got {list(counts)}, wanted {wanted}")


def window_lengths(service_ns: int, longest_ns: int = LONGEST_NS) -> tuple[int, ...]:
    """Return the window lengths: `service_ns`, doubled while the result is below `longest_ns`, and `longest_ns`.

    The first is rounded up to whole bins, of which it has at least `LEAST_BINS`. Raises ValueError if `service_ns` is
    not positive.
    """
    if service_ns <= 0:
        raise ValueError(f"service_ns: got {service_ns}, wanted a positive number of nanoseconds")
    windows = [min(max(LEAST_BINS, -(-service_ns // BIN_NS)) * BIN_NS, longest_ns)]
    while windows[-1] < longest_ns:
        windows.append(min(2 * windows[-1], longest_ns))
    return tuple(windows)


def envelope_of(arrivals_ns: NDArray[np.int64], windows_ns: Sequence[int]) -> TrafficEnvelope:
    """Return the envelope of a trace of arrival times, sorted, in nanoseconds.

    A window is half-open: arrivals exactly one length apart are not in one window. Raises ValueError for an empty or
    unsorted trace. A trace that is shorter than a window fills only a part of it, so its rate there counts too low:
    such windows are scaled up to the rate of the whole trace.
    """
    import numpy as np

    if not len(arrivals_ns):
        raise ValueError("arrivals_ns: got no arrivals, wanted at least one")
    if np.any(np.diff(arrivals_ns) < 0):
        raise ValueError("arrivals_ns: got times that fall, wanted sorted times")
    span_ns = int(arrivals_ns[-1] - arrivals_ns[0])
    places, counts = np.arange(len(arrivals_ns)), []
    for window_ns in windows_ns:
        ends = np.searchsorted(arrivals_ns, arrivals_ns + window_ns, side="left")
        count = int((ends - places).max())
        if 0 < span_ns < window_ns:
            count = max(count, round(len(arrivals_ns) * window_ns / span_ns))
        counts.append(count)
    return TrafficEnvelope(tuple(windows_ns), tuple(counts))


class SlidingEnvelope:
    """The envelope of live traffic: arrivals in the windows of each length that end now, and the recent maxima.

    Arrivals are counted in bins. An arrival costs one addition, and a bin one subtraction for each window, whatever
    the lengths. The memory is one number for each bin of the longest window.
    """

    def __init__(self, windows_ns: Sequence[int]) -> None:
        self.windows_ns = tuple(windows_ns)
        self._bins = [max(1, window_ns // BIN_NS) for window_ns in windows_ns]
        self._size = max(*self._bins, 1) + 1
        self._totals = [0] * self._size
        """Ring: arrivals up to the end of each bin."""
        self._total = 0
        self._bin = -1
        """Number of the bin in progress; -1 before the first `advance`."""
        self._first_bin = 0
        self._peaks = [0] * len(self._bins)

    def advance(self, now_ns: int) -> None:
        """Finish the bins that end by `now_ns`. Time that goes back is ignored."""
        current = now_ns // BIN_NS
        if self._bin < 0:
            self._bin = self._first_bin = current
        if current - self._bin > self._size:  # an idle time longer than every window: all bins are empty
            self._finish_bin()
            self._totals = [self._total] * self._size
            self._bin = current
        while self._bin < current:
            self._finish_bin()

    def _finish_bin(self) -> None:
        """Store the total of the bin in progress, and update the maxima with the windows that end with it."""
        self._totals[self._bin % self._size] = self._total
        self._bin += 1
        peaks = self._peaks
        for index, count in enumerate(self._counts()):
            if count > peaks[index]:
                peaks[index] = count

    def _counts(self) -> list[int]:
        """Return the arrivals in the windows that end with the last finished bin."""
        size, totals, last = self._size, self._totals, self._bin - 1
        total = totals[last % size]
        return [total - totals[(last - bins) % size] for bins in self._bins]

    def add(self, at_ns: int, count: int = 1) -> None:
        """Count arrivals at `at_ns`, in the bin in progress if that time is past."""
        self.advance(at_ns)
        self._total += count

    def pop_rates(self) -> tuple[float, ...]:
        """Return the most arrivals per second by window since the last call. Windows end with finished bins."""
        peaks, self._peaks = self._peaks, self._counts()
        return tuple(peak * 1e9 / (bins * BIN_NS) for peak, bins in zip(peaks, self._bins, strict=True))

    def max_rate(self, window_ns: int, span_ns: int) -> float:
        """Return the highest rate per second of windows of `window_ns` within the last `span_ns`.

        Consecutive windows overlap by four fifths. `span_ns` is at most the longest window.
        """
        bins, span = max(1, window_ns // BIN_NS), min(span_ns // BIN_NS, self._size - 1)
        step, last, size = max(1, bins // 5), self._bin - 1, self._size
        most = 0
        for end in range(last, last - span + bins - 1, -step):
            most = max(most, self._totals[end % size] - self._totals[(end - bins) % size])
        return most * 1e9 / (bins * BIN_NS)

    @property
    def observed_ns(self) -> int:
        """Time since the first `advance`."""
        return 0 if self._bin < 0 else (self._bin - self._first_bin) * BIN_NS
