"""Uploaded models: a load with a configuration and files writes the model to the repository of the workers.

Triton's docs/protocol/extension_model_repository.md. Triton keeps such a model in memory until its next load. Here it
stays in the repository, so that every worker reads the same content, also one that starts later.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import shutil
from binascii import a2b_base64
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import msgspec

from horologe_common.clock import ms
from horologe_common.service.log import logger
from horologe_common.service.user_files import MAX_FILE_BYTES
from horologe_common.status import InvalidInput, ModelFailed, Refused, UnknownModel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CONFIG, FILE = "config", "file:"
CONFIG_FILE, MANIFEST = "config.pbtxt", "model.toml"
LOCK, STAGED = ".uploads.lock", ".upload-"
"""Workers ignore names that begin with a dot."""
NAME = re.compile(r"(?!pipelines\Z|__)[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
"""A name of a model that may be written. `pipelines` is the folder of the pipelines."""
BACKSLASH = re.compile(rb"\\")
FILES_MAX = 1000
PATH_BYTES, NAME_BYTES = 512, 255
"""Longest path in the model's folder, and longest name of a file or folder, which is that of most file systems."""
QUOTES_MAX = MAX_FILE_BYTES + 5 * FILES_MAX
"""Quotes in the JSON of a load: four for each file, whose base64 has none, and those of the configuration."""
SLICE = 1 << 20
"""Characters that are decoded at once: other threads run in between. A multiple of four."""
AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Of renameat2(2)."""
RETRY_NS = ms(100)
log = logger("uploads")


class Upload(NamedTuple):
    """A configuration, as JSON, and the files of a model by their paths in its folder.

    A file is its content in bytes, or base64: text, or a view of its characters.
    """

    config: str
    files: dict[str, bytes | str | memoryview]


def is_upload(parameter: str) -> bool:
    """Return whether a parameter of a load is the configuration or a file."""
    return parameter == CONFIG or parameter.startswith(FILE)


def read_upload(parameters: Mapping[str, Any]) -> Upload:
    """Return the upload in the parameters of a load, of which at least one is part of it. Raise `InvalidInput`."""
    config = parameters.get(CONFIG)
    if not isinstance(config, str):
        raise InvalidInput(f"parameters.config: got {_kind(config)}, wanted the configuration as JSON, in a string")
    if (size := len(config.encode())) > MAX_FILE_BYTES:
        raise InvalidInput(f"parameters.config: got {size} bytes, wanted at most {MAX_FILE_BYTES}")
    try:
        msgspec.json.decode(config, type=dict)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(f"parameters.config: {error}") from error
    files = {name.removeprefix(FILE): value for name, value in parameters.items() if name.startswith(FILE)}
    if len(files) > FILES_MAX:
        raise InvalidInput(f"parameters: got {len(files)} files, wanted at most {FILES_MAX}")
    for path, content in files.items():
        _check_path(path)
        if not isinstance(content, bytes | str | memoryview):
            wanted = "its content, in bytes or as base64"
            raise InvalidInput(f"parameters.file:{path[:80]}: got {_kind(content)}, wanted {wanted}")
    return Upload(config, files)


def check_length(body: bytes) -> None:
    """Raise `InvalidInput` for more parameters than a load has, which would take seconds to decode."""
    if body.count(b'"') > QUOTES_MAX:
        raise InvalidInput(f"parameters: got more than {QUOTES_MAX} quotes, wanted at most {FILES_MAX} files")


def read_json(parameter: str, value: msgspec.Raw) -> Any:
    """Return a parameter of a load. Of a file return the base64 between its quotes, which is not copied.

    Raise `InvalidInput` for what is no text, number, true, false or null.
    """
    characters = memoryview(value)
    if parameter.startswith(FILE) and bytes(characters[:1]) == b'"' and BACKSLASH.search(characters) is None:
        return characters[1:-1]
    try:
        return msgspec.json.decode(value, type=str | int | float | bool | None)
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidInput(f"parameters.{parameter[:80]}: {error}") from error


def _kind(value: object) -> str:
    return "none" if value is None else type(value).__name__


def _check_path(path: str) -> None:
    """Raise `InvalidInput` unless a path stays in the model's folder and replaces no file of another upload."""
    parts = path.split("/")
    if any(not part or part.startswith(".") or not part.isprintable() or "\\" in part for part in parts):
        raise InvalidInput(f"parameters.file:{path[:80]}: wanted a path in the model's folder, such as 1/model.onnx")
    if len(path.encode()) > PATH_BYTES or any(len(part.encode()) > NAME_BYTES for part in parts):
        wanted = f"wanted at most {PATH_BYTES} bytes, and {NAME_BYTES} in each name"
        raise InvalidInput(f"parameters.file:{path[:80]}: got a path of {len(path.encode())} bytes, {wanted}")
    if path in (CONFIG_FILE, MANIFEST):
        raise InvalidInput(f"parameters.file:{path}: wanted other files: `config` is the configuration")


