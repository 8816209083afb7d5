"""Loads with a configuration and files: what is written to the repository, what is refused, and for whom."""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import logging
import os
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fakes.gateway import FakeGateway
from fakes.key_entries import entry
from frontend.oip_requests import error, send
from horologe_common.service.user_files import MAX_FILE_BYTES
from horologe_common.status import InvalidInput, ModelFailed, Refused, UnknownModel
from horologe_common.wire import Admit
from horologe_frontend import uploads
from horologe_frontend.uploads import LOCK, read_upload, write_model

if TYPE_CHECKING:
    from pathlib import Path

    from horologe_frontend.http.http_messages import HttpResponse

CONFIG = '{"name": "m", "backend": "python"}'
SMALL: dict[str, bytes | str] = {"1/model.py": b"x"}
WRONG_NAMES = ("", ".", "..", "../m", "a/b", ".m", "__pycache__", "pipelines", "m" * 200, "a b", "\u00e4")


def base64_of(content: bytes) -> str:
    return base64.b64encode(content).decode()


def write(folder: Path, files: dict[str, bytes | str], model: str = "m", config: Any = CONFIG) -> None:
    named = {f"file:{path}": content for path, content in files.items()}
    write_model(folder, model, {"config": config, **named})


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != LOCK]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_files_replace_the_model(tmp_path: Path) -> None:
    write(tmp_path, {"1/model.py": base64_of(b"one"), "1/data/table": b"\0\1", "labels.txt": ""})
    first = {"m/1/model.py": b"one", "m/1/data/table": b"\0\1", "m/labels.txt": b"", "m/config.pbtxt": CONFIG.encode()}
    assert contents(tmp_path) == first
    write(tmp_path, {"2/model.py": b"two"})
    assert contents(tmp_path) == {"m/2/model.py": b"two", "m/config.pbtxt": CONFIG.encode()}


def test_a_long_file_is_the_same_after_base64(tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000 + b"end"
    write(tmp_path, {"1/model.onnx": base64_of(content)})
    assert contents(tmp_path)["m/1/model.onnx"] == content


def test_a_configuration_alone_changes_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, {"1/model.py": b"one"})
    write(tmp_path, {}, config='{"max_batch_size": 4}')
    assert contents(tmp_path) == {"m/1/model.py": b"one", "m/config.pbtxt": b'{"max_batch_size": 4}'}


def test_a_configuration_alone_needs_a_model_that_reads_it(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match="'m' is unknown: a new model needs files"):
        write(tmp_path, {})
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/1/model.toml").write_text("")
    with pytest.raises(InvalidInput, match=r"described by model\.toml"):
        write(tmp_path, {})
    assert set(contents(tmp_path)) == {"m/1/model.toml"}


@pytest.mark.parametrize(
    "path",
    ["", "/1/a", "../other/1/a", "1/../../a", "1//a", "1/./a", ".hidden", "1/.a", "1/a\0b", "1\\a", "1/", "a\nb"],
)
def test_paths_stay_in_the_folder_of_the_model(tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidInput, match="wanted a path in the model's folder"):
        write(tmp_path, {path: b"x"})
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    "path", ["1/" + "a" * 256, "1/" + "\u00e4" * 128, "1/" + "a/" * 255 + "a", "1/" + "a/" * 5000 + "a"]
)
def test_paths_are_ones_that_every_file_system_takes(tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidInput, match="wanted at most 512 bytes, and 255 in each name"):
        write(tmp_path, {f"1/{path}": b"x"})
    assert contents(tmp_path) == {}


def test_the_longest_paths_are_written(tmp_path: Path) -> None:
    paths = ["1/" + "a" * 255, "1/" + "b/" * 254 + "bb"]
    write(tmp_path, dict.fromkeys(paths, b"x"))
    write(tmp_path, SMALL)
    assert set(contents(tmp_path)) == {"m/1/model.py", "m/config.pbtxt"}


@pytest.mark.parametrize("path", ["config.pbtxt", "model.toml"])
def test_only_config_is_the_configuration(tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidInput, match="`config` is the configuration"):
        write(tmp_path, {path: b"x"})


@pytest.mark.parametrize("model", WRONG_NAMES)
def test_names_of_models_are_no_paths(tmp_path: Path, model: str) -> None:
    (tmp_path / "pipelines").mkdir()
    with pytest.raises(InvalidInput, match="model: got"):
        write(tmp_path, SMALL, model)
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("config", [None, 1, "", "[]", "{", '"text"', {"name": "m"}])
def test_a_configuration_is_json_in_a_string(config: Any) -> None:
    with pytest.raises(InvalidInput, match=r"parameters\.config"):
        read_upload({"config": config, "file:1/model.py": ""})


