"""Logs whose reader goes away, stops, or whose disk is full: the process that writes neither fails nor waits."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpu_worker.repository_harness import open_model
from harness.model_folders import a_python_model
from horologe_common.service.standard_streams import LossyFile
from horologe_gpu_worker.runtimes.python.python_runtime import PythonRuntime

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        try:
            os.close(descriptor)
        except OSError:
            continue


def read_all(reader: int) -> bytes:
    """Return what is in the pipe now."""
    os.set_blocking(reader, False)
    content = b""
    try:
        while part := os.read(reader, 1 << 16):
            content += part
    except BlockingIOError:
        pass
    return content


def test_what_a_reader_takes_is_written(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    file, taken = LossyFile(writer), bytearray()

    def read() -> None:
        while part := os.read(reader, 1 << 14):
            taken.extend(part)

    thread = threading.Thread(target=read)
    thread.start()
    content = os.urandom(3_000_001)
    assert file.write(content) == len(content)
    os.close(writer)
    thread.join(10)
    assert bytes(taken) == content
    assert file.lost_bytes == 0


def test_bytes_for_a_reader_that_has_ended_are_counted(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    file = LossyFile(writer)
    os.close(reader)
    assert file.write(b"x" * 10_000) == 10_000
    assert file.write(b"y") == 1
    assert file.lost_bytes == 10_001


def test_a_reader_that_stops_does_not_stop_the_writer(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    file = LossyFile(writer)
    for _ in range(200):
        file.write(b"x" * 1_000)
    written = read_all(reader)
    assert 0 < len(written) < 200_000
    assert len(written) + file.lost_bytes == 200_000
    file.write(b"again")
    assert read_all(reader) == b"again"


def test_a_full_disk_is_no_error() -> None:
    with open("/dev/full", "wb") as full:
        file = LossyFile(full.fileno())
        assert file.write(b"x" * 100) == 100
        assert file.lost_bytes == 100


def test_a_descriptor_that_is_closed_later_is_no_error(pipe: tuple[int, int]) -> None:
    file = LossyFile(pipe[1])
    os.close(pipe[1])
    assert file.write(b"x") == 1
    assert file.lost_bytes == 1


PROGRAM = """
import os, sys
from horologe_common.service.standard_streams import install_lossy_streams, lost_bytes
install_lossy_streams()
for _ in range(1000):
    print("out" * 100)
    print("error" * 100, file=sys.stderr)
sys.stdout.flush()
os.write(int(sys.argv[1]), b"%d" % (lost_bytes() > 0))
"""


@pytest.mark.parametrize(
    ("redirection", "loses"),
    [
        (">&- 2>&-", 0),
        ("<&- >&- 2>&-", 0),
        (">/dev/full 2>/dev/full", 1),
        (">/dev/null 2>&1", 0),
        ("2>&1 | head -n 1 >/dev/null", 1),
        ("2>&1 | sleep 3", 1),
    ],
)
def test_a_program_ends_well_whatever_its_streams_are(redirection: str, loses: int) -> None:
    reader, writer = os.pipe()
    try:
        command = f"'{sys.executable}' -c '{PROGRAM}' {writer} {redirection}"
        subprocess.run(["bash", "-o", "pipefail", "-c", command], pass_fds=(writer,), check=True, timeout=20)
        assert os.read(reader, 10) == b"%d" % loses
    finally:
        os.close(reader)
        os.close(writer)


def test_an_encoding_that_lacks_a_character_is_no_error() -> None:
    program = (
        "from horologe_common.service.standard_streams import install_lossy_streams\n"
        "install_lossy_streams(); print('\\u2713 \\udc80')"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    assert done.stdout == b"\\u2713 \\udc80\n"


CHATTER = """
import sys
class Model:
    def predict_batch(self, inputs):
        print("chatter " * 100_000)
        print("chatter " * 100_000, file=sys.stderr, flush=True)
        return {"y": inputs["x"]}
"""
WORKER = """
import pathlib, sys, numpy as np
from horologe_gpu_worker.runtimes.python.python_runtime import PythonRuntime
runtime, folder = PythonRuntime(), pathlib.Path(sys.argv[1])
model = runtime.open(runtime.inspect(folder), folder)
print(model.run(1, {"x": np.full((1, 4), 7, np.float32)})["y"].tolist())
model.close()
"""


@pytest.mark.parametrize("stderr", ["closed", "stopped", "full"])
def test_a_python_model_prints_to_a_log_that_nobody_reads(tmp_path: Path, stderr: str, pipe: tuple[int, int]) -> None:
    folder = a_python_model(tmp_path, CHATTER, batch_sizes=[1], timeout='"10s"')
    reader, writer = pipe
    if stderr == "closed":
        os.close(reader)
    if stderr == "full":
        with open("/dev/full", "wb") as full:
            os.dup2(full.fileno(), writer)
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(folder)], stdout=subprocess.PIPE, stderr=writer, timeout=30, check=True
    )
    assert done.stdout == b"[[7.0, 7.0, 7.0, 7.0]]\n"


CLOSED = """
import sys
class Model:
    def predict_batch(self, inputs):
        sys.stdout.close()
        sys.stderr.close()
        return {"y": inputs["x"]}
"""


def test_a_python_model_that_closes_its_streams_serves(tmp_path: Path) -> None:
    x = np.ones((1, 4), np.float32)
    with open_model(PythonRuntime(), a_python_model(tmp_path, CLOSED)) as model:
        np.testing.assert_array_equal(model.run(1, {"x": x})["y"], x)
