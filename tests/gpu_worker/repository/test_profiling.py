"""Profiles are measured once, cached, and measured again if the cached profile is missing or damaged."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event, Thread
from time import sleep
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from harness.damaged_files import damaged_values, make_folder
from horologe_common.clock import ms
from horologe_common.models import ModelSpec, Profile, TensorSpec
from horologe_common.status import ModelFailed, Refused
from horologe_gpu_worker.repository import profile_cache
from horologe_gpu_worker.repository.profile_cache import ProfileCache, cpu_model, hardware_id
from horologe_gpu_worker.repository.profiling import RUNS_MAX, RUNS_MIN, load_or_measure_profile, measure_profile
from horologe_gpu_worker.runtime import OpenModel, RowsFailed, Runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

X = (TensorSpec("x", "FP32", (-1, 4)),)
SPEC = ModelSpec("m", "1", "", X, X, (1, 2), content_hash="c0ffee")


class TimedRuntime(Runtime, OpenModel):
    """A runtime with its own clock: opening takes 30 ms, a run 4 ms per row, and every fifth run ten times that."""

    def __init__(self, row_ns: int = ms(4)) -> None:
        self.now_ns, self.row_ns = 0, row_ns
        self.runs: list[int] = []
        self.opened = self.closed = 0

    def clock(self) -> int:
        return self.now_ns

    def inspect(self, folder: Path) -> ModelSpec:
        return SPEC

    def open(self, spec: ModelSpec, folder: Path, *, warm: bool = True) -> TimedRuntime:
        self.now_ns += ms(30)
        self.opened += 1
        return self

    def run(self, batch_size: int, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        assert inputs["x"].shape == (batch_size, 4)
        self.runs.append(batch_size)
        self.now_ns += batch_size * self.row_ns * (10 if len(self.runs) % 50 == 7 else 1)
        return inputs

    def close(self) -> None:
        self.closed += 1


def measure(
    runtime: Runtime, cache: ProfileCache, spec: ModelSpec = SPEC, check_unchanged: Callable[[], None] = lambda: None
) -> Profile:
    return load_or_measure_profile(runtime, spec, Path("/nowhere"), cache, lambda line: None, check_unchanged)


def test_measures_loading_and_every_batch_size_without_the_outlier(tmp_path: Path) -> None:
    runtime = TimedRuntime()
    profile = measure_profile(runtime, SPEC, tmp_path, runtime.clock)
    assert profile == Profile({1: ms(4), 2: ms(8)}, ms(30))
    assert runtime.closed == 1


def test_on_a_machine_in_use_most_runs_are_too_long(tmp_path: Path) -> None:
    class Busy(TimedRuntime):
        def run(self, batch_size: int, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
            self.now_ns += ms(20) * (len(self.runs) % 4 > 0)
            return super().run(batch_size, inputs)

    runtime = Busy(ms(20))
    assert measure_profile(runtime, SPEC, tmp_path, runtime.clock).exec_ns == {1: ms(20), 2: ms(40)}
    assert RUNS_MIN < runtime.runs.count(2) < runtime.runs.count(1) < RUNS_MAX


@pytest.mark.parametrize(("row_ns", "runs"), [(ms(300), RUNS_MIN), (1, RUNS_MAX), (ms(10_000), 1)])
def test_is_brief_for_slow_models_and_for_fast_ones(tmp_path: Path, row_ns: int, runs: int) -> None:
    runtime = TimedRuntime(row_ns)
    measure_profile(runtime, SPEC, tmp_path, runtime.clock)
    compared = 2  # a batch twice, and each of its rows alone
    assert (runtime.runs.count(1), runtime.runs.count(2)) == (runs + compared, runs + compared)


def test_a_model_that_fails_is_closed(tmp_path: Path) -> None:
    class Failing(TimedRuntime):
        def run(self, batch_size: int, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
            raise ModelFailed("no")

    runtime = Failing()
    with pytest.raises(ModelFailed):
        measure_profile(runtime, SPEC, tmp_path)
    assert runtime.closed == 1


def test_is_measured_once_and_kept_by_hardware_and_content(tmp_path: Path) -> None:
    cache, runtime, reported = ProfileCache(tmp_path), TimedRuntime(), list[str]()
    first = load_or_measure_profile(runtime, SPEC, tmp_path, cache, reported.append)
    second_profile = load_or_measure_profile(runtime, SPEC, tmp_path, ProfileCache(tmp_path), reported.append)
    assert first == second_profile
    steps = ["loading m/1", "waiting to measure m/1", "measuring m/1: batch sizes [1, 2]"]
    assert (runtime.opened, reported) == (1, steps)
    path = tmp_path / "profiles" / hardware_id() / "c0ffee.json"
    assert json.loads(path.read_text())["model"] == "m/1"
    assert [entry.name for entry in path.parent.iterdir()] == ["c0ffee.json"]


def test_a_turn_is_waited_for_until_its_holder_leaves(tmp_path: Path) -> None:
    cache, begun, steps = ProfileCache(tmp_path), Event(), list[str]()

    def hold() -> None:
        with cache.measurement_turn(), cache.content_turn(SPEC):
            begun.set()
            sleep(0.05)
            steps.append("first")

    holder = Thread(target=hold)
    holder.start()
    begun.wait(10)
    with cache.content_turn(SPEC), cache.measurement_turn():
        steps.append("second")
    holder.join()
    assert steps == ["first", "second"]


def test_a_share_of_a_gpu_is_not_measured_beside_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The profile of the whole GPU is scaled to the share. A share of the CPU is measured."""
    monkeypatch.setattr(profile_cache, "hardware_id", lambda runtime, cuda: "host" if cuda is None else "gpu")
    on_gpu, runtime = msgspec.structs.replace(SPEC, runtime="onnx", on_gpu=True), TimedRuntime()
    whole = measure(runtime, ProfileCache(tmp_path, 0), on_gpu)
    share = measure(runtime, ProfileCache(tmp_path, 0, 40.0), on_gpu)
    assert share.exec_ns == {size: round(2.5 * time_ns) for size, time_ns in whole.exec_ns.items()}
    assert (share.load_ns, runtime.opened) == (whole.load_ns, 1)
    measure(runtime, ProfileCache(tmp_path))
    measure(runtime, ProfileCache(tmp_path, None, 40.0))
    assert runtime.opened == 3
    assert sorted(path.name for path in (tmp_path / "profiles").iterdir() if path.is_dir()) == [
        "gpu", "host", "host-40-percent"
    ]  # fmt: skip


