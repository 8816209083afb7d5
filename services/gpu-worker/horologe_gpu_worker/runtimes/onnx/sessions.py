"""Sessions of ONNX Runtime: their options, and the weights of a graph in separate files (ONNX's external data)."""

from __future__ import annotations

import os
import re
from functools import cache
from typing import TYPE_CHECKING, Any

import onnxruntime

from horologe_gpu_worker.repository.content import list_files
from horologe_gpu_worker.repository.manifest import InvalidModel
from horologe_gpu_worker.runtimes.onnx import version
from horologe_gpu_worker.runtimes.onnx.providers import CPU

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

QUIET = 3
"""ONNX Runtime's log severity "error": its warnings go to stderr past every log setting."""
LOCATION = re.compile(rb"\x0a\x08location\x12([\x00-\x7f]|[\x80-\xff][\x00-\x7f])")
"""Start of an entry of `TensorProto.external_data` with the key `location`, and the size of its value as a varint."""


def open_session(path: Path, threads: int, optimise: bool, providers: Sequence[Any] = (CPU,)) -> Any:
    """Open a graph. With several `threads`, an EXEC runs on all of them. Raises `InvalidModel`."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = QUIET
    # A spinning thread pool would take the CPU of the next EXEC.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if tuple(providers) == (CPU,):
        _share_arena()
        options.add_session_config_entry("session.use_env_allocators", "1")
    if not optimise:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if not path.is_file():
        raise InvalidModel(f"{path}: got no such file, wanted an ONNX model")
    weights = _add_external_data(options, path)
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=list(providers))
    except Exception as error:  # ONNX Runtime raises a dozen classes without a common base class
        raise InvalidModel(f"{path}: got {error}, wanted a model that ONNX Runtime can open") from error
    del weights  # from here on the session has a copy
    return session


@cache
def _share_arena() -> None:
    """Give all sessions of the process one arena. A session of digits-cnn with an arena of its own held 25 MB after a
    batch of 16; with a common one 0.7 MB.
    """
    memory = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    onnxruntime.create_and_register_allocator(memory, None)


def _add_external_data(options: Any, path: Path) -> list[bytes]:
    """Give a session the contents of the files that the graph at `path` names.

    ONNX Runtime maps such files into its memory. A change of a file would then change the answers of loaded models, and
    a file that becomes shorter would end the process (SIGBUS).

    Return the contents. Keep them until the session exists, which copies them: the options have only their addresses.
    Raises `InvalidModel` if one of the files is not part of the model's content, and OSError.
    """
    locations = dict.fromkeys(_locations(path.read_bytes()))
    if not locations:
        return []
    if not hasattr(options, "add_external_initializers_from_files_in_memory"):
        raise InvalidModel(f"{path}: external data: got onnxruntime {version()}, wanted 1.24 or newer")
    files = {file.name: file.path for file in list_files(path.parent)}
    contents = []
    for location in locations:
        file = files.get(os.path.normpath(location))
        if file is None:
            raise InvalidModel(f"{path}: external data: got the file {location!r}, wanted one of {', '.join(files)}")
        with open(file, "rb") as opened:
            contents.append(opened.read())
    sizes = [len(content) for content in contents]
    options.add_external_initializers_from_files_in_memory(list(locations), contents, sizes)
    return contents


def _locations(graph: bytes) -> Iterator[str]:
    for match in LOCATION.finditer(graph):
        low, *high = match[1]
        size = low & 0x7F | (high[0] << 7 if high else 0)
        yield os.fsdecode(graph[match.end() : match.end() + size])
