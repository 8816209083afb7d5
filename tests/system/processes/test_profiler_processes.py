"""The profiler as a real process: it receives samples, publishes distributions, and survives a kill -9."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import numpy as np
import pytest

from harness.http_calls import send_http
from harness.model_folders import a_folder, an_emulated_model
from harness.running_services import RunningServices
from harness.waiting import until
from horologe import Client
from horologe_cli.measuring.model_times import measure_model
from horologe_common.clock import ms
from horologe_common.recording.recording_file import Handled, read_segments
from horologe_common.wire import Distributions
from horologe_profiler.core.measurements import length_bound
from horologe_profiler.core.sweep import SweepCell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

X = np.zeros((1, 4), np.float32)
SLEEPY_TOML = """batch_sizes = [1, 2]
inputs = [{ name = "x", datatype = "FP32", shape = [-1, -1] }]
outputs = [{ name = "y", datatype = "FP32", shape = [-1, -1] }]
"""
SLEEPY = """
import time

class Model:
    def predict_batch(self, inputs):
        time.sleep(1e-4 * inputs["x"].size)
        return {"y": inputs["x"]}
"""


class ProfiledServices(RunningServices):
    """A process for each service, with a profiler. The messages to the controller are recorded."""

    def __init__(self, folder: Path) -> None:
        an_emulated_model(folder / "models")
        a_folder(folder / "models", "sleepy", SLEEPY_TOML, model_py=SLEEPY)
        self.folder = folder
        sets = (
            "profiler.busy_share=0.5",
            "frontend.sample_ns=20ms",
            f"recorder.directory={folder}/records",
            "recorder.roles=controller",
        )
        super().__init__(folder, *sets, split=True, metrics="127.0.0.1:0", profiler=True)

    def metric(self, name: str) -> float:
        """Return a metric of the profiler, summed over all labels; 0 while the profiler is not reachable."""
        try:
            lines = send_http("GET", self.topology.metrics["profiler"])[1].decode().splitlines()
        except OSError:
            return 0.0
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    def distributions(self) -> list[Distributions]:
        """Return the Distributions messages that the controller has received so far."""
        written = self._written()
        self.kill("controller", signal.SIGUSR1)
        until(lambda: self._written() > written)
        records = self.folder / "records"
        newest = max(records.glob("*.rec"), key=lambda path: path.stat().st_mtime_ns)
        return [
            entry.message
            for segment in read_segments(newest)
            for entry in segment.entries
            if isinstance(entry, Handled) and isinstance(entry.message, Distributions)
        ]

    def _written(self) -> int:
        """Return the number of complete recordings."""
        return sum("recording written" in line for line in self.lines)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProfiledServices]:
    with ProfiledServices(tmp_path_factory.mktemp("p")) as house:
        yield house


def ask(client: Client, count: int, application: str = "chat") -> None:
    for number in range(count):
        client.predict("pretend", X + number, slo_ms=5000, application=application)


def test_samples_flow_distributions_arrive_and_survive_a_kill(house: ProfiledServices) -> None:
    with Client(house.endpoint) as client:

        def learned() -> bool:
            ask(client, 10)
            return house.metric("horologe_profiler_runs_total") >= 20

        until(learned)
        until(lambda: any(sum(part.counts) >= 10 for message in house.distributions() for part in message.histograms))
        before = house.distributions()
        newest = before[-1]
        assert newest.model == "pretend/1"
        assert [(part.application, part.length) for part in newest.histograms] == [("chat", 0)]
        assert ms(1) <= newest.histograms[0].edges_ns[0] < ms(20)
        until(lambda: list((house.folder / "profiler.state").glob("*.msgpack")))

        first = house.pid("profiler")
        house.kill("profiler")
        ask(client, 50)
        until(lambda: house.pid("profiler") != first)
        until(lambda: any("state restored" in line for line in house.lines))
        until(lambda: house.metric("horologe_profiler_published_total") >= 1)
        after = house.distributions()
        assert len(after) > len(before)
        assert sum(after[-1].histograms[0].counts) >= sum(newest.histograms[0].counts)

        def learns_on() -> bool:
            ask(client, 10, "search")
            return house.metric("horologe_profiler_runs_total") >= 5

        until(learns_on)


def test_lengths_are_distinguished(house: ProfiledServices) -> None:
    """Execution times that grow with the length of rows give one histogram for each range of lengths."""
    with Client(house.endpoint) as client:

        def learned() -> bool:
            for length in (20, 100, 20, 100, 20):
                client.predict("sleepy", np.zeros((1, length), np.float32), slo_ms=5000)
            return house.metric('horologe_profiler_runs_total{model="sleepy"') >= 20

        until(learned)

        def published() -> list[Distributions]:
            return [
                message
                for message in house.distributions()
                if message.model == "sleepy/1" and len(message.histograms) == 3
            ]

        until(published)
    newest = published()[-1]
    whole, short, long = newest.histograms
    assert [whole.length, short.length, long.length] == [0, length_bound(20), length_bound(100)]
    assert short.edges_ns[0] < long.edges_ns[0]
    assert newest.row_ns_per_length > 0


def test_a_sweep_measures_a_running_system(house: ProfiledServices) -> None:
    with Client(house.endpoint) as client:
        (state,) = client.models("pretend")
        found = measure_model(client, state.spec, (), 3, lambda share: None)
    assert [row.cell for row in found.rows] == [SweepCell(1, 0), SweepCell(2, 0)]
    assert all(row.runs == 3 and row.took_ns >= ms(1) for row in found.rows)
    assert found.failed == {}
    (share,) = found.shares
    assert sorted(share.exec_ns) == [1, 2]
    assert share.load_ns > 0
    document = found.document()
    assert [row["batch_size"] for row in document["measured"]] == [1, 2]
    assert document["fit"]["c0_ms"] >= 0
