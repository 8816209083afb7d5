"""Forged messages in a recording: they cost neither the recorder nor the core, and are read and replayed again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from harness.forged_desk import MESSAGES, ForgedDesk
from harness.forged_messages import forged_messages
from horologe_common.clock import ms
from horologe_common.core.hosting import CoreHost, NoTransport
from horologe_common.core.protocol import PeerConnected
from horologe_common.recording.recorder import Recorder, RecorderSettings
from horologe_common.recording.recording_file import read_segments
from horologe_common.wire import Pong

if TYPE_CHECKING:
    from pathlib import Path


def a_host(folder: Path) -> tuple[CoreHost, Recorder, list[Exception]]:
    """Return a host of a selector that is recorded, and the faults that it reports."""
    faults: list[Exception] = []
    desk, times = ForgedDesk(), iter(range(ms(2_000_000), ms(3_000_000)))
    host = CoreHost(
        [desk.selector], lambda: next(times), NoTransport(), lambda core, message, error: faults.append(error)
    )
    recorder = Recorder(RecorderSettings(str(folder), messages=1000), "edge")
    host.observer = recorder
    return host, recorder, faults


@pytest.mark.parametrize(("sender", "message"), MESSAGES, ids=lambda value: type(value).__name__)
def test_every_forged_message_is_recorded_and_read_again(tmp_path: Path, sender: str, message: Any) -> None:
    host, recorder, faults = a_host(tmp_path)
    count = 0
    for _, forged, buffers in forged_messages(message):
        host.run_turn([("selector/0#1", sender, forged, buffers)])
        count += 1
    assert not faults
    assert host.observer is recorder
    path = recorder.write("asked")
    assert path
    segments = list(read_segments(path))
    assert not any(segment.damage for segment in segments)
    handled = [entry for segment in segments for entry in segment.entries if hasattr(entry, "message")]
    assert len(handled) >= count or len(segments) > 1


class Unencodable(msgspec.Struct):
    """A message that never leaves its process."""

    value: Any


def test_a_message_that_cannot_be_encoded_ends_its_segment_and_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host, recorder, faults = a_host(tmp_path)
    for message in (PeerConnected("worker/5#1"), Unencodable({1 << 70}), Pong(1, 1 << 70), PeerConnected("worker/6#1")):
        host.run_turn([("selector/0#1", "frontend/0#1", message, ())])
    path = recorder.write("asked")
    assert path
    (segment,) = read_segments(path)
    assert 1 <= len(segment.entries) < 8
    assert "recording ends early: an entry cannot be encoded" in caplog.text
    assert host.observer is recorder
    assert not faults
