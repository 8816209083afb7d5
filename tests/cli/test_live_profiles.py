"""Profiles of a running system for `horologe plan --live`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.builders import a_spec, a_state
from horologe_cli.planning.planning_problem import add_measured
from horologe_common.pipelines import PipelineStage, PipelineStructure
from horologe_common.wire import Description, ShareState
from horologe_planning.profiles import StageProfile, collect_profiles, decode_profiles

if TYPE_CHECKING:
    from pathlib import Path


class FakeClient:
    """Serves version 1 and 2 of `a` on two hardware types."""

    def models(self, name: str = "a") -> list[Any]:
        return [a_state(a_spec("a", version)) for version in ("1", "2")] if name == "a" else []

    def describe(self, model: str) -> Description:
        exec_ns = {"a/1": {1: 10}, "a/2": {1: 20, 2: 30}}[model]
        shares = [
            ShareState("worker/0", 0, "cpu", 8, 8, (), 0, 0, exec_ns, 0, hardware) for hardware in ("v100", "", "v100")
        ]
        return Description(1, tuple(shares), "edf", 0)


def test_times_are_those_of_the_hardware_type_of_each_device() -> None:
    profiles: Any = {}
    stages = (PipelineStage("a", "a", (), 1.0, 1.0), PipelineStage("b", "b", ("a",), 1.0, 1.0))
    add_measured(profiles, PipelineStructure("p", 1, stages), FakeClient(), None)  # type: ignore[arg-type]
    assert set(profiles) == {"a"}
    assert set(profiles["a"]) == {"v100", "cpu"}
    profiles = {}
    single = (PipelineStage("a", "a/1", (), 1.0, 1.0),)
    add_measured(profiles, PipelineStructure("p", 1, single), FakeClient(), None)  # type: ignore[arg-type]
    assert set(profiles) == {"a/1"}


def test_a_known_profile_stays_and_other_hardware_gets_one(tmp_path: Path) -> None:
    known = StageProfile("a", "v100", {1: 5})
    profiles, file = collect_profiles([known, StageProfile("b", "v100", {1: 5})]), tmp_path / "profiles.json"
    stages = (PipelineStage("a", "a", (), 1.0, 1.0), PipelineStage("b", "b", ("a",), 1.0, 1.0))
    add_measured(profiles, PipelineStructure("p", 1, stages), FakeClient(), file)  # type: ignore[arg-type]
    assert profiles["a"]["v100"] == known
    assert profiles["a"]["cpu"].latency_ns == {1: 20, 2: 30}
    assert set(profiles["b"]) == {"v100"}
    assert set(decode_profiles(file.read_bytes())) == {"a"}
