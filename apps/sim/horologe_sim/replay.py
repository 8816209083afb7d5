"""Feeds a recording to the cores in it, and says whether they still say what they said.

Each segment starts from its own snapshot. Compared are receiver, kind and fields of every message put out, without
what hangs on tensors, whose bytes are not recorded; and of selectors what they answer, as outlines (outlines.py).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.recording.recorder import Handled, Segment, Ticked, read_segments, seen
from horologe_common.recording.snapshot import fill_tensors, restore, strip_tensors
from horologe_common.recording.tensor_summary import expand_summaries
from horologe_selector.core.applications.losses import LOSSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from horologe_common.core.hosting import CoreObserver
    from horologe_common.core.protocol import Buffer, Core, Out
    from horologe_common.recording.tensor_summary import TensorSummary
    from horologe_selector.core.applications.losses import Loss

TENSOR_FIELDS = ("inputs", "outputs", "input_hash", "staged")
"""Fields that follow from the bytes of tensors."""


class CoreReplay(msgspec.Struct):
    """What came of one core. `difference` is empty if it did what it had done."""

    core: str
    segments: int = 0
    seconds: float = 0.0
    ticks: int = 0
    handled: dict[str, int] = {}
    """Messages by type."""
    put_out: dict[str, int] = {}
    faults: int = 0
    """Exceptions; the last one is in `fault`."""
    fault: str = ""
    difference: str = ""

    @property
    def identical(self) -> bool:
        return not self.difference


class ReplayReport(msgspec.Struct, frozen=True):
    """All cores of a recording."""

    recording: str
    cores: dict[str, CoreReplay]

    @property
    def identical(self) -> bool:
        return all(core.identical for core in self.cores.values())

    def to_json(self) -> str:
        """Indented, with a fixed order of keys."""
        facts = {"identical": self.identical, **msgspec.to_builtins(self)}
        return msgspec.json.format(msgspec.json.encode(facts, order="deterministic"), indent=2).decode()

    def table(self) -> str:
        """Plain text."""
        lines = []
        for core in self.cores.values():
            verdict = "identical" if core.identical else f"differs: {core.difference}"
            lines.append(f"{core.core}: {core.seconds:.3f} s, {core.ticks} ticks, {core.faults} faults: {verdict}")
            for name, counts in (("handled", core.handled), ("put out", core.put_out)):
                lines.append(f"  {name}: " + (", ".join(f"{count} {kind}" for kind, count in counts.items()) or "none"))
            if core.fault:
                lines.append(f"  last fault: {core.fault}")
        return "\n".join(lines)


def replay_recording(
    path: str | Path,
    core: str = "",
    until_s: float | None = None,
    observer: CoreObserver | None = None,
    losses: Sequence[Loss] = (),
) -> ReplayReport:
    """Replay the cores of a recording whose address begins with `core`, `until_s` seconds from their beginning.

    `observer` sees what the cores see, as it would have in the process that was recorded. `losses`: functions of the
    operator's, found by their own names.
    Raises `SettingsError` for a file that is no recording, `SnapshotError` for a snapshot that cannot be restored.
    """
    found: dict[str, CoreReplay] = {}
    begin_ns: dict[str, int] = {}
    for segment in read_segments(path):
        if not segment.core.startswith(core):
            continue
        report = found.setdefault(segment.core, CoreReplay(segment.core))
        start_ns = begin_ns.setdefault(segment.core, segment.start_ns)
        until_ns = None if until_s is None else start_ns + round(until_s * 1e9)
        _SegmentReplay(segment, report, start_ns, observer, losses).play(until_ns)
    return ReplayReport(str(path), found)


class _SegmentReplay:
    """One segment."""

    def __init__(
        self, segment: Segment, report: CoreReplay, begin_ns: int, observer: CoreObserver | None, losses: Sequence[Loss]
    ) -> None:
        self.segment = segment
        self.report = report
        self.begin_ns = begin_ns
        self.observer = observer
        own = {loss.__name__: loss for loss in losses}
        functions = {"digest": lambda header, buffers: b"", "inline_io": _inline_io(segment), **LOSSES, **own}
        self.core: Core = restore(segment.snapshot, functions)
        self.records_predictions = getattr(self.core, "records_predictions", False)

    def play(self, until_ns: int | None) -> None:
        report = self.report
        report.segments += 1
        handled, put_out = Counter(report.handled), Counter(report.put_out)
        for entry in self.segment.entries:
            if until_ns is not None and entry.now_ns > until_ns:
                break
            report.seconds = (entry.now_ns - self.begin_ns) / 1e9
            if isinstance(entry, Handled):
                handled[type(entry.message).__name__] += 1
                self._call(self._handle, entry)
                continue
            report.ticks += 1
            self._call(self._tick, entry)
            outs, self.core.out = self.core.out, []
            if self.observer:
                self.observer.observe_tick(entry.now_ns, self.core, outs)
            put_out.update(type(out.message).__name__ for out in outs)
            self._compare(entry, outs)
        report.handled, report.put_out = dict(sorted(handled.items())), dict(sorted(put_out.items()))

    def _handle(self, entry: Handled) -> None:
        buffers = self._buffers(entry)
        message = fill_tensors(entry.message)
        if self.observer:
            self.observer.observe_message(entry.now_ns, self.core, entry.sender, message, buffers)
        self.core.handle(entry.now_ns, entry.sender, message, buffers)

    def _buffers(self, entry: Handled) -> Sequence[Buffer]:
        if self.records_predictions:
            return expand_summaries(entry.message, entry.outlines)
        return [bytes(size) for size in entry.outlines if isinstance(size, int)]

    def _tick(self, entry: Ticked) -> None:
        self.core.tick(entry.now_ns)

    def _call(self, call: Any, entry: Any) -> None:
        """As the reactor: a fault of a core is noted, and it goes on."""
        try:
            call(entry)
        except Exception as error:
            self.report.faults += 1
            self.report.fault = f"{(entry.now_ns - self.begin_ns) / 1e9:.6f} s: {type(error).__name__}: {error}"

    def _compare(self, entry: Ticked, outs: list[Out]) -> None:
        """Note the first difference."""
        if self.report.difference:
            return
        said = [_comparable(to, message, told if self.records_predictions else ()) for to, message, told in entry.outs]
        says = [
            _comparable(
                out.to,
                strip_tensors(out.message),
                seen(self.core, out.message, out.buffers) if self.records_predictions else (),
            )
            for out in outs
        ]
        if said != says:
            at = next((n for n, (one, two) in enumerate(zip(said, says, strict=False)) if one != two), len(said))
            recorded, got = [str(these[at]) if at < len(these) else "nothing" for these in (said, says)]
            self.report.difference = (
                f"{(entry.now_ns - self.begin_ns) / 1e9:.6f} s, message {at} of the tick: "
                f"got {got}, recorded is {recorded}"
            )


def _comparable(to: str, message: Any, outlines: tuple[TensorSummary, ...]) -> tuple[Any, ...]:
    fields = {name: getattr(message, name) for name in message.__struct_fields__ if name not in TENSOR_FIELDS}
    return to, type(message).__name__, fields, *outlines


def _inline_io(segment: Segment) -> Any:
    """What the executors said of each model: those whose INPUT or OUTPUT was a lane's work did not have it inline."""
    apart = {message.model: True for message in _local(segment.entries) if message.lane in ("input", "output")}
    return lambda model: model not in apart


def _local(entries: Iterable[Handled | Ticked]) -> Iterable[Any]:
    for entry in entries:
        if isinstance(entry, Ticked):
            yield from (message for _, message, _ in entry.outs if type(message).__name__ == "Operation")
