"""The servers in benchmarks/peers: what to install for each, how to start it, how to ask it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from bench.dialect import DIALECTS
from bench.process import Server, free_port, understands
from bench.workload import ROOT, Inputs, Scenario

PEERS = ROOT / "benchmarks/peers"
CACHE = Path(os.environ.get("HOROLOGE_PEERS", ROOT / ".cache/peers"))
"""A virtual environment per peer, made when it is first wanted."""


class Peer(msgspec.Struct, frozen=True):
    """One rival. `needs`: what pip installs; `text` and `tensors`: its dialects for JSON and for large tensors."""

    name: str
    needs: tuple[str, ...]
    path: str
    text: str = "json"
    tensors: str = "base64"
    ready_s: float = 60.0


OIP = "/v2/models/peer/infer"
ONNX = ("numpy", "onnxruntime")
KNOWN = {
    peer.name: peer
    for peer in (
        Peer("mosec", ("mosec>=0.9.8", *ONNX), "/inference", tensors="raw"),
        Peer("litserve", ("torch", "litserve>=0.2.19", *ONNX), "/predict"),
        Peer("bentoml", ("bentoml>=1.4.39", *ONNX), "/predict", "json-rows", "base64-rows"),
        Peer("mlserver", ("mlserver>=1.7.1", "uvloop<0.22", *ONNX), OIP, "oip-json", "oip-json"),
        Peer("ray", ("ray[serve]>=2.60", *ONNX), "/", tensors="raw", ready_s=120),
        Peer("triton", ("nvidia-pytriton>=0.7", *ONNX), OIP, "oip-json", "oip-binary", 120),
    )
}


def python_of(peer: Peer) -> Path:
    """The interpreter of the peer's environment, installed now if it is not there. Raises `CalledProcessError`."""
    python = CACHE / peer.name / "bin/python"
    mark = CACHE / peer.name / ".installed"
    if not mark.exists():
        print(f"installing {' '.join(peer.needs)} into {CACHE / peer.name}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(CACHE / peer.name)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *peer.needs], check=True)
        mark.touch()
    return python


class Started(msgspec.Struct, frozen=True):
    server: Server
    url: str
    dialect: str


def arguments(scenario: Scenario, dialect: str, port: int, max_batch: int) -> list[str]:
    """What every server file reads from PEER_ARGUMENTS (peers/work.py)."""
    wanted = ["--port", str(port), "--dialect", dialect, "--shape", ",".join(map(str, scenario.input.shape[1:]))]
    wanted += ["--workers", str(scenario.workers), "--max-batch", str(max_batch)]
    wanted += ["--batch-wait-ms", str(scenario.batch_wait_ms)]
    wanted += ["--input", scenario.input.name]
    if scenario.reference:
        wanted += ["--onnx", str(ROOT / scenario.reference), "--output", scenario.output.name]
    return wanted


def start(peer: Peer, scenario: Scenario, binary: bool, max_batch: int = 0) -> Started:
    """A server that is not yet entered: `with started.server:` and then `wait_ready(started)`."""
    port = free_port()
    dialect = peer.tensors if binary else peer.text
    command = [str(python_of(peer)), str(PEERS / f"{peer.name}_server.py")]
    line = shlex.join(arguments(scenario, dialect, port, max_batch or scenario.max_batch))
    server = Server(command, CACHE / f"{peer.name}.log", {"PYTHONPATH": str(PEERS), "PEER_ARGUMENTS": line})
    return Started(server, f"http://127.0.0.1:{port}{peer.path}", dialect)


def wait_ready(peer: Peer, started: Started, scenario: Scenario) -> None:
    """Until it answers a real request. Raises `RuntimeError` with the end of its log if it never does."""
    parts = urlsplit(started.url)
    host, port = parts.netloc, parts.port or 80
    request = DIALECTS[started.dialect](scenario, Inputs(scenario), host, parts.path).request(0)
    started.server.wait(understands(port, request), peer.ready_s)
