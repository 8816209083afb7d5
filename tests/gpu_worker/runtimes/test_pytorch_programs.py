"""Exported programs as users export them: dimensions without bounds, constants, numbers, trees, views."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")
ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

from bench_gpu.pretend import pretend_cuda
from gpu_worker.repository_harness import a_program, a_store
from horologe_common.models import DTYPES, PAGE_BYTES, ModelSpec
from horologe_common.status import ModelFailed, Status
from horologe_common.wire.frames import encode_array
from horologe_gpu_worker.core.lanes import LaneOperation
from horologe_gpu_worker.execution.device_models import DeviceModels
from horologe_gpu_worker.repository.manifest import InvalidModel
from horologe_gpu_worker.runtime import WarmUpFailed
from horologe_gpu_worker.runtimes.pytorch.pytorch_runtime import PytorchRuntime
from horologe_gpu_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

Dim = torch.export.Dim
ROWS = {0: Dim("rows")}
X = torch.zeros(3, 2)


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.table = torch.nn.Parameter(torch.arange(4.0))

    def forward(self, *arguments: Any) -> Any:
        return self.function(*arguments)


class Export(NamedTuple):
    """A module, its example arguments and dynamic shapes; its signature; inputs and outputs of a request."""

    module: Any
    arguments: tuple[Any, ...]
    shapes: Any
    inputs: dict[str, tuple[int, ...]]
    outputs: dict[str, tuple[int, ...]]
    given: dict[str, Any]
    wanted: dict[str, Any]


class Keywords(torch.nn.Module):
    def forward(
        self, x: Any, mask: Any = None, n: int = 3, flag: bool = True, scale: float = 0.5, mode: str = "a"
    ) -> Any:
        assert mask is None
        return {"y": x * n * scale, "hidden": None, "n": n, "flag": flag, "scale": scale}


class Tree(torch.nn.Module):
    def forward(self, d: Any, pair: Any) -> Any:
        return {"a": (d["p"] + pair[0], pair[1][0] * 2), "b": {"c": d["q"] + 1}}


class Named(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.table = torch.nn.Parameter(torch.arange(4.0))

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


class Count(torch.nn.Module):
    def forward(self, x: Any, n: int) -> Any:
        return x + n, n, x.shape[0]


class Two(torch.nn.Module):
    def forward(self, x: Any, z: Any) -> Any:
        return x + 2 * z, x


def of_x(
    function: Callable[..., Any], outputs: dict[str, tuple[int, ...]], wanted: dict[str, Any], **more: Any
) -> Export:
    x = [[1.0, 2.0], [3.0, 4.0]]
    return Export(Named(function), (X,), (ROWS,), {"x": (-1, 2)}, outputs, {"x": x}, wanted)


HALF = (-1, 2)
EXPORTS: dict[str, Export] = {
    "None and constants as arguments and outputs": Export(
        Keywords(), (X, None, 4, True, 0.25, "q"), (ROWS, None, None, None, None, None), {"x": HALF},
        {"y": HALF, "n": (), "flag": (), "scale": ()}, {"x": [[1, 2]]},
        {"y": [[1, 2]], "n": 4, "flag": True, "scale": 0.25},
    ),
    "only None beside a tensor": of_x(
        lambda self, x: (None, x + 1, None), {"output_1": HALF}, {"output_1": [[2, 3], [4, 5]]}
    ),
    "dicts and nested tuples": Export(
        Tree(), ({"p": X + 1, "q": X + 1}, (X + 1, (X + 1,))), ({"p": ROWS, "q": ROWS}, (ROWS, (ROWS,))),
        {"d_p": HALF, "d_q": HALF, "pair_0": HALF, "pair_1_0": HALF},
        {"a_0": HALF, "a_1": HALF, "b_c": HALF},
        {"d_p": [[1, 1]], "d_q": [[2, 2]], "pair_0": [[3, 3]], "pair_1_0": [[4, 4]]},
        {"a_0": [[4, 4]], "a_1": [[8, 8]], "b_c": [[3, 3]]},
    ),
    "a dict in a tuple": of_x(
        lambda self, x: (x, {"more": x + 1}), {"output_0": HALF, "output_1_more": HALF},
        {"output_0": [[1, 2], [3, 4]], "output_1_more": [[2, 3], [4, 5]]},
    ),
    "names that would not be unique": of_x(
        lambda self, x: {"a": {"b": x}, "a_b": x + 1}, {"output_0": HALF, "output_1": HALF},
        {"output_0": [[1, 2], [3, 4]], "output_1": [[2, 3], [4, 5]]},
    ),
    "nested tuples": of_x(
        lambda self, x: ((x, x + 1), x + 2), {"output_0": HALF, "output_1": HALF, "output_2": HALF},
        {"output_0": [[1, 2], [3, 4]], "output_1": [[2, 3], [4, 5]], "output_2": [[3, 4], [5, 6]]},
    ),
    "an input as an output, twice": of_x(
        lambda self, x: {"y": x, "again": x}, {"y": HALF, "again": HALF},
        {"y": [[1, 2], [3, 4]], "again": [[1, 2], [3, 4]]},
    ),
    "a view of the input": of_x(lambda self, x: {"y": x[:, 1]}, {"y": (-1,)}, {"y": [2, 4]}),
    "views of another output": of_x(
        lambda self, x: (lambda y: {"y": y, "first": y[:, :1], "flipped": y.flip(1)})(x + 1),
        {"y": HALF, "first": (-1, 1), "flipped": HALF},
        {"y": [[2, 3], [4, 5]], "first": [[2], [4]], "flipped": [[3, 2], [5, 4]]},
    ),
    "an output that is not contiguous": of_x(
        lambda self, x: {"y": (x.unsqueeze(1) + torch.arange(3.0).reshape(1, 3, 1)).transpose(1, 2)}, {"y": (-1, 2, 3)},
        {"y": [[[1, 2, 3], [2, 3, 4]], [[3, 4, 5], [4, 5, 6]]]},
    ),
    "an output that is expanded": of_x(
        lambda self, x: {"y": x[:, :1].expand(-1, 3)}, {"y": (-1, 3)}, {"y": [[1, 1, 1], [3, 3, 3]]}
    ),
    "an output that is lazily negated": of_x(
        lambda self, x: {"y": torch.complex(x, x).conj().imag}, {"y": HALF}, {"y": [[-1, -2], [-3, -4]]}
    ),
    "an output without elements": of_x(lambda self, x: {"y": x[:, :0]}, {"y": (-1, 0)}, {"y": [[], []]}),
    "a weight and a view of it as outputs": Export(
        Named(lambda self, x: {"y": x + 1, "table": self.table, "last": self.table[3], "part": self.table[1:3]}),
        (X,), None, {"x": (3, 2)}, {"y": (3, 2), "table": (4,), "last": (), "part": (2,)}, {"x": [[0, 0]] * 3},
        {"y": [[1, 1]] * 3, "table": [0, 1, 2, 3], "last": 3, "part": [1, 2]},
    ),
    "a tensor without dimensions": Export(
        Two(), (torch.tensor(1.0), torch.tensor(2.0)), None, {"x": (), "z": ()}, {"output_0": (), "output_1": ()},
        {"x": 3, "z": 4}, {"output_0": 11, "output_1": 3},
    ),
    "a constant tensor": Export(
        Named(lambda self, x: {"y": x, "three": torch.full((2,), 3)}), (X,), None, {"x": (3, 2)},
        {"y": (3, 2), "three": (2,)}, {"x": [[1, 1]] * 3}, {"y": [[1, 1]] * 3, "three": [3, 3]},
    ),
    "constant numbers beside a fixed shape": Export(
        Named(lambda self, x: {"y": x + 1, "n": 3, "half": 0.5, "yes": True, "rows": x.shape[0]}), (X,), None,
        {"x": (3, 2)}, {"y": (3, 2), "n": (), "half": (), "yes": (), "rows": ()}, {"x": [[1, 1]] * 3},
        {"y": [[2, 2]] * 3, "n": 3, "half": 0.5, "yes": True, "rows": 3},
    ),
    "the number of rows": of_x(
        lambda self, x: (x, x.shape[0] * 2), {"output_0": HALF, "output_1": ()},
        {"output_0": [[1, 2], [3, 4]], "output_1": 4},
    ),
    "a number that differs between requests": Export(
        Count(), (X, 4), (ROWS, Dim.DYNAMIC), {"x": HALF, "n": ()}, {"output_0": HALF, "output_1": (), "output_2": ()},
        {"x": [[1, 2], [3, 4]], "n": 7}, {"output_0": [[8, 9], [10, 11]], "output_1": 7, "output_2": 2},
    ),
    "detections of an image": Export(
        Named(lambda self, x: {"boxes": (x > 2).nonzero()}), (X,), (ROWS,), {"x": HALF}, {"boxes": (-1, 2)},
        {"x": [[1, 2], [3, 4]]}, {"boxes": [[1, 0], [1, 1]]},
    ),
}  # fmt: skip
NOT_ON_CUDA = {"detections of an image": "outputs: got shapes that depend on the values of inputs"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in made:
            export = EXPORTS[kind]
            made[kind] = a_program(tmp_path_factory.mktemp("m"), export.module, export.arguments, export.shapes)
        return made[kind]

    return folder


def given_arrays(export: Export, spec: ModelSpec) -> dict[str, np.ndarray[Any, Any]]:
    return {tensor.name: np.array(export.given[tensor.name], DTYPES[tensor.datatype]) for tensor in spec.inputs}


def check_signature(export: Export, spec: ModelSpec) -> None:
    assert {tensor.name: tensor.shape for tensor in spec.inputs} == export.inputs
    assert {tensor.name: tensor.shape for tensor in spec.outputs} == export.outputs


@pytest.mark.parametrize("kind", EXPORTS)
def test_a_program_answers_like_its_module_on_a_device(kind: str, folders: Callable[[str], Path]) -> None:
    folder = folders(kind)
    with pretend_cuda():
        runtime = PytorchRuntime(WorkerSettings(device="cuda:0", pages_bytes=4 * PAGE_BYTES, io_cache_bytes=1 << 20))
        if text := NOT_ON_CUDA.get(kind):
            with pytest.raises(InvalidModel, match=text):
                runtime.inspect(folder)
        else:
            export, spec = EXPORTS[kind], runtime.inspect(folder)
            check_signature(export, spec)
            runtime.prepare(spec, folder)
            model = runtime.open(spec, folder)
            inputs = given_arrays(export, spec)
            rows = len(next(iter(inputs.values()))) if spec.batched else 1
            outputs = model.run(rows, inputs)
            model.close()
            assert {name: output.tolist() for name, output in outputs.items()} == {
                name: np.array(wanted).tolist() for name, wanted in export.wanted.items()
            }


# dimensions


def double(x: Any) -> Any:
    return x * 2


@pytest.mark.parametrize(
    ("dim", "sizes"),
    [
        (Dim("batch"), (1, 2, 4, 8, 16)),
        (Dim.AUTO, (2, 4, 8, 16)),
        (Dim.DYNAMIC, (2, 4, 8, 16)),
        (Dim("batch", min=2), (2, 4, 8, 16)),
        (Dim("batch", max=12), (1, 2, 4, 8, 12)),
        (Dim("batch", min=3, max=5), (3, 4, 5)),
        (Dim("batch", min=20), (20,)),
        (Dim("batch", max=200), (1, 2, 4, 8, 16)),
        (2 * Dim("half", max=5), (4, 8, 10)),
        (3 * Dim("third") + 1, (7, 16)),
    ],
    ids=str,
)
def test_default_batch_sizes_are_those_that_the_program_takes(dim: Any, sizes: tuple[int, ...], tmp_path: Path) -> None:
    count = 22 if sizes == (20,) else 7 if 7 in sizes else 4
    folder = a_program(tmp_path, Function(double), (torch.zeros(count, 2),), (({0: dim},),))
    runtime = PytorchRuntime(WorkerSettings(pages_bytes=4 * PAGE_BYTES))
    spec = runtime.inspect(folder)
    assert (spec.batched, spec.batch_sizes) == (True, sizes)
    runtime.prepare(spec, folder)


@pytest.mark.parametrize(
    ("dim", "sizes", "text"),
    [
        (Dim.AUTO, [1, 2], r"got \[1, 2\], wanted at least 2, as the program"),
        (Dim("batch", max=12), [1, 16], r"got \[1, 16\], wanted 1 to 12, as"),
        (2 * Dim("half"), [4, 5], r"got \[4, 5\], wanted at least 4, of the form 2\*s\d+, as"),
    ],
    ids=str,
)
def test_batch_sizes_that_it_does_not_take_are_named(dim: Any, sizes: list[int], text: str, tmp_path: Path) -> None:
    folder = a_program(tmp_path, Function(double), (torch.zeros(4, 2),), (({0: dim},),), f"batch_sizes = {sizes}")
    with pytest.raises(InvalidModel, match=f"batch_sizes: {text}"):
        PytorchRuntime().inspect(folder)


TOKENS = Dim("tokens", min=2, max=500)


class Masked(torch.nn.Module):
    """Adds a mask that is longer than the tokens."""

    def forward(self, x: Any, mask: Any) -> Any:
        return torch.cat([x, x[:, :1]], 1) * mask


class Past(torch.nn.Module):
    def forward(self, x: Any, past: Any) -> Any:
        return torch.cat([past, x], 1)


LENGTHS: dict[str, tuple[Any, Any, Any, str, tuple[tuple[int, ...], ...]]] = {
    "a mask that is one longer": (
        Masked(), (torch.zeros(3, 5), torch.zeros(3, 6)), (ROWS | {1: TOKENS}, ROWS | {1: TOKENS + 1}), "",
        ((-1, -1), (-1, 17)),
    ),
    "within a limit": (
        Masked(), (torch.zeros(3, 5), torch.zeros(3, 6)), (ROWS | {1: TOKENS}, ROWS | {1: TOKENS + 1}),
        "max_length = 8", ((-1, 7), (-1, -1)),
    ),
    "at least 100 samples": (
        Function(double), (torch.zeros(3, 120),), ((ROWS | {1: Dim("samples", min=100)},),), "", ((-1, 100),),
    ),
    "at most 9": (
        Function(double), (torch.zeros(3, 5),), ((ROWS | {1: Dim("samples", max=9)},),), "", ((-1, 9),),
    ),
    "blocks of eight": (
        Function(double), (torch.zeros(3, 24),), ((ROWS | {1: 8 * Dim("blocks")},),), "", ((-1, 128),),
    ),
    "two lengths": (
        Past(), (torch.zeros(3, 5), torch.zeros(3, 6)), (ROWS | {1: Dim("new")}, ROWS | {1: Dim("old")}), "", (),
    ),
    "two lengths of which one is given": (
        Past(), (torch.zeros(3, 5), torch.zeros(3, 6)), (ROWS | {1: Dim("new")}, ROWS | {1: Dim("old")}),
        """[[inputs]]
        name = "x"
        datatype = "FP32"
        shape = [-1, -1]
        [[inputs]]
        name = "past"
        datatype = "FP32"
        shape = [-1, -1]
        warmup_shape = [-1, 0]""", ((-1, -1), (-1, 0)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", LENGTHS)
def test_lengths_of_the_warm_up_fit_together(kind: str, tmp_path: Path) -> None:
    module, arguments, shapes, manifest, wanted = LENGTHS[kind]
    folder = a_program(tmp_path, module, arguments, shapes, manifest)
    runtime = PytorchRuntime(WorkerSettings(pages_bytes=4 * PAGE_BYTES))
    spec = runtime.inspect(folder)
    assert spec.warmup_shapes == wanted
    runtime.prepare(spec, folder)


@pytest.mark.parametrize(
    ("module", "arguments", "shapes"),
    [
        (Named(lambda self, x: torch.cat([x, x])), (X,), (ROWS,)),
        (Named(lambda self, x: x.sum(0)), (X,), (ROWS,)),
        (Named(lambda self, x: x[1:]), (torch.zeros(5, 2),), ({0: Dim("rows", min=3)},)),
        (Named(lambda self, x: x.nonzero()), (X,), (ROWS,)),
        (Function(lambda x, z: x @ z.t()), (X, torch.zeros(4, 2)), (({0: Dim.AUTO}, {0: Dim.AUTO}),)),
        (Function(lambda x: x.flatten()), (X,), ((ROWS,),)),
        (Named(lambda self, x: x @ x.t()), (X,), (ROWS,)),
        (Function(lambda x, graph: graph @ x), (X, torch.ones(3, 3)), ((ROWS, {0: Dim("rows"), 1: Dim("rows")}),)),
    ],
    ids=[
        "twice the rows",
        "no rows",
        "one row less",
        "rows of its own",
        "two sets of rows",
        "all elements",
        "all pairs",
        "a graph",
    ],
)  # fmt: skip
def test_tensors_whose_first_dimensions_differ_are_not_batched(
    module: Any, arguments: Any, shapes: Any, tmp_path: Path
) -> None:
    folder = a_program(tmp_path, module, arguments, shapes)
    runtime = PytorchRuntime(WorkerSettings(pages_bytes=4 * PAGE_BYTES))
    spec = runtime.inspect(folder)
    assert (spec.batched, spec.batch_sizes) == (False, (1,))
    runtime.prepare(spec, folder)


@pytest.mark.parametrize(
    "function",
    [
        lambda self, x: x.flatten().reshape(-1, 2),
        lambda self, x: torch.cat([x, x]).reshape(2, -1, 2).sum(0),
        lambda self, x: x.repeat(3, 1).reshape(x.shape[0], -1),
        lambda self, x: torch.cat([x, x])[::2],
        lambda self, x: x.reshape(-1, 1, 2).expand(-1, 4, 2).flatten(0, 1).reshape(-1, 4, 2)[:, 0],
    ],
)
def test_rows_that_take_a_detour_are_still_rows(function: Any, tmp_path: Path) -> None:
    folder = a_program(tmp_path, Named(function), (torch.ones(3, 2),), (ROWS,))
    assert PytorchRuntime(WorkerSettings(pages_bytes=4 * PAGE_BYTES)).inspect(folder).batched


# what cannot be served


@pytest.mark.parametrize(
    ("module", "arguments", "text"),
    [
        (Named(lambda self, x: {"a": None, "b": None}), (X,), "outputs: got .*, wanted a tensor or a number"),
        (Named(lambda self, x: {"y": torch.complex(x, x)}), (X,), "output 'y': dtype: got torch.complex64, wanted"),
        (Function(lambda x: x.real), (torch.zeros(3, 2, dtype=torch.complex64),), "'arguments_0': dtype: got torch"),
        (Two(), (X, X), "'x': got a program that was exported with one tensor for 'x' and 'z' and never reads 'x'"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_named(module: Any, arguments: Any, text: str, tmp_path: Path) -> None:
    folder = a_program(tmp_path, module, arguments, None)
    with pytest.raises(InvalidModel, match=text):
        PytorchRuntime().inspect(folder)


def test_what_pytorch_cannot_load_is_named(tmp_path: Path) -> None:
    """PyTorch saves a text as an output, cannot load it, and logs the reason."""
    folder = a_program(tmp_path, Named(lambda self, x: {"y": x, "mode": "fast"}), (X,), None)
    text = "got SerializeError: Unable to deserialize output node .*fast.*, wanted a program saved by"
    with pytest.raises(InvalidModel, match=text):
        PytorchRuntime().inspect(folder)


def test_a_sparse_output_is_named(tmp_path: Path) -> None:
    folder = a_program(tmp_path, Named(lambda self, x: {"y": x.to_sparse()}), (X,), None)
    runtime = PytorchRuntime(WorkerSettings(pages_bytes=4 * PAGE_BYTES))
    with pytest.raises(ModelFailed, match=r"output 'y': layout: got torch.sparse_coo, wanted a dense tensor"):
        runtime.prepare(runtime.inspect(folder), folder)


def test_an_input_that_is_not_read_is_served(tmp_path: Path) -> None:
    folder = a_program(tmp_path, Function(lambda x, unread: x + 1), (X, torch.ones(3, 2)), ((ROWS, ROWS),))
    spec = PytorchRuntime().inspect(folder)
    assert [tensor.name for tensor in spec.inputs] == ["arguments_0", "arguments_1"]


# a device


def test_a_program_that_fails_on_zeros_is_captured_with_the_first_inputs(tmp_path: Path) -> None:
    ones = torch.ones(2, 2, dtype=torch.int64)
    folder = a_program(tmp_path, Named(lambda self, x: {"y": 12 // x}), (ones,), (ROWS,))
    with pretend_cuda():
        runtime = PytorchRuntime(WorkerSettings(device="cuda:0", pages_bytes=4 * PAGE_BYTES, io_cache_bytes=1 << 20))
        spec = runtime.inspect(folder)
        with pytest.raises(WarmUpFailed, match="ZeroDivisionError"):
            runtime.prepare(spec, folder)
        model = runtime.open(spec, folder, warm=False)
        with pytest.raises(ModelFailed, match="ZeroDivisionError"):
            model.run(1, {"x": np.array([[0, 1]])})
        for rows in (2, 1, 2):
            x = np.arange(1, 2 * rows + 1).reshape(rows, 2)
            assert model.run(rows, {"x": x})["y"].tolist() == (12 // x).tolist()
        model.close()


def test_a_device_is_warmed_up_on_the_given_values(tmp_path: Path) -> None:
    ones = torch.ones(2, 2, dtype=torch.int64)
    manifest = '[[inputs]]\nname = "x"\ndatatype = "INT64"\nshape = [-1, 2]\nwarmup = [3, 4]\n'
    folder = a_program(tmp_path, Named(lambda self, x: {"y": 12 // x}), (ones,), (ROWS,), manifest)
    with pretend_cuda():
        runtime = PytorchRuntime(WorkerSettings(device="cuda:0", pages_bytes=4 * PAGE_BYTES, io_cache_bytes=1 << 20))
        spec = runtime.inspect(folder)
        runtime.prepare(spec, folder)
        model = runtime.open(spec, folder)
        assert model.run(1, {"x": np.array([[2, 6]])})["y"].tolist() == [[6, 2]]
        model.close()


# lanes


@pytest.mark.parametrize("kind", EXPORTS)
def test_a_program_answers_like_its_module_and_its_answers_outlive_it(
    kind: str, folders: Callable[[str], Path], tmp_path: Path
) -> None:
    """Outputs may be weights, or views of the batch's inputs, whose memory the next batch uses."""
    export = EXPORTS[kind]
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "m").symlink_to(folders(kind).parent)
    store = a_store(tmp_path, settings=WorkerSettings(pages_bytes=4 * PAGE_BYTES))
    (report,) = store.scan()
    assert report.profile is not None, report.reason
    check_signature(export, report.spec)
    device = DeviceModels(store)

    def run(lane: str, factor: int = 1) -> Any:
        parts: list[Any] = []
        for name, given in given_arrays(export, report.spec).items():
            array = given * factor
            parts.append((encode_array(name, array)[0], [memoryview(array.tobytes())]))
        rows = parts[0][0].shape[0] if report.spec.batched else 1
        size = report.spec.compiled_batch_size(rows)
        done = device.run(LaneOperation(1, 0, lane, "m/1", size, rows, inputs=parts))
        assert done.status == Status.OK, done.reason
        return done.outputs

    run("load")
    outputs = run("exec")
    run("exec", 3)
    run("unload")
    assert [header.name for header, _ in outputs] == list(export.outputs)
    for header, content in outputs:
        wanted = np.array(export.wanted[header.name])
        got = np.frombuffer(bytes(content), DTYPES[header.datatype]).reshape(header.shape)
        np.testing.assert_array_equal(got, wanted, header.name)
