"""Holder - profiler - controller."""

from __future__ import annotations

from horologe_common.wire.message import Message, Tensor


class Sample(Message, frozen=True, tag=60):
    """The inputs of a finished request, before the holder frees them. `model` is a key `name/version`.

    Nobody waits for it: a profiler may run them again, alone, to learn how long they take.
    """

    model: str
    inputs: tuple[Tensor, ...]
    rows: int = 1
    length: int = 0
    application: str = ""


class DurationHistogram(Message, frozen=True):
    """Histogram of the times that single rows took alone: `counts[i]` from `edges_ns[i]` up to `edges_ns[i + 1]`."""

    application: str
    length: int
    """Of rows up to this long and longer than those of the part before; 0: of any length."""
    edges_ns: tuple[int, ...]
    counts: tuple[int, ...]


class Distributions(Message, frozen=True, tag=61):
    """All that is known of how long a model takes; replaces what was said of it before.

    A batch of k rows, the longest of length l, takes `base_ns` + `row_ns_per_length` * k * l (ORLOJ, eq. 3). Where
    length does not matter `row_ns_per_length` is 0, and a row that takes t alone has k times (t - `base_ns`).
    """

    model: str
    base_ns: int
    row_ns_per_length: float = 0.0
    histograms: tuple[DurationHistogram, ...] = ()
