"""Recordings of selectors with applications, whose decisions depend on store records and predictions."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from horologe_common.applications import Application
from horologe_common.clock import ms
from horologe_common.core.protocol import Out
from horologe_common.recording.recording_file import Handled, read_segments
from horologe_common.recording.snapshot import restore, snapshot
from horologe_common.recording.tensor_summary import (
    expand_summaries,
    expand_summary,
    summarize_tensor,
    summarize_tensors,
)
from horologe_common.status import Status
from horologe_common.wire import Acknowledged, Answer, Feedback, Observation, Outputs, Tensor
from horologe_selector.core.predictions.cache import PredictionCache
from horologe_selector.core.predictions.tensor_values import extract_values
from horologe_selector.policies.exponential_weights import Exp4
from horologe_selector.settings import SelectorSettings
from horologe_selector.store import RecordsRead, RecordsWritten
from horologe_sim.engine.simulated_clients import FrontendClient
from horologe_sim.engine.traceable_inputs import ROWS_A_REQUEST, truth
from horologe_sim.replay import replay_recording
from horologe_sim.scenario import simulated_cluster as houses
from sim.sim_builders import a_scenario, an_entry, kill, poisson, recorded

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from horologe_common.core.protocol import Buffer

LONG = "-of-a-name-so-long-that-what-is-stored-of-it-is-longer-than-any-hash"


class Teacher(FrontendClient):
    """FrontendClient that gives feedback on every other answer, and twice on some."""

    taught: ClassVar[list[int]] = []

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        if isinstance(message, Acknowledged):
            self.taught.extend(message.statuses)
        request = self.open.get(message.id) if isinstance(message, Answer) else None
        super().handle(now_ns, sender, message, buffers)
        if request and request.ask.application and message.prediction and message.id % 2:
            truths = tuple(float(truth(message.id * ROWS_A_REQUEST + row)) for row in range(request.ask.rows))
            observed = (Observation(truths, message.prediction),) * (1 + message.id % 4 // 3)
            self.out.append(Out(self._peer, Feedback(message.id, request.ask.application, observed)))


@pytest.fixture
def taught(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setattr(houses, "FrontendClient", Teacher)
    monkeypatch.setattr(Teacher, "taught", [])
    return Teacher.taught


def record_learning(folder: Path, messages: int, split: bool = False) -> Path:
    """Four applications over three classifiers of changing strength, contexts that do not fit in memory, restarts."""
    names = [f"m{number}{LONG}" for number in range(3)]
    facts: dict[str, Any] = {"exec_ms": {1: 3.0, 2: 4.0}, "echo": False, "accuracy": 0.6}
    models = [an_entry(name, workers=(at,), **facts) for at, name in enumerate(names)]
    applications = tuple(
        Application(policy + (LONG if cache else ""), tuple(names), 30.0, policy=policy, default=0.0, cache=cache)
        for policy in ("exp3", "exp4")
        for cache in (False, True)
    )
    house = houses.SimulatedCluster(
        a_scenario(
            *models,
            workers=3,
            split=split,
            applications=applications,
            duration_ns=ms(1500),
            load=[
                poisson(40, application=one.name, contexts=30, rows=1 + at % 2) for at, one in enumerate(applications)
            ],
            selector=SelectorSettings(contexts_memory=20),
            faults=(kill("selector" if split else "edge", 600, 100),),
        )
    )
    return recorded(folder, house, messages, 200)


@pytest.mark.parametrize(("messages", "split"), [(100, False), (20_000, False), (20_000, True)])
def test_learning_across_a_restart_is_replayed_identically(
    tmp_path: Path, taught: list[int], messages: int, split: bool
) -> None:
    path = record_learning(tmp_path, messages, split)
    assert taught.count(int(Status.OK)) > 60
    report = replay_recording(path, "selector")
    assert report.identical, report.table()
    assert [core.faults for core in report.cores.values()] == [0, 0]
    for core in report.cores.values():
        assert core.handled["Feedback"] > 10
        assert core.handled["RecordsWritten"] > 10
    assert report.cores["selector/0#00000002"].handled["RecordsRead"] > 10, (
        "the second selector has read the first one's records"
    )


def test_store_records_are_recorded_whole_and_tensors_are_not(tmp_path: Path, taught: list[int]) -> None:
    segments = [one for one in read_segments(record_learning(tmp_path, 20_000)) if one.core.startswith("selector/")]
    handled = [entry for segment in segments for entry in segment.entries if isinstance(entry, Handled)]
    found = [
        record for entry in handled if isinstance(entry.message, RecordsRead) for record in entry.message.records or ()
    ]
    assert any(record is not None and len(record.data) > 256 and any(record.data) for record in found)
    written = [entry.message for entry in handled if isinstance(entry.message, RecordsWritten)]
    assert all(any(change.data or b"1") for message in written for change in message.changes)
    kept = {type(one) for entry in handled for one in entry.summaries if not isinstance(entry.message, Outputs)}
    assert kept <= {int}


def test_replay_detects_a_changed_policy(tmp_path: Path, taught: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    path = record_learning(tmp_path, 20_000)
    observe = Exp4.observe

    def late(self: Exp4, state: Any, selection: Any, losses: dict[str, float]) -> Any:
        return observe(self, state, selection, {model: 1 - loss for model, loss in losses.items()})

    monkeypatch.setattr(Exp4, "observe", late)
    assert not replay_recording(path, "selector").identical


def scores(*rows: Sequence[float], datatype: str = "<f4") -> tuple[Tensor, bytes]:
    array = np.array(rows, datatype)
    return Tensor("y", {"<f4": "FP32", "<i8": "INT64"}[datatype], array.shape, array.nbytes), array.tobytes()


@pytest.mark.parametrize(
    ("tensor", "wanted"),
    [
        (scores([0.1, 0.7, 0.2], [-3, -2, -1]), (1, 2)),
        (scores([1, 1, 0], [0.0, np.nan, 9]), (0, -1)),
        (scores([3], [5], datatype="<i8"), struct.pack("<2q", 3, 5)),
        ((Tensor("y", "INT64", (2,), 16), struct.pack("<2q", 3, 5)), struct.pack("<2q", 3, 5)),
        ((Tensor("y", "FP32", (1, 2, 2), 16), bytes(16)), 16),
        ((Tensor("y", "FP32", (5000,), 20_000), bytes(20_000)), 20_000),
        ((Tensor("y", "FP32", (3, 0), 0), b""), 0),
        ((Tensor("y", "BYTES", (1,), 7), b"\3\0\0\0abc"), 7),
    ],
)
def test_a_tensor_summary_expands_to_an_equivalent_tensor(tensor: tuple[Tensor, bytes], wanted: Any) -> None:
    header, buffer = tensor
    found = summarize_tensor(header, buffer)
    assert found == wanted
    again = expand_summary(header, found)
    assert len(again) == len(buffer)
    assert summarize_tensor(header, again) == found
    message = Outputs(1, (), (header,))
    assert expand_summaries(message, summarize_tensors(message, [buffer])) == [again]


def test_a_cache_restored_from_a_snapshot_has_the_same_predictions() -> None:
    application = Application("digits", ("a",))
    cache = PredictionCache(1 << 20)
    tensor, buffer = scores([0.0] * 150 + [0.5] + [0.1] * 50, [0.0] * 200 + [1e-9])
    cache.store(0, b"scores", (tensor,), [buffer], 10)
    state = snapshot(cache)  # type: ignore[arg-type]
    entry = restore(state).peek(b"scores")
    assert extract_values(application, entry.outputs, entry.buffers) == extract_values(application, (tensor,), [buffer])
    assert (entry.expires_ns, len(entry.buffers[0])) == (10, len(buffer))
    assert len(state) < len(buffer)
