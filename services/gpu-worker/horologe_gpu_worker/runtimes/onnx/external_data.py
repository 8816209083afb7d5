"""Weights of a graph in separate files (ONNX's external data), read into memory.

ONNX Runtime maps such files into its memory. A change of a file would then change the answers of loaded models, and a
file that becomes shorter would end the process (SIGBUS).
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from horologe_gpu_worker.repository.content import list_files
from horologe_gpu_worker.repository.manifest import InvalidModel
from horologe_gpu_worker.runtimes.onnx import version

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCATION = re.compile(rb"\x0a\x08location\x12([\x00-\x7f]|[\x80-\xff][\x00-\x7f])")
"""Start of an entry of `TensorProto.external_data` with the key `location`, and the size of its value as a varint."""


def add_external_data(options: Any, path: Path) -> list[bytes]:
    """Give a session the contents of the files that the graph at `path` names.

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