def test_a_configuration_is_one_that_workers_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=rf"parameters\.config: got {MAX_FILE_BYTES + 1} bytes, wanted at most"):
        write(tmp_path, SMALL, config="{" + " " * (MAX_FILE_BYTES - 1) + "}")


@pytest.mark.parametrize("files", [SMALL, {}])
def test_only_folders_are_replaced(tmp_path: Path, files: dict[str, bytes | str]) -> None:
    (tmp_path / "README").write_text("read me")
    (tmp_path / "gone").symlink_to("nowhere")
    for name in ("README", "gone"):
        with pytest.raises((InvalidInput, UnknownModel)):
            write(tmp_path, files, name)
    assert contents(tmp_path) == {"README": b"read me"}
    assert (tmp_path / "gone").is_symlink()


def test_what_a_link_leads_to_stays_as_it_is(tmp_path: Path) -> None:
    repository, elsewhere = tmp_path / "models", tmp_path / "elsewhere"
    (elsewhere / "1").mkdir(parents=True)
    (elsewhere / "config.pbtxt").write_text("before")
    repository.mkdir()
    (repository / "m").symlink_to(elsewhere)
    with pytest.raises(InvalidInput, match="'m' is a link to another folder, wanted files too"):
        write(repository, {})
    write(repository, SMALL)
    assert contents(repository) == {"m/1/model.py": b"x", "m/config.pbtxt": CONFIG.encode()}
    assert contents(elsewhere) == {"config.pbtxt": b"before"}


def test_readers_always_find_the_model(tmp_path: Path) -> None:
    write(tmp_path, SMALL)
    ended, missing = threading.Event(), []

    def look() -> None:
        while not ended.is_set():
            missing.extend([] if (tmp_path / "m/1/model.py").exists() else [True])

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(300):
        write(tmp_path, SMALL)
    ended.set()
    thread.join()
    assert not missing


def test_without_an_exchange_a_rename_that_fails_leaves_the_model_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "_exchange", lambda first, second: False)  # NFS
    write(tmp_path, {"1/model.py": b"before"})
    write(tmp_path, {"1/model.py": b"after"})
    assert contents(tmp_path)["m/1/model.py"] == b"after"
    rename = os.rename

    def fail_once(source: Path, target: Path) -> None:
        if source.name == "new":
            raise OSError(errno.EIO, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail_once)
    with pytest.raises(ModelFailed, match="'m' could not be written: Input/output error"):
        write(tmp_path, SMALL)
    assert contents(tmp_path)["m/1/model.py"] == b"after"


@pytest.mark.parametrize("content", ["no base64", "YQ", "YQ==YQ==", "Y\nQ==", "\u00e4"])
def test_what_is_no_base64_writes_nothing(tmp_path: Path, content: str) -> None:
    write(tmp_path, {"1/model.py": b"before"})
    with pytest.raises(InvalidInput, match=r"file:1/model\.py"):
        write(tmp_path, {"1/model.py": content})
    assert contents(tmp_path)["m/1/model.py"] == b"before"


@pytest.mark.parametrize("content", [1, True, None, ["a"]])
def test_a_file_is_a_string_or_bytes(content: Any) -> None:
    with pytest.raises(InvalidInput, match="wanted its content, in bytes or as base64"):
        read_upload({"config": CONFIG, "file:1/a": content})


def test_a_file_cannot_be_a_folder_too(tmp_path: Path) -> None:
    for paths in (("1", "1/a"), ("1/a", "1")):
        with pytest.raises(InvalidInput, match="both a file and a folder"):
            write(tmp_path, dict.fromkeys(paths, b"x"))
    assert contents(tmp_path) == {}


def test_the_number_of_files_is_bounded() -> None:
    with pytest.raises(InvalidInput, match="got 1001 files, wanted at most 1000"):
        read_upload({"config": CONFIG} | {f"file:1/{number}": "" for number in range(1001)})


def test_two_uploads_at_once(tmp_path: Path) -> None:
    with (tmp_path / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Refused, match="another model is being written"):
            write(tmp_path, SMALL)
    write(tmp_path, SMALL)


def test_what_a_dead_process_has_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".upload-dead/new/1").mkdir(parents=True)
    write(tmp_path, SMALL)
    assert {path.name for path in tmp_path.iterdir()} == {"m", LOCK}


def test_files_before_that_cannot_be_removed_stop_no_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(folder / "new/1/__pycache__"))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    for content in (b"one", b"two", b"three"):
        write(tmp_path, {"1/model.py": content})
        assert contents(tmp_path)["m/1/model.py"] == content


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ModelFailed, match="'m' could not be written: No such file or directory"):
        write(tmp_path / "missing", SMALL)


def load(gateway: FakeGateway, folder: Path | str, parameters: dict[str, Any], key: str = "") -> HttpResponse:
    headers = {b"authorization": f"Bearer {key}".encode()} if key else {}
    body = {"parameters": parameters}
    return send("POST", "/v2/repository/models/gone/load", body, gateway, headers, uploads=str(folder))


