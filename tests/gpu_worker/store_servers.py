"""Local servers of the stores that models come from. Each is skipped where its packages are not installed."""

from __future__ import annotations

import hashlib
import http.client
import importlib
import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest

from harness.waiting import until
from horologe_cli.local.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = "models-of-tests"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account and key of azurite, which its manual publishes."""


@contextmanager
def store_server(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Start a server with the files of `folder`, and set the variables that lead clients to it. Yields a URL."""
    if kind == "hf":
        constants = pytest.importorskip(
            "huggingface_hub.constants", reason="huggingface_hub is not installed (the extra `hf`)"
        )
        with hub(folder) as url:
            try:
                with monkeypatch.context() as patch:
                    patch.setenv("HF_ENDPOINT", url)
                    importlib.reload(constants)  # it reads the variable when it is imported
                    yield "hf://org/models"
            finally:
                importlib.reload(constants)
        return
    package, start, set_variables = {"s3": ("s3fs", s3, s3_variables), "gs": ("gcsfs", gs, gs_variables)}.get(
        kind, ("adlfs", az, az_variables)
    )
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed (the extra `remote`)")
    pytest.importorskip(package, reason=f"{package} is not installed (`make test-stores` runs this test)")
    port = free_port("127.0.0.1")
    with subprocess.Popen(start(port, folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: answers(port), 30)
            for name, value in set_variables(port).items():
                monkeypatch.setenv(name, value)
            files = fsspec.filesystem(kind, skip_instance_cache=True)
            files.mkdir(BUCKET)
            for path in folder.rglob("*"):
                if path.is_file():
                    files.pipe_file(f"{BUCKET}/{path.relative_to(folder).as_posix()}", path.read_bytes())
            yield f"{kind}://{BUCKET}"
        finally:
            process.terminate()


def answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/")
        connection.getresponse()
    except OSError:
        return False
    finally:
        connection.close()
    return True


def s3(port: int, folder: Path) -> list[str]:
    pytest.importorskip("moto.server", reason='moto is not installed: pip install "moto[s3,server]"')
    return [sys.executable, "-m", "moto.server", "-p", str(port)]


def s3_variables(port: int) -> dict[str, str]:
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    return dict.fromkeys(names, "test") | {
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }


def gs(port: int, folder: Path) -> list[str]:
    pytest.importorskip("gcp_storage_emulator", reason="gcp-storage-emulator is not installed")
    return [sys.executable, "-m", "gcp_storage_emulator", "start", "--port", str(port), "--in-memory"]


def gs_variables(port: int) -> dict[str, str]:
    return {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}"}


def az(port: int, folder: Path) -> list[str]:
    places = os.pathsep.join([os.environ.get("PATH", ""), os.environ.get("AZURITE", "")])
    if not (azurite := shutil.which("azurite-blob", path=places)):
        pytest.skip("no azurite: npm install azurite, and AZURITE names the folder of its programs")
    place = str(folder.parent / "azurite")
    options = ("--silent", "--disableTelemetry", "--skipApiVersionCheck", "--location", place)
    return [azurite, *options, "--blobPort", str(port)]


def az_variables(port: int) -> dict[str, str]:
    account, endpoint = "devstoreaccount1", f"http://127.0.0.1:{port}/devstoreaccount1"
    fields = f"DefaultEndpointsProtocol=http;AccountName={account};AccountKey={AZURE_KEY};BlobEndpoint={endpoint};"
    return {"AZURE_STORAGE_CONNECTION_STRING": fields}


class Hub(BaseHTTPRequestHandler):
    """The calls of Hugging Face's hub that list and read a repository `org/models` at the revision `main`."""

    folder: Path

    def log_message(self, *arguments: Any) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer([])

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0])
        if path.startswith(tree := "/api/models/org/models/tree/main"):
            self.answer(self.entries(path.removeprefix(tree).strip("/"), "recursive=true" in self.path))
        elif path.startswith("/api/models/org/models"):
            self.answer({"id": "org/models", "sha": "0" * 40})
        elif (
            path.startswith(resolve := "/org/models/resolve/main/")
            and (file := self.folder / path.removeprefix(resolve)).is_file()
        ):
            self.answer_file(file.read_bytes())
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def entries(self, under: str, recursive: bool) -> list[dict[str, Any]]:
        found = []
        for path in sorted((self.folder / under).rglob("*") if recursive else (self.folder / under).glob("*")):
            name = path.relative_to(self.folder).as_posix()
            if path.is_dir():
                found.append({"type": "directory", "path": name, "size": 0, "oid": "0" * 40})
                continue
            content = path.read_bytes()
            entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content)}
            entry["oid"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            if name.endswith(".onnx"):
                digest = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 130}
            found.append(entry)
        return found

    def answer(self, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer_file(self, content: bytes) -> None:
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        part = content[int(first) : int(last) + 1 if last else None]
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(part)


@contextmanager
def hub(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), type("HubOf", (Hub,), {"folder": folder})) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
