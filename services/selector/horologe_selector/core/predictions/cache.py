"""The prediction cache: (model, content, inputs) -> outputs, bounded in bytes, CLOCK eviction (Clipper section 4.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.recording.snapshot import KEEP_BYTES
from horologe_common.recording.tensor_summary import TensorSummaries, expand_summary, summarize_tensor
from horologe_selector.core.predictions.tensor_values import values_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.applications import Application
    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Tensor

ENTRY_BYTES = 500
"""What an entry costs beside its tensors: objects, dictionary slot, ring slot, values (measured with tracemalloc: 470
with three)."""
VALUES = 3
"""As many are kept with an entry. Those of more rows are cheap by the row, and would need room that is not counted."""


HEADERS = 256
"""Headers remembered to be shared among entries."""


def prediction_key(spec: ModelSpec, input_hash: bytes) -> bytes:
    """Of what this content of this model version says to these inputs."""
    return b"".join((spec.key.encode(), b"\0", spec.content_hash.encode(), input_hash))


class Entry(msgspec.Struct, gc=False):
    """Nothing in it is tracked by the garbage collector: 130,000 entries would stall the loop for 75 ms."""

    key: bytes
    outputs: tuple[Tensor, ...]
    buffers: tuple[bytes, ...]
    expires_ns: int
    size: int
    referenced: bool = False
    task: str = ""
    output: str = ""
    """Of the application that `values` is for."""
    values: tuple[float, ...] = ()
    """What `predicted` last made of it."""

    def __reduce__(self) -> tuple[Any, ...]:
        """In a snapshot, where large tensors would be zeros: their outlines, filled by `__setstate__`."""
        fields = [getattr(self, name) for name in self.__struct_fields__]
        if all(len(buffer) <= KEEP_BYTES for buffer in self.buffers):
            return Entry, tuple(fields)
        fields[2] = ()
        return Entry, tuple(fields), TensorSummaries(tuple(map(summarize_tensor, self.outputs, self.buffers)))

    def __setstate__(self, outlines: TensorSummaries) -> None:
        self.buffers = tuple(map(bytes, map(expand_summary, self.outputs, outlines.parts)))


def predicted(application: Application, entry: Entry) -> tuple[float, ...]:
    """`values_of` these outputs, kept with them. Raises `InvalidInput` as that does."""
    if entry.values and entry.output == application.output and entry.task == application.task:
        return entry.values
    values = values_of(application, entry.outputs, entry.buffers)
    if len(values) <= VALUES:
        entry.task, entry.output, entry.values = application.task, application.output, values
    return values


class Cache:
    """Request/fetch without blocking: `fetch` looks, `store` fills. Law: `used_bytes` is the sum of sizes, bounded."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._at: dict[bytes, int] = {}
        self._ring: list[Entry | None] = []
        self._free: list[int] = []
        self._headers: dict[tuple[Tensor, ...], tuple[Tensor, ...]] = {}
        self._hand = 0

    def __len__(self) -> int:
        return len(self._at)

    def fetch(self, now_ns: int, key: bytes) -> Entry | None:
        slot = self._at.get(key)
        entry = None if slot is None else self._ring[slot]
        if entry is None or slot is None:
            return None
        if now_ns >= entry.expires_ns:
            self._drop(slot, entry)
            return None
        entry.referenced = True
        return entry

    def recall(self, key: bytes) -> Entry | None:
        """For feedback: what was predicted stays that when it has expired, until it goes."""
        slot = self._at.get(key)
        return None if slot is None else self._ring[slot]

    def store(
        self, now_ns: int, key: bytes, outputs: tuple[Tensor, ...], buffers: Sequence[Buffer], ttl_ns: int
    ) -> None:
        """Keep a copy of the outputs, evicting what was not used lately. Too large ones are not kept."""
        size = sum(map(len, buffers)) + len(key) + ENTRY_BYTES
        if size > self.limit_bytes:
            return
        if (slot := self._at.get(key)) is not None and (old := self._ring[slot]) is not None:
            self._drop(slot, old)
        while self.used_bytes + size > self.limit_bytes:
            self._evict()
        entry = Entry(key, self._shared(outputs), tuple([bytes(buffer) for buffer in buffers]), now_ns + ttl_ns, size)
        if self._free:
            slot = self._free.pop()
            self._ring[slot] = entry
        else:
            slot = len(self._ring)
            self._ring.append(entry)
        self._at[key] = slot
        self.used_bytes += size

    def _shared(self, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Answers of a model mostly have the same headers: entries with headers of their own took 250 bytes more."""
        if len(self._headers) >= HEADERS:
            self._headers.clear()
        return self._headers.setdefault(outputs, outputs)

    def _evict(self) -> None:
        """Advance the hand to the first entry not referenced since it last came by."""
        while True:
            self._hand = (self._hand + 1) % len(self._ring)
            if (entry := self._ring[self._hand]) is None:
                continue
            if not entry.referenced:
                self._drop(self._hand, entry)
                return
            entry.referenced = False

    def _drop(self, slot: int, entry: Entry) -> None:
        self._ring[slot] = None
        self._free.append(slot)
        del self._at[entry.key]
        self.used_bytes -= entry.size

    def check(self) -> None:
        entries = [entry for entry in self._ring if entry is not None]
        assert self.used_bytes == sum(entry.size for entry in entries) <= self.limit_bytes
        assert len(entries) == len(self._at) == len(self._ring) - len(self._free)
