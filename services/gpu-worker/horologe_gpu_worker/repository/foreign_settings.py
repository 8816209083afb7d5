"""Settings of other servers in a model's folder: they have no effect here, so each file is named in a note."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from horologe_common.status import describe_error, encodable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TRITON_FILE = "config.pbtxt"
FOREIGN_FILES = {
    TRITON_FILE: "Triton",
    "model-settings.json": "MLServer",
    "model-config.yaml": "TorchServe",
    "MAR-INF/MANIFEST.json": "TorchServe",
    "tfserving_warmup_requests": "TensorFlow Serving",
    "assets.extra/tf_serving_warmup_requests": "TensorFlow Serving",
}
"""File in the folder of a model or of a version -> the server that reads it."""
HERE = {
    "max_batch_size": "`batching` and `batch_sizes`",
    "dynamic_batching": "every model is batched dynamically",
    "version_policy": "every version is served",
    "input": "`[[inputs]]`",
    "output": "`[[outputs]]`",
    "response_cache": "`cache`",
    "model_warmup": "`warmup`",
    "default_model_filename": "`model.onnx`, `model.pt2` or `model.py`",
}
"""Fields of Triton's configuration -> their counterparts here."""
READ_BYTES = 1 << 20
"""The start of a file that is searched for its fields."""
SHOWN_FIELDS, SHOWN_CHARACTERS = 20, 40
_TOKENS = re.compile(r'#[^\n]*|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|[{}\[\]<>]|(\w+)\s*(:\s*([\w.+-]+)|(?=[:{<\[]))')


def foreign_notes(folder: Path) -> tuple[str, ...]:
    """Return a note for each file of another server in the folder of a version, or in that of its model."""
    notes = []
    for place in (folder.parent, folder):
        for name, server in FOREIGN_FILES.items():
            path = place / name
            try:
                if path.is_file():
                    notes.append(_describe(path, name, server))
            except OSError as error:
                notes.append(f"{name} of {server}: not used, and cannot be read: {describe_error(error)}")
    return tuple(map(encodable, notes))


def _describe(path: Path, name: str, server: str) -> str:
    if name != TRITON_FILE:
        return f"{name} of {server} is not used: set what it declares in model.toml"
    with path.open("rb") as file:
        fields = triton_fields(file.read(READ_BYTES).decode(errors="replace"))
    shown = [
        f"{field[:SHOWN_CHARACTERS]}{f' {value[:SHOWN_CHARACTERS]}' if value else ''}"
        f"{f' (here: {HERE[field]})' if field in HERE else ''}"
        for field, value in list(fields.items())[:SHOWN_FIELDS]
    ]
    more = [f"and {len(fields) - SHOWN_FIELDS} more"] if len(fields) > SHOWN_FIELDS else []
    return f"{name} of {server} is not used: {_list([*shown, *more])}"


def triton_fields(text: str) -> dict[str, str]:
    """Return the top-level fields of a configuration in the text format of protocol buffers, and their plain values."""
    fields: dict[str, str] = {}
    depth = 0
    for token in _TOKENS.finditer(text):
        if token[0] in "{[<":
            depth += 1
        elif token[0] in "}]>":
            depth -= 1
        elif token[1] and depth == 0:
            fields[token[1]] = token[3] or ""
    return fields


def _list(items: Iterable[str]) -> str:
    return ", ".join(items) or "it has no fields"
