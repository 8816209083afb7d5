"""Prediction cache: (model, content, inputs) -> outputs, bounded in bytes, CLOCK eviction (Clipper section 4.2)."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.recording.snapshot import KEPT_BYTES
from horologe_common.recording.tensor_summary import TensorSummaries, expand_summary, summarize_tensor
from horologe_selector.core.predictions.tensor_values import extract_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.applications import Application
    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Tensor

ENTRY_BYTES = 500
"""Size of an entry besides its tensors: objects, dictionary slot, values. Measured with tracemalloc: 490 bytes with
three values."""
VALUES = 3
"""Maximum number of values kept with an entry. More would take memory that `ENTRY_BYTES` does not count."""
HEADERS = 256
"""Maximum number of tensor headers that entries share."""


def prediction_key(spec: ModelSpec, input_hash: bytes) -> bytes:
    """Return the cache key of a model version's outputs for these inputs. It changes with the version's content."""
    return b"".join((spec.key.encode(), b"\0", spec.content_hash.encode(), input_hash))


class CacheEntry(msgspec.Struct, gc=False):
    """Cached outputs. The garbage collector tracks no part of it: 130,000 tracked entries stall the loop for 75 ms."""

    outputs: tuple[Tensor, ...]
    buffers: tuple[bytes, ...]
    expires_ns: int
    size: int
    referenced: bool = False
    task: str = ""
    """Task, and below output, of the application that `values` were extracted for."""
    output: str = ""
    values: tuple[float, ...] = ()
    """Last result of `cached_values`."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle large tensors, which a snapshot would fill with zeros, as summaries for `__setstate__`."""
        fields = [getattr(self, name) for name in self.__struct_fields__]
        if all(len(buffer) <= KEPT_BYTES for buffer in self.buffers):
            return CacheEntry, tuple(fields)
        fields[1] = ()
        return CacheEntry, tuple(fields), TensorSummaries(tuple(map(summarize_tensor, self.outputs, self.buffers)))

    def __setstate__(self, outlines: TensorSummaries) -> None:
        self.buffers = tuple(map(bytes, map(expand_summary, self.outputs, outlines.parts)))


def cached_values(application: Application, entry: CacheEntry) -> tuple[float, ...]:
    """Return `extract_values` of the entry, stored with it if it has few rows. Raises `InvalidInput` likewise."""
    if entry.values and entry.output == application.output and entry.task == application.task:
        return entry.values
    values = extract_values(application, entry.outputs, entry.buffers)
    if len(values) <= VALUES:
        entry.task, entry.output, entry.values = application.task, application.output, values
    return values


class PredictionCache:
    """Bounded cache of outputs. Invariant: `used_bytes` is the sum of the entries' sizes, at most `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._entries: OrderedDict[bytes, CacheEntry] = OrderedDict()
        """In the order in which the hand of the clock passes them."""
        self._headers: dict[tuple[Tensor, ...], tuple[Tensor, ...]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def fetch(self, now_ns: int, key: bytes) -> CacheEntry | None:
        """Return the entry if it has not expired, and mark it as used."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if now_ns >= entry.expires_ns:
            self._drop(key)
            return None
        entry.referenced = True
        return entry

    def peek(self, key: bytes) -> CacheEntry | None:
        """Return the entry, expired or not, without marking it as used. Feedback may refer to expired predictions."""
        return self._entries.get(key)

    def store(
        self, now_ns: int, key: bytes, outputs: tuple[Tensor, ...], buffers: Sequence[Buffer], ttl_ns: int
    ) -> None:
        """Store a copy of the outputs, evicting entries not used recently. Skip outputs larger than the cache."""
        size = sum(map(len, buffers)) + len(key) + ENTRY_BYTES
        if size > self.limit_bytes:
            return
        if key in self._entries:
            self._drop(key)
        while self.used_bytes + size > self.limit_bytes:
            self._evict()
        copies = tuple([bytes(buffer) for buffer in buffers])
        self._entries[key] = CacheEntry(self._shared_header(outputs), copies, now_ns + ttl_ns, size)
        self.used_bytes += size

    def _shared_header(self, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return an equal header that other entries use already. A header of its own took 250 bytes per entry."""
        if len(self._headers) >= HEADERS:
            self._headers.clear()
        return self._headers.setdefault(outputs, outputs)

    def _evict(self) -> None:
        """Drop the first entry not referenced since the hand last passed it. The entries before it come last."""
        entries = self._entries
        while entries[key := next(iter(entries))].referenced:
            entries[key].referenced = False
            entries.move_to_end(key)
        self._drop(key)

    def _drop(self, key: bytes) -> None:
        self.used_bytes -= self._entries.pop(key).size

    def check(self) -> None:
        assert self.used_bytes == sum(entry.size for entry in self._entries.values()) <= self.limit_bytes
