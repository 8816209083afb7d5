"""Checks of `model.toml` and of models: errors name field, got and wanted, and leave the other models alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
import pytest

from gpu_worker.repository_harness import a_store, only_report
from harness.builders import a_spec
from harness.model_folders import ECHO, SIGNATURE, a_folder, an_emulated_model
from horologe_common.clock import ms
from horologe_common.model_limits import check_profile, check_size, check_spec
from horologe_common.models import MAX_DIM, ModelSpec, Profile, TensorSpec
from horologe_common.status import TEXT_MAX, HorologeError, InvalidInput, describe_exception
from horologe_gpu_worker.runtimes.emulated import EmulatedRuntime

if TYPE_CHECKING:
    from pathlib import Path

HUGE = "99999999999999999999"
EXEC = "[emulated]\nexec_ms = { 1 = 1.0 }\n"


def emulated(lines: str) -> str:
    return f"{SIGNATURE}[emulated]\n{lines}\n"


@pytest.mark.parametrize(
    ("manifest", "wanted"),
    [
        (
            emulated("exec_ms = { 1 = 1.0 }").replace("[[inputs]]", "[[inputs]]\noptional = true"),
            "x: optional: got true, wanted false for 'emulated'",
        ),
        (
            "max_rows = 4\n" + emulated("exec_ms = { 1 = 1.0 }"),
            "max_rows: got 4, wanted none: it is for models that are not batched, whose tensors all begin with -1",
        ),
        (emulated("exec_ms = { 0 = 1.0 }"), "emulated.exec_ms: got [0], wanted ascending numbers from 1 to 1048576"),
        (emulated("exec_ms = { -4 = 1.0 }"), "emulated.exec_ms: got [-4], wanted ascending numbers from 1"),
        (emulated("exec_ms = { 0 = 1.0, 1 = 1.0 }"), "emulated.exec_ms: got [0, 1], wanted ascending numbers from 1"),
        (emulated(f"exec_ms = {{ {HUGE} = 1.0 }}"), f"emulated.exec_ms: got [{HUGE}], wanted ascending numbers"),
        (emulated("exec_ms = { 1 = 1e300 }"), "exec_ms: 1: got 1e+300, wanted at least 0 and at most 604800000"),
        (emulated("exec_ms = { 1 = nan }"), "emulated.exec_ms: 1: got nan, wanted at least 0"),
        (emulated("exec_ms = { 1 = -inf }"), "emulated.exec_ms: 1: got -inf, wanted at least 0"),
        (emulated("exec_ms = { 1 = -1e-9 }"), "emulated.exec_ms: 1: got -1e-09, wanted at least 0"),
        (emulated("exec_ms = { 1 = '1.0' }"), "got `str` - at `$.emulated.exec_ms[...]`: got {'1': '1.0'}"),
        (emulated("exec_ms = { 1 = true }"), "Expected `float`, got `bool` - at `$.emulated.exec_ms[...]`"),
        (emulated("exec_ms = { one = 1.0 }"), "Expected `int`, got `str` - at `key` in `$.emulated.exec_ms`"),
        (emulated("exec_ms = { 1 = 1.0 }\nweights_mb = 1e300"), "emulated.weights_mb: got 1e+300, wanted at least 0"),
        (emulated("exec_ms = { 1 = 1.0 }\nweights_mb = inf"), "emulated.weights_mb: got inf, wanted at least 0"),
        (emulated("exec_ms = { 1 = 1.0 }\nload_ms = 1e300"), "emulated.load_ms: got 1e+300, wanted at least 0"),
        (emulated("exec_ms = { 1 = 1.0 }\ninput_ms = -1"), "emulated.input_ms: got -1.0, wanted at least 0"),
        (emulated("exec_ms = { 1 = 1.0 }\noutput_ms = nan"), "emulated.output_ms: got nan, wanted at least 0"),
        (
            emulated("[emulated.sharing]\nmodel = 'vgg19'\ntime_factor = inf"),
            "emulated.sharing.time_factor: got inf, wanted at least 1e-06",
        ),
        (
            emulated(f"[emulated.sharing]\nmodel = 'vgg19'\nseed = {HUGE}"),
            f"emulated.sharing.seed: got {HUGE}, wanted at least -4294967296",
        ),
        ("batch_sizes = [1, 2097152]\n" + SIGNATURE + EXEC, "batch_sizes: got [1, 2097152], wanted ascending numbers"),
        ("batch_sizes = [true]\n" + SIGNATURE + EXEC, "Expected `int`, got `bool` - at `$.batch_sizes[0]`: got True"),
        ("batch_sizes = ['1']\n" + SIGNATURE + EXEC, "Expected `int`, got `str` - at `$.batch_sizes[0]`: got '1'"),
        (f"batch_sizes = {list(range(1, 2000))}\n" + SIGNATURE + EXEC, "got 1999 sizes, wanted at most 1024"),
        (f"threads = {HUGE}\n" + SIGNATURE + EXEC, f"threads: got {HUGE}, wanted at least 1 and at most 1024"),
        ("threads = '4'\n" + SIGNATURE + EXEC, "Expected `int`, got `str` - at `$.threads`: got '4'"),
        ("threads = true\n" + SIGNATURE + EXEC, "Expected `int`, got `bool` - at `$.threads`: got True"),
        ("profile_length = -1\n" + SIGNATURE + EXEC, "profile_length: got -1, wanted at least 1"),
        (f"max_length = -{HUGE}\n" + SIGNATURE + EXEC, f"max_length: got -{HUGE}, wanted at least 0"),
        ("weight = 0\n" + SIGNATURE + EXEC, "weight: got 0.0, wanted at least 0.01 and at most 100.0"),
        ("guaranteed_rate = nan\n" + SIGNATURE + EXEC, "guaranteed_rate: got nan, wanted at least 0 and at most"),
        ("slo = '20000min'\n" + SIGNATURE + EXEC, "slo: got '20000min', wanted at most 10080min"),
        ("slo = 'nans'\n" + SIGNATURE + EXEC, "slo: got 'nans', wanted a number"),
        ("timeout = '1e6min'\n" + SIGNATURE + EXEC, "timeout: got '1e6min', wanted at most 10080min"),
        ("cache_ttl = '1e300s'\n" + SIGNATURE + EXEC, "cache_ttl: got '1e300s', wanted a number"),
        ("memory_limit = '1e9GiB'\n" + SIGNATURE + EXEC, "memory_limit: got '1e9GiB', wanted at most 1048576GiB"),
        ("memory_limit = '-1GiB'\n" + SIGNATURE + EXEC, "memory_limit: got '-1GiB', wanted at least 0"),
        ("cache = 1\n" + SIGNATURE + EXEC, "Expected `bool`, got `int` - at `$.cache`: got 1"),
        (SIGNATURE.replace("4]", "0x" + "f" * 30 + "]") + EXEC, "inputs: x: shape: got [-1, 13292279957849"),
        (SIGNATURE.replace("4]", f"{MAX_DIM}]") + EXEC, "got a batch of 1 rows of FP32[1099511627776], 4398"),
        (SIGNATURE.replace("4]", f"{MAX_DIM}, {MAX_DIM}]") + EXEC, "inputs: x: got a batch of 1 rows of FP32"),
        (SIGNATURE.replace("FP32", "BYTES").replace("4]", "10000000000]") + EXEC, "80000000000 bytes, wanted at most"),
        (f"profile_length = {MAX_DIM}\n" + SIGNATURE.replace("4]", "-1]") + EXEC, "inputs: x: got a batch of 1 rows"),
        (SIGNATURE.replace("4]", "40960]") + "[emulated]\nexec_ms = { 1048576 = 1.0 }", "a batch of 1048576 rows"),
        (f"[[inputs]]\nname = '{'x' * 2000}'\ndatatype = 'FP32'\nshape = [-1]\n" + EXEC, "outputs: got none"),
        ("slo = '" + "9" * 5000 + "'\n" + SIGNATURE + EXEC, "slo: got '9999"),
        ("max_length = " + "9" * 5000, "Exceeds the limit (4300 digits)"),
        ("# " + "x" * (1 << 20), "got more than 262144 bytes, wanted at most 262144"),
        ("slo = '50'", "model.toml: slo: got '50', wanted a number with one of ns, us, ms"),
        ("slo = 50", "model.toml: Expected `str`, got `int` - at `$.slo`"),
        ("sloo = '5ms'", "model.toml: got the key 'sloo', wanted one of runtime, file, versions, "),
        ("[emulated]\nexec = 1", "model.toml: [emulated]: got the key 'exec', wanted one of exec_ms, "),
        ("[[inputs]]\ntype = 'FP32'", "[[inputs]]: got the key 'type', wanted one of name, datatype, "),
        ("inputs = 5", "model.toml: "),
        ("batch_sizes = [4, 2]", "batch_sizes: got [4, 2], wanted ascending"),
        ("file = '../m.onnx'", "file: got '../m.onnx', wanted a path in the folder of the version"),
        ("versions = ['1']", "versions: got ('1',), wanted it in "),
        (
            "declared_outputs_only = true\n" + SIGNATURE + EXEC,
            "declared_outputs_only: got True, wanted none for 'emulated'",
        ),
        ("gpu_memory = '1GiB'\n" + SIGNATURE + EXEC, "gpu_memory: got '1GiB', wanted none for 'emulated'"),
        (SIGNATURE + "reshape = [-1, 4]\n" + EXEC, "y: reshape: got one, wanted none for 'emulated'"),
        (SIGNATURE + "reshape = [-1, 5]\n" + EXEC, "y: reshape: got [-1, 5], wanted as many elements"),
        ("runtime = 'torch'", "runtime: got 'torch', wanted one of onnx, pytorch, torchscript, python, emulated"),
        ("runtime = 'emulated'\n" + SIGNATURE, "emulated: got no table, wanted [emulated]"),
        (SIGNATURE.replace("FP32", "FLOAT"), "inputs: x: datatype: got 'FLOAT', wanted one of BOOL"),
        (SIGNATURE.replace("-1", "-2"), "inputs: x: shape: got [-2, 4]"),
        (SIGNATURE + SIGNATURE, "inputs: name: got 'x', wanted a unique name"),
        (SIGNATURE.replace("[-1", "[" + "-1, " * 33 + "-1", 1), "at most 32 sizes"),
        ("slo = " + "[" * 5000, "nested more than 16 deep, wanted at most 16"),
        ("[[[", "model.toml: "),
    ],
)  # fmt: skip
def test_a_bad_manifest_is_named_and_leaves_the_other_models(tmp_path: Path, manifest: str, wanted: str) -> None:
    a_folder(tmp_path / "models", "evil", manifest)
    an_emulated_model(tmp_path / "models", "good")
    evil, good = a_store(tmp_path).scan()
    assert good.profile is not None
    assert evil.profile is None
    assert wanted in evil.reason
    assert len(msgspec.msgpack.encode((evil, good))) < 2 * TEXT_MAX


class Odd(EmulatedRuntime):
    """A runtime that reports what a broken or malicious model file could: `odd` replaces fields of the spec."""

    odd: ClassVar[dict[str, object]] = {}
    times: ClassVar[Profile | None] = None

    def inspect(self, folder: Path) -> ModelSpec:
        spec = super().inspect(folder)
        return msgspec.structs.replace(spec, **self.odd) if spec.name == "evil" else spec

    def profile(self, spec: ModelSpec, folder: Path) -> Profile:
        return self.times if self.times and spec.name == "evil" else super().profile(spec, folder)


MANY = tuple(TensorSpec(f"input number {number}", "FP32", (-1, 4)) for number in range(4000))


@pytest.mark.parametrize(
    ("odd", "times", "wanted"),
    [
        ({"weights_bytes": 10**30}, None, "weights_bytes: got 1000000000000000000000000000000, wanted at least 0"),
        ({"weights_bytes": -1}, None, "weights_bytes: got -1, wanted at least 0"),
        ({"slo_ns": 1 << 64}, None, "slo: got 18446744073709551616, wanted"),
        ({"batch_sizes": ()}, None, "batch_sizes: got none, wanted at least one"),
        ({"batch_sizes": (2, 1)}, None, "batch_sizes: got [2, 1], wanted ascending"),
        ({"inputs": (TensorSpec("x", "FP32", (-1, MAX_DIM + 1)),)}, None, "inputs: x: shape: got"),
        ({"inputs": (TensorSpec("\udcff", "FP32", (-1, 4)),)}, None, "inputs: name: got '\\udcff', wanted 1 to 1024"),
        ({"inputs": (TensorSpec("x" * 2000, "FP32", (-1, 4)),)}, None, "wanted 1 to 1024 characters"),
        ({"outputs": (TensorSpec("y", "FP33", (-1, 4)),)}, None, "outputs: y: datatype: got 'FP33', wanted one of"),
        ({"inputs": MANY}, None, "bytes of names, shapes and labels, wanted at most 65536"),
        ({"inputs": MANY * 2}, None, "inputs: got 8000, wanted at most 4096"),
        ({}, Profile({1: 10**30, 2: 1}, 1), "exec_ns of batch size 1: got 1000000000000000000000000000000, wanted"),
        ({}, Profile({1: -5, 2: 1}, 1), "exec_ns of batch size 1: got -5, wanted"),
        ({}, Profile({0: 1, 1: 1, 2: 1}, 1), "exec_ns: got [0, 1, 2], wanted ascending"),
        ({}, Profile({1: 1, 2: 1}, ms(1e15)), "load_ns: got 1000000000000000000000, wanted at least 0"),
    ],
)
def test_what_a_runtime_reports_is_checked_before_it_is_sent(
    tmp_path: Path, odd: dict[str, object], times: Profile | None, wanted: str
) -> None:
    for name in ("evil", "good"):
        an_emulated_model(tmp_path / "models", name)
    kind = type("Kind", (Odd,), {"odd": odd, "times": times})
    evil, good = a_store(tmp_path, runtimes={"emulated": kind}).scan()
    assert (evil.profile, good.reason) == (None, "")
    assert wanted in evil.reason
    msgspec.msgpack.encode((evil, good))


def test_limits_are_in_the_range() -> None:
    check_spec(a_spec(slo_ns=7 * 86_400 * 10**9, weights_bytes=1 << 50, batch_sizes=(1, 1 << 20), max_length=MAX_DIM))
    check_profile(Profile({1: 0, 1 << 20: 7 * 86_400 * 10**9}, 0))
    check_size(a_spec())
    with pytest.raises(InvalidInput, match="name: got 'a/b'"):
        check_spec(msgspec.structs.replace(a_spec(), name="a/b"))


def test_a_reason_of_megabytes_is_shortened(tmp_path: Path) -> None:
    """It would make the message too large that carries the reasons of other models and requests."""
    source = f"raise RuntimeError('x' * {20 << 20})\n{ECHO}"
    a_folder(tmp_path / "models", "evil", "batch_sizes = [1]" + SIGNATURE, model_py=source)
    report = only_report(tmp_path)
    assert len(report.reason) < TEXT_MAX + 50
    assert len(HorologeError("y" * 20_000_000).reason) < TEXT_MAX + 50
    assert len(describe_exception(ValueError("z" * 20_000_000))) < TEXT_MAX + 50