def write_model(repository: Path, model: str, parameters: Mapping[str, Any]) -> None:
    """Write the model in the parameters of a load to the repository.

    Files replace the folder of the model. Without any, only its configuration changes.

    The new content appears at once. Blocks. Raises `InvalidInput`, `UnknownModel`, `Refused` while another upload is
    written, and `ModelFailed` if the file system refuses.
    """
    if NAME.fullmatch(model) is None:
        raise InvalidInput(f"model: got {model[:80]!r}, wanted letters, digits, '.', '_' and '-', and not `pipelines`")
    upload = read_upload(parameters)
    try:
        with _staging_folder(repository) as staged:
            folder, new = repository / model, staged / "new"
            _check_replaceable(folder, upload)
            for path, content in upload.files.items():
                _write_file(new / path, path, content)
            new.mkdir(exist_ok=True)
            (new / CONFIG_FILE).write_text(upload.config, encoding="utf-8")
            if not upload.files:
                os.replace(new / CONFIG_FILE, folder / CONFIG_FILE)
            elif not folder.exists():
                os.rename(new, folder)
            elif not _exchange(new, folder):
                _replace(new, folder, staged / "old")
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise InvalidInput(f"parameters: {Path(error.filename).name!r} is both a file and a folder") from error
    except OSError as error:
        raise ModelFailed(f"model {model!r} could not be written: {error.strerror}") from error


@contextmanager
def _staging_folder(repository: Path) -> Iterator[Path]:
    """Yield an empty folder in the repository, and remove it in the end. Raise `Refused` while there is another."""
    with (repository / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused("another model is being written: repeat the load", RETRY_NS) from None
        for left in repository.glob(f"{STAGED}*"):  # of a process that has died
            _remove(left)
        staged = repository / f"{STAGED}{uuid4().hex}"
        staged.mkdir()
        try:
            yield staged
        finally:
            _remove(staged)


def _remove(folder: Path) -> None:
    """Remove a folder. What may not be removed, such as files of another user, stays: workers do not see it."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        log.warning("old files are left", file=error.filename, reason=error.strerror)


def _check_replaceable(folder: Path, upload: Upload) -> None:
    """Raise unless the name is that of a model or free, and a configuration without files has an effect."""
    name = folder.name
    if os.path.lexists(folder) and not folder.is_dir():
        raise InvalidInput(f"model: got {name!r}, which is no folder in the repository, wanted another name")
    if upload.files:
        return
    if not folder.exists():
        raise UnknownModel(f"model {name!r} is unknown: a new model needs files beside `config`")
    if folder.is_symlink():
        raise InvalidInput(f"parameters.config: model {name!r} is a link to another folder, wanted files too")
    if any(folder.glob(MANIFEST)) or any(folder.glob(f"*/{MANIFEST}")):
        raise InvalidInput(f"parameters.config: model {name!r} is described by {MANIFEST}: edit that")


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders at once. Return False where the system cannot, as on NFS."""
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except AttributeError:
        return False
    return bool(renameat2(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE) == 0)


def _replace(new: Path, folder: Path, old: Path) -> None:
    """Move `folder` to `old`, and `new` to its place. For a moment there is none."""
    os.rename(folder, old)
    try:
        os.rename(new, folder)
    except OSError:
        os.rename(old, folder)
        raise


def _write_file(target: Path, path: str, content: bytes | str | memoryview) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        if isinstance(content, bytes):
            file.write(content)
            return
        try:
            for begin in range(0, len(content), SLICE):
                file.write(a2b_base64(content[begin : begin + SLICE], strict_mode=True))
        except ValueError as error:
            raise InvalidInput(f"parameters.file:{path[:80]}: got no base64: {error}") from error