def test_the_share_of_a_gpu_does_not_limit_models_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_cache, "hardware_id", lambda runtime, cuda: "host")
    python = msgspec.structs.replace(SPEC, runtime="python")
    assert ProfileCache(tmp_path, 0, 40.0).path(python) == ProfileCache(tmp_path, 0).path(python)


def test_a_profile_that_another_process_has_written_counts_for_unchanged_files_only(tmp_path: Path) -> None:
    class LateCache(ProfileCache):
        """Finds the profile only under the lock, as if another process had measured meanwhile."""

        reads = 0

        def read_profile(self, spec: ModelSpec) -> Profile | None:
            self.reads += 1
            return Profile({1: 1, 2: 2}, 3) if self.reads == 2 else None

    def refuse() -> None:
        raise Refused("changed")

    with pytest.raises(Refused, match="changed"):
        measure(TimedRuntime(), LateCache(tmp_path), check_unchanged=refuse)


def test_a_cache_that_cannot_be_written_only_costs_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("where the folder would be")
    runtime = TimedRuntime()
    for _ in range(2):
        assert measure(runtime, ProfileCache(tmp_path / "file")).load_ns > -1
    assert runtime.opened == 2


def test_declared_times_need_no_measuring(tmp_path: Path) -> None:
    class Declared(TimedRuntime):
        def profile(self, spec: ModelSpec, folder: Path) -> Profile:
            return Profile({1: 1, 2: 2}, 3)

    runtime = Declared()
    cache = ProfileCache(tmp_path)
    assert measure(runtime, cache) == Profile({1: 1, 2: 2}, 3)
    assert (runtime.opened, cache.read_profile(SPEC)) == (0, None)


