"""The servers in benchmarks/peers: packages, command lines, HTTP formats."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from bench.dialects import DIALECTS
from bench.server_process import Server, accepts, free_port
from bench.workload import ROOT, Inputs, Scenario

PEERS = ROOT / "benchmarks/peers"
CACHE = Path(os.environ.get("HOROLOGE_PEERS") or ROOT / ".cache/peers")
"""A virtual environment per peer, created on first use."""


class Peer(msgspec.Struct, frozen=True):
    """A server to compare with. pip installs `packages`. `text` and `tensors`: dialects for JSON and large tensors."""

    name: str
    packages: tuple[str, ...]
    path: str
    text: str = "json"
    tensors: str = "base64"
    ready_s: float = 60.0


OIP = "/v2/models/peer/infer"
ONNX = ("numpy", "onnxruntime")
PEER_SERVERS = {
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
    """Return the interpreter of the peer's environment; create it if it is missing. Raises `CalledProcessError`."""
    python = CACHE / peer.name / "bin/python"
    mark = CACHE / peer.name / ".installed"
    if not mark.exists():
        print(f"installing {' '.join(peer.packages)} into {CACHE / peer.name}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(CACHE / peer.name)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *peer.packages], check=True)
        mark.touch()
    return python


class StartedPeer(msgspec.Struct, frozen=True):
    """A peer's process, its address and the dialect to use."""

    server: Server
    url: str
    dialect: str


def peer_arguments(scenario: Scenario, dialect: str, port: int, max_batch: int) -> list[str]:
    """Return the arguments that every server file reads from PEER_ARGUMENTS (peers/work.py)."""
    texts = ["--port", str(port), "--dialect", dialect, "--shape", ",".join(map(str, scenario.input.shape[1:]))]
    texts += ["--workers", str(scenario.workers), "--max-batch", str(max_batch)]
    texts += ["--batch-wait-ms", str(scenario.batch_wait_ms)]
    texts += ["--input", scenario.input.name]
    if scenario.reference:
        texts += ["--onnx", str(ROOT / scenario.reference), "--output", scenario.output.name]
    return texts


def prepare_peer(peer: Peer, scenario: Scenario, binary: bool, max_batch: int = 0) -> StartedPeer:
    """Return a server that is not started. Enter it with `with started.server:`, then call `wait_ready`."""
    port = free_port()
    dialect = peer.tensors if binary else peer.text
    command = [str(python_of(peer)), str(PEERS / f"{peer.name}_server.py")]
    line = shlex.join(peer_arguments(scenario, dialect, port, max_batch or scenario.max_batch))
    server = Server(
        command, CACHE / f"{peer.name}-{dialect}-{port}.log", {"PYTHONPATH": str(PEERS), "PEER_ARGUMENTS": line}
    )
    return StartedPeer(server, f"http://127.0.0.1:{port}{peer.path}", dialect)


def wait_ready(peer: Peer, started: StartedPeer, scenario: Scenario) -> None:
    """Wait until the server answers a real request. Raises `RuntimeError` with the end of its log after a timeout."""
    parts = urlsplit(started.url)
    host, port = parts.netloc, parts.port or 80
    request = DIALECTS[started.dialect](scenario, Inputs(scenario), host, parts.path).request(0)
    started.server.wait(accepts(port, request), peer.ready_s)
