"""Replays a recording with the cores in it, and compares the messages they send with the recorded messages.

Each segment starts from its own snapshot. The comparison covers receiver, type and fields of every sent message, except
fields that depend on the bytes of tensors, which are not recorded. For selectors, it also covers the summaries of
outputs (recording/tensor_summary.py).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.recording.recorder import summarize
from horologe_common.recording.recording_file import Called, Handled, Segment, Ticked, read_segments
from horologe_common.recording.snapshot import SnapshotError, fill_tensors, restore, strip_tensors
from horologe_common.recording.tensor_summary import expand_summaries
from horologe_common.wire.frames import tensors
from horologe_selector.core.applications.losses import LOSSES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from horologe_common.core.hosting import CoreObserver
    from horologe_common.core.protocol import Buffer, Core, Out
    from horologe_common.recording.tensor_summary import TensorSummary
    from horologe_selector.core.applications.losses import Loss

TENSOR_FIELDS = ("inputs", "outputs", "input_hash", "staged")
"""Fields that depend on the bytes of tensors."""


class CoreReplay(msgspec.Struct):
    """Result for one core. `difference` is empty if the core sent the recorded messages."""

    core: str
    segments: int = 0
    seconds: float = 0.0
    ticks: int = 0
    handled: dict[str, int] = {}
    """Number of handled messages by type."""
    put_out: dict[str, int] = {}
    faults: int = 0
    """Number of exceptions. `fault` is the last one."""
    fault: str = ""
    difference: str = ""
    damage: str = ""
    """What could not be replayed, because the recording is damaged; empty: everything was."""

    @property
    def identical(self) -> bool:
        """Return whether the core sent all recorded messages. Those of a damaged part are not known."""
        return not self.difference and not self.damage


class ReplayReport(msgspec.Struct, frozen=True):
    """Results for all cores of a recording."""

    recording: str
    cores: dict[str, CoreReplay]

    @property
    def identical(self) -> bool:
        return all(core.identical for core in self.cores.values())

    def to_json(self) -> str:
        """Return indented JSON with a fixed order of keys."""
        facts = {"identical": self.identical, **msgspec.to_builtins(self)}
        return msgspec.json.format(msgspec.json.encode(facts, order="deterministic"), indent=2).decode()

    def table(self) -> str:
        """Return the report as plain text."""
        lines = []
        for core in self.cores.values():
            verdict = f"differs: {core.difference}" if core.difference else "identical"
            verdict += f", but not complete: {core.damage}" if core.damage else ""
            lines.append(f"{core.core}: {core.seconds:.3f} s, {core.ticks} ticks, {core.faults} faults: {verdict}")
            for name, counts in (("handled", core.handled), ("sent", core.put_out)):
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
    """Replay the cores whose address starts with `core`, for `until_s` seconds of each.

    `observer` is called for every message and tick. `losses`: loss functions of the operator, looked up by name.
    Raises SettingsError if the file is not a recording. Damaged parts are left out, and named in the report.
    """
    reports: dict[str, CoreReplay] = {}
    begin_ns: dict[str, int] = {}
    for segment in read_segments(path):
        if not segment.core.startswith(core):
            continue
        report = reports.setdefault(segment.core, CoreReplay(segment.core))
        start_ns = begin_ns.setdefault(segment.core, segment.start_ns)
        until_ns = None if until_s is None else start_ns + round(until_s * 1e9)
        report.damage = report.damage or segment.damage
        try:
            replay = _SegmentReplay(segment, report, start_ns, observer, losses)
        except SnapshotError as error:
            report.damage = report.damage or str(error)
            continue
        replay.play(until_ns)
    return ReplayReport(str(path), reports)


class _SegmentReplay:
    """The replay of one segment."""

    def __init__(
        self, segment: Segment, report: CoreReplay, begin_ns: int, observer: CoreObserver | None, losses: Sequence[Loss]
    ) -> None:
        self.segment = segment
        self.report = report
        self.begin_ns = begin_ns
        self.observer = observer
        own = {loss.__name__: loss for loss in losses}
        silent = {"digest": lambda header, buffers: b"", "write_call": lambda call: None}
        functions = {**silent, "inline_io": _inline_io(segment), **LOSSES, **own}
        self.core: Core = restore(segment.snapshot, functions)
        if getattr(self.core, "address", None) != segment.core:
            raise SnapshotError(f"snapshot: got {type(self.core).__name__}, wanted the core {segment.core}")
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
                self._call(entry.now_ns, self._handle, entry)
                continue
            if isinstance(entry, Called):
                self._call(entry.now_ns, self._call_method, entry)
                continue
            report.ticks += 1
            self._call(entry.now_ns, self.core.tick, entry.now_ns)
            outs, self.core.out = self.core.out, []
            if self.observer:
                self.observer.observe_tick(entry.now_ns, self.core, outs)
            put_out.update(type(out.message).__name__ for out in outs)
            self._compare(entry, outs)
        report.handled, report.put_out = dict(sorted(handled.items())), dict(sorted(put_out.items()))

    def _handle(self, entry: Handled) -> None:
        buffers: Sequence[Buffer] = [bytes(size) for size in entry.summaries if isinstance(size, int)]
        if self.records_predictions or len(tensors(entry.message)) == len(buffers):
            buffers = expand_summaries(entry.message, entry.summaries)
        message = fill_tensors(entry.message)
        if self.observer:
            self.observer.observe_message(entry.now_ns, self.core, entry.sender, message, buffers)
        self.core.handle(entry.now_ns, entry.sender, message, buffers)

    def _call_method(self, entry: Called) -> None:
        getattr(self.core, entry.method)(*entry.arguments)

    def _call(self, now_ns: int, call: Callable[[Any], None], argument: Any) -> None:
        """Call the core. Count an exception and continue, as the reactor does."""
        try:
            call(argument)
        except Exception as error:
            self.report.faults += 1
            self.report.fault = f"{(now_ns - self.begin_ns) / 1e9:.6f} s: {type(error).__name__}: {error}"

    def _compare(self, entry: Ticked, outs: list[Out]) -> None:
        """Store the first difference between sent and recorded messages."""
        if self.report.difference:
            return
        summarized = self.records_predictions
        recorded = [_comparable(to, message, summaries if summarized else ()) for to, message, summaries in entry.outs]
        sent = []
        for out in outs:
            summaries = summarize(self.core, out.message, out.buffers) if summarized else ()
            sent.append(_comparable(out.to, strip_tensors(out.message), summaries))
        if sent != recorded:
            pairs = enumerate(zip(sent, recorded, strict=False))
            at = next((number for number, (got, wanted) in pairs if got != wanted), min(len(sent), len(recorded)))
            got, wanted = (str(messages[at]) if at < len(messages) else "nothing" for messages in (sent, recorded))
            self.report.difference = (
                f"{(entry.now_ns - self.begin_ns) / 1e9:.6f} s, message {at} of the tick: "
                f"got {got}, recorded is {wanted}"
            )


def _comparable(to: str, message: Any, summaries: tuple[TensorSummary, ...]) -> tuple[Any, ...]:
    fields = {name: getattr(message, name) for name in message.__struct_fields__ if name not in TENSOR_FIELDS}
    return to, type(message).__name__, fields, *summaries


def _inline_io(segment: Segment) -> Any:
    """Return a function like the executors' `inline_io`: models with INPUT or OUTPUT operations had no inline I/O."""
    outs = [out for entry in segment.entries if isinstance(entry, Ticked) for out in entry.outs]
    operations = [message for _, message, _ in outs if type(message).__name__ == "LaneOperation"]
    with_lanes = {operation.model for operation in operations if operation.lane in ("input", "output")}
    return lambda model: model not in with_lanes