def keyed_gateway() -> FakeGateway:
    gateway = FakeGateway()
    entries = {
        "manager": entry("manager", infer=("*",), observe=True, manage=True),
        "uploader": entry("uploader", manage=True, upload=True),
        "reader": entry("reader", observe=True, upload=True),
    }
    gateway.core.access.replace_keys(entries)
    return gateway


MODEL = {"config": CONFIG, "file:1/model.py": base64_of(b"x")}


@pytest.mark.parametrize("size", [1, 100_000])
def test_only_managers_whose_key_permits_it_upload(tmp_path: Path, size: int) -> None:
    gateway, model = keyed_gateway(), MODEL | {"file:1/weights": base64_of(b"w" * size)}
    for key, status in {"manager": 501, "reader": 403}.items():
        assert load(gateway, tmp_path, model, key).status == status
    assert load(FakeGateway(), tmp_path, model).status == 501  # open to everyone
    assert load(gateway, "", model, "uploader").status == 501
    assert (contents(tmp_path), gateway.calls) == ({}, [])
    assert load(gateway, tmp_path, model, "uploader").status == 200
    assert contents(tmp_path)["gone/1/weights"] == b"w" * size
    assert gateway.calls == [Admit(0, "gone", "", True)]


def test_long_files_may_have_every_form_of_json(tmp_path: Path) -> None:
    content, path = bytes(range(256)) * 1000, "/v2/repository/models/gone/load"
    text = base64_of(content)
    headers = {b"authorization": b"Bearer uploader"}
    for form in (text, text.replace("/", "\\/"), "".join(f"\\u{ord(letter):04x}" for letter in text)):
        body = f'{{"parameters": {{"config": "{{}}", "file:1/b": 5, "file:1/b": "", "file:1/a" : "{form}" }} }}'
        assert send("POST", path, body.encode(), keyed_gateway(), headers, uploads=str(tmp_path)).status == 200
        assert contents(tmp_path)["gone/1/a"] == content


def test_more_parameters_than_a_load_has_are_not_decoded(tmp_path: Path) -> None:
    many = {"config": CONFIG} | {f"file:{number}": "" for number in range(100_000)}
    said = error(load(keyed_gateway(), tmp_path, many, "uploader"))
    assert said == "parameters: got more than 267144 quotes, wanted at most 1000 files"
    config = json.dumps({"parameters": {str(number): {"string_value": ""} for number in range(8000)}})
    assert load(keyed_gateway(), tmp_path, MODEL | {"config": config}, "uploader").status == 200


@pytest.mark.parametrize("value", [["a" * 100_000], [1] * 50_000, "\u00e4" * 100_000, "a" * 100_001])
def test_what_is_wrong_in_a_long_body(tmp_path: Path, value: Any) -> None:
    said = error(load(keyed_gateway(), tmp_path, {"config": CONFIG, "file:1/a": value}, "uploader"))
    assert said.startswith("parameters.file:1/a: ")
    assert contents(tmp_path) == {}


def test_the_reason_says_what_is_missing(tmp_path: Path) -> None:
    gateway = keyed_gateway()
    assert "a key that permits `upload`" in error(load(gateway, tmp_path, MODEL, "manager"), 501)
    assert "`http.uploads` names no folder" in error(load(gateway, "", MODEL, "uploader"), 501)


def test_an_upload_is_no_rollout(tmp_path: Path) -> None:
    gateway = keyed_gateway()
    said = error(load(gateway, tmp_path, MODEL | {"promote": "1"}, "uploader"))
    assert said == "parameters.promote: wanted a load of its own, after that of the files"
    said = error(load(gateway, tmp_path, MODEL | {"other": "1"}, "uploader"))
    assert said.startswith("parameters.other: unknown parameter, wanted some of promote,")
    assert said.endswith(", config, file:PATH")
    assert (contents(tmp_path), gateway.calls) == ({}, [])


def test_an_unload_has_no_files(tmp_path: Path) -> None:
    headers, gateway = {b"authorization": b"Bearer uploader"}, keyed_gateway()
    path = "/v2/repository/models/gone/unload"
    said = error(send("POST", path, {"parameters": MODEL}, gateway, headers, uploads=str(tmp_path)))
    assert said.startswith("parameters.config: unknown parameter")


def test_the_audit_log_says_upload(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.setLevel(logging.INFO)
    load(keyed_gateway(), tmp_path, MODEL | {"file:1/long": "a" * 100_000}, "manager")
    load(keyed_gateway(), tmp_path, MODEL, "uploader")
    fields = [record.__dict__["fields"] for record in caplog.records if record.name == "horologe.audit"]
    assert [(line["call"], line["outcome"]) for line in fields] == [("upload", "NOT_IMPLEMENTED"), ("upload", "OK")]
