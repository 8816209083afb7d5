"""The clients of docs/typed-clients.md and docs/wire.md, as they stand there, get an answer of a running system."""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import horologe_frontend.grpc
from harness.http_calls import send_http
from harness.running_up import Up

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "typed-clients.md").read_text(encoding="utf-8")
WIRE_PAGE = (ROOT / "docs" / "wire.md").read_text(encoding="utf-8")
PROTOCOL = Path(horologe_frontend.grpc.__file__).parent / "protocol"
GO_PACKAGES = Path("/usr/share/gocode")
"""Where Debian has the packages of gRPC for Go, which are found without a module."""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    shutil.copytree(ROOT / "models" / "noop", folder / "models" / "noop")
    up = Up(folder, "--no-tuner", "--no-profiler")
    yield up
    assert up.stop(signal.SIGTERM) == 0


def block(language: str, page: str = PAGE) -> str:
    """Return the only block of code in this language."""
    (code,) = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    return str(code)


def run(folder: Path, *command: str, **variables: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_typescript(up: Up, tmp_path: Path) -> None:
    generator = shutil.which("openapi-typescript")
    if generator is None or shutil.which("tsc") is None or shutil.which("node") is None:
        pytest.skip("openapi-typescript, tsc or node are not on the PATH (see .ci/run)")
    url = up.ready["http"]
    (tmp_path / "openapi.json").write_bytes(send_http("GET", f"{url}/v2/openapi.json")[1])
    (tmp_path / "client.ts").write_text(block("typescript").replace("http://127.0.0.1:8000", url))
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "node_modules").symlink_to(Path(generator).parent.parent)
    for command in re.findall(r"^npx (.*)$", PAGE, re.MULTILINE):
        run(tmp_path, *command.split())
    assert run(tmp_path, "node", "client.js").split() == ["sum", "[", "16", "]"]


def test_go(up: Up, tmp_path: Path) -> None:
    tools = ("go", "protoc", "protoc-gen-go", "protoc-gen-go-grpc")
    if None in map(shutil.which, tools) or not (GO_PACKAGES / "src/google.golang.org/grpc").exists():
        pytest.skip("the packages of Debian for Go are not installed (see docs/typed-clients.md)")
    module = tmp_path / "src" / "example"
    module.mkdir(parents=True)
    (module / "main.go").write_text(block("go").replace("127.0.0.1:8001", up.ready["grpc"]))
    (command,) = re.findall(r"^protoc (.*)$", PAGE, re.MULTILINE)
    run(module, "protoc", *command.replace("FOLDER", str(PROTOCOL)).split())
    answer = run(module, "go", "run", "example", GO111MODULE="off", GOPATH=f"{tmp_path}:{GO_PACKAGES}")
    assert answer.split() == ["sum", "[1", "1]", "[0", "0", "0", "0]"]


def test_a_client_of_the_wire_format(up: Up, tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(
        block("python", WIRE_PAGE).replace("tcp://127.0.0.1:8003", up.ready["clients"][0])
    )
    welcome, answer = run(tmp_path, sys.executable, "client.py").splitlines()
    assert welcome.startswith("([[11, 1, ")
    assert answer.startswith("([[2, 7, 0, [['sum', 'FP32', [1, 1], 4]], ")
    assert answer.endswith(f"[{struct.pack('<f', 120)!r}])")