def test_the_hardware_id_is_a_folder_name(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some(R) CPU @ 2.50GHz\n")
    assert cpu_model(str(cpuinfo)) == "Some(R) CPU @ 2.50GHz"
    assert cpu_model(str(tmp_path / "none"))
    assert set(hardware_id("onnx")) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")
    assert hardware_id("onnx") != hardware_id("python")


OTHER = msgspec.structs.replace(SPEC, name="other", content_hash="0ddba11")
PROFILE = Profile({1: 5, 2: 6}, 7)
DAY_NS = 86_400 * 10**9

DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "empty": lambda path: path.write_bytes(b""),
    "random bytes": lambda path: path.write_bytes(bytes((7 * at * at + 3) % 251 for at in range(4096))),
    "no UTF-8": lambda path: path.write_bytes(path.read_bytes().replace(b"m/1", b"m\xff1")),
    "another type": lambda path: path.write_bytes(b"[1, 2, 3]"),
    "MessagePack": lambda path: path.write_bytes(msgspec.msgpack.encode({"load_ns": 1})),
    "NaN": lambda path: path.write_bytes(path.read_bytes().replace(b'"load_ns": ', b'"load_ns": NaN')),
    "nested": lambda path: path.write_bytes(b'{"further": ' + b"[" * 100_000),
    "huge number": lambda path: path.write_bytes(
        path.read_bytes().replace(b'"load_ns": ', b'"load_ns": 1' + b"0" * 300)
    ),
    "batch size 0": lambda path: path.write_bytes(path.read_bytes().replace(b'"exec_ns": {', b'"exec_ns": {"0": 1,')),
    "huge batch size": lambda path: path.write_bytes(
        path.read_bytes().replace(b'"exec_ns": {', b'"exec_ns": {"99999999999999999999": 1,')
    ),
    "missing field": lambda path: path.write_bytes(path.read_bytes().replace(b"load_ns", b"loud_ns")),
    "folder": make_folder,
}


def a_cache(folder: Path) -> ProfileCache:
    cache = ProfileCache(folder)
    for spec in (SPEC, OTHER):
        cache.write_profile(spec, PROFILE)
    return cache


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_profile_is_not_used_and_the_others_are(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache = a_cache(tmp_path)
    DAMAGE[damage](cache.path(SPEC))
    assert cache.read_profile(SPEC) is None
    assert caplog.text.count("stored profile not used") == 1
    assert cache.read_profile(OTHER) == PROFILE
    cache.write_profile(SPEC, PROFILE)
    assert cache.read_profile(SPEC) == (None if damage == "folder" else PROFILE)


def test_no_damaged_value_gives_a_time_out_of_range(tmp_path: Path) -> None:
    cache = a_cache(tmp_path)
    path = cache.path(SPEC)
    for name, damaged in damaged_values(msgspec.json.decode(path.read_bytes())):
        path.write_bytes(msgspec.json.encode(damaged))
        try:
            profile = cache.read_profile(SPEC)
        except RowsFailed:  # the reason may be any text
            continue
        if profile:
            assert set(SPEC.batch_sizes) <= set(profile.exec_ns), name
            assert all(0 <= time_ns <= DAY_NS for time_ns in (profile.load_ns, *profile.exec_ns.values())), name


def test_a_missing_profile_is_nothing_to_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert ProfileCache(tmp_path).read_profile(SPEC) is None
    assert not caplog.text
