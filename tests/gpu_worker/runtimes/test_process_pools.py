"""Pools of a Python model: their processes import its module by name, unpickle its code, and end with the model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpu_worker.repository_harness import open_model
from harness.model_folders import a_python_model
from harness.waiting import is_running, until
from horologe_gpu_worker.runtimes.python.python_runtime import PythonRuntime

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from horologe_gpu_worker.runtimes.python.python_runtime import PythonModel

POOL = """
import dataclasses, multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
import numpy as np
import neighbour

factor = 1

def set_factor(value):
    global factor
    factor = value

def double(row):
    return [2 * value for value in row]

def scale(row):
    return [factor * value for value in row]

def put_double(queue, row):
    queue.put(double(row))

def see(row):
    return [float("horologe_gpu_worker" in sys.modules), float("numpy" in sys.modules), os.getpid(), os.getppid()]

class Refusal(Exception):
    pass

def refuse(row):
    raise Refusal("no")

@dataclasses.dataclass
class Rows:
    values: list

    def doubled(self):
        return Rows(double(self.values))

    @staticmethod
    def double(row):
        return double(row)

class Model:
    def __init__(self):
        {make}

    def predict_batch(self, inputs):
        rows = inputs["x"].tolist()
        {use}
        return {{"y": np.array(answer, np.float32)}}
"""
SPAWN = 'self.pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))'
MEMBERS = {
    "spawn": (SPAWN, "answer = list(self.pool.map(double, rows))"),
    "forkserver": (SPAWN.replace("spawn", "forkserver"), "answer = list(self.pool.map(double, rows))"),
    "fork": (SPAWN.replace("spawn", "fork"), "answer = list(self.pool.map(double, rows))"),
    "initializer": (
        'self.pool = multiprocessing.get_context("spawn").Pool(1, set_factor, (2,))',
        "answer = self.pool.map(scale, rows)",
    ),
    "process": (
        'self.context = multiprocessing.get_context("spawn")',
        (
            "queue = self.context.SimpleQueue(); answer = []\n"
            "        for row in rows:\n"
            "            process = self.context.Process(target=put_double, args=(queue, row)); process.start()\n"
            "            answer.append(queue.get()); process.join()"
        ),
    ),
    "neighbour": (SPAWN, "answer = list(self.pool.map(neighbour.double, rows))"),
    "static method": (SPAWN, "answer = list(self.pool.map(Rows.double, rows))"),
    "instances": (SPAWN, "answer = [rows.values for rows in self.pool.map(Rows.doubled, map(Rows, rows))]"),
    "exception": (
        SPAWN,
        (
            "answer = []\n"
            "        try: list(self.pool.map(refuse, rows))\n"
            "        except Refusal: answer = [double(row) for row in rows]"
        ),
    ),
    "joblib": (
        "from joblib import Parallel, delayed; self.run, self.delayed = Parallel(2), delayed",
        "answer = self.run(self.delayed(double)(row) for row in rows)",
    ),
    "joblib with a lambda": (
        "from joblib import Parallel, delayed; self.run, self.delayed = Parallel(2), delayed",
        "answer = self.run(self.delayed(lambda row: double(row))(row) for row in rows)",
    ),
}
X = np.array([[1, 2, 3, 4]], np.float32)


def open_pool(
    repository: Path, make: str, use: str, name: str = "pool", **replaced: str
) -> AbstractContextManager[PythonModel]:
    """Open a model of batch size 1 that uses a pool. `replaced`: texts of the source, with underscores for spaces."""
    source = POOL.format(make=make, use=use)
    for old, new in replaced.items():
        source = source.replace(old.replace("_", " "), new)
    folder = a_python_model(repository, source, name, batch_sizes=[1], timeout='"20s"')
    (folder / "neighbour.py").write_text("def double(row):\n    return [2 * value for value in row]\n")
    return open_model(PythonRuntime(), folder)


@pytest.mark.parametrize("member", MEMBERS)
def test_a_model_uses_a_pool(tmp_path: Path, member: str) -> None:
    if member.startswith("joblib"):
        pytest.importorskip("joblib")
    make, use = MEMBERS[member]
    with open_pool(tmp_path, make, use) as model:
        np.testing.assert_array_equal(model.run(1, {"x": X})["y"], 2 * X)
    assert not list(tmp_path.rglob("__pycache__"))


def test_a_pool_of_joblib_leaves_nothing_in_shared_memory(tmp_path: Path) -> None:
    pytest.importorskip("joblib")
    with open_pool(tmp_path, *MEMBERS["joblib"]) as model:
        model.run(1, {"x": X})
        assert model._process is not None
        pid = model._process._child.process.pid
    assert not [name for name in os.listdir("/dev/shm") if f"-{pid}-" in name or f"_{pid}_" in name]


def test_two_models_with_functions_of_one_name_do_not_meet(tmp_path: Path) -> None:
    use = "answer = list(self.pool.map(double, rows))"
    with open_pool(tmp_path, SPAWN, use, "a") as first, open_pool(
        tmp_path, SPAWN, use, "b", **{"[2_*_value": "[3 * value"}
    ) as second:  # fmt: skip
        for _ in range(2):
            np.testing.assert_array_equal(first.run(1, {"x": X})["y"], 2 * X)
            np.testing.assert_array_equal(second.run(1, {"x": X})["y"], 3 * X)


def test_a_package_called_model_beside_the_file_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / "pool" / "1" / "model"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "network.py").write_text("def double(row):\n    return [2 * value for value in row]\n")
    path = tmp_path / "pool" / "1"
    (path / "model.py").write_text(
        POOL.format(make=SPAWN, use="answer = list(self.pool.map(network.double, rows))").replace(
            "import neighbour", "from model import network"
        )
    )
    described = a_python_model(tmp_path / "other", "", batch_sizes=[1], timeout='"20s"') / "model.toml"
    (path / "model.toml").write_text(described.read_text())
    with open_model(PythonRuntime(), path) as model:
        np.testing.assert_array_equal(model.run(1, {"x": X})["y"], 2 * X)


def test_processes_of_a_pool_do_not_import_the_worker_and_end_with_their_model(tmp_path: Path) -> None:
    with open_pool(tmp_path, SPAWN, "answer = list(self.pool.map(see, rows))") as model:
        has_worker, has_numpy, pid, parent = model.run(1, {"x": X})["y"][0].tolist()
        assert (has_worker, has_numpy) == (0, 1)
        assert is_running(int(pid))
        assert is_running(int(parent))
    until(lambda: not is_running(int(pid)) and not is_running(int(parent)))
