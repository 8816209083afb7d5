"""Changes of a model under load: answers from the content before after READY, and requests without an answer.

Starts `horologe up` on a repository with one model (`--rotate`: two that do not fit into memory together), keeps
requests in flight on two connections, and changes the files of the model and loads it again, `--changes` times. The
answer of content k is k. On the connection that gets READY no later answer may be of an earlier content; on the other
one no answer to a request that was sent after READY. Answers also name their content hash, which must be that of READY.

    python benchmarks/changed_models.py --changes 1000
    python benchmarks/changed_models.py --runtime python --split --workers 2 --changes 50 --json changed.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from onnx import TensorProto, helper

from horologe import AsyncClient
from horologe_common.status import HorologeError, UnknownModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

MODEL, OTHER = "changing", "other"
TENSOR = 'datatype = "FP32"\nshape = [-1, 4]\n'
TENSORS = f'[[inputs]]\nname = "x"\n{TENSOR}[[outputs]]\nname = "y"\n{TENSOR}'
MANIFEST = "batch_sizes = [1, 2, 4]\n"
FILLING_BYTES = 12 << 20
"""Size of the weights with `--rotate`: two models do not fit into a page of 16 MiB."""
PROGRAMS = 3
"""Distinct contents of the pytorch model, which take turns: an export takes seconds."""
FIXED_NS = 1_577_836_800_000_000_000
"""Modification time of every file: archives and image layers give a new content the time of the one before."""
TIMEOUT_S = 60
"""Deadline of requests. No request may need it."""


def write_onnx(folder: Path, content: int, filling: int) -> float:
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, ["rows", 4]) for end in ("x", "y")]
    constants = [helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0])]
    constants.append(helper.make_tensor("content", TensorProto.FLOAT, [1], [float(content)]))
    constants.append(helper.make_tensor("filling", TensorProto.FLOAT, [filling // 4], bytes(filling), raw=True))
    nodes = [helper.make_node("Mul", ["x", "zero"], ["nil"]), helper.make_node("Add", ["nil", "content"], ["y"])]
    graph = helper.make_graph(nodes, "content", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    (folder / "model.toml").write_text(MANIFEST)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return content


def write_python(folder: Path, content: int, filling: int) -> float:
    (folder / "model.toml").write_text(MANIFEST + TENSORS)
    (folder / "model.py").write_text(
        f"class Model:\n    def predict_batch(self, inputs):\n        return {{'y': inputs['x'] * 0 + {content}}}\n"
    )
    return content


def write_emulated(folder: Path, content: int, filling: int) -> float:
    times = "[emulated]\nexec_ms = { 1 = 1.0, 2 = 1.5, 4 = 2.0 }\nload_ms = 3\n"
    (folder / "model.toml").write_text(f"# {content}\n{TENSORS}{times}")
    return 0  # it returns its input: only the content hash tells contents apart


def write_pytorch(folder: Path, content: int, filling: int) -> float:
    (folder / "model.toml").write_text(MANIFEST)
    (folder / "model.pt2").write_bytes(_program(content % PROGRAMS))
    return content % PROGRAMS


@cache
def _program(content: int) -> bytes:
    import torch

    class Content(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("content", torch.full((4,), float(content)))

        def forward(self, x: Any) -> Any:
            return {"y": x * 0 + self.content}

    rows = {"x": {0: torch.export.Dim("rows", min=1, max=4)}}
    program = torch.export.export(Content().eval(), (torch.zeros(2, 4),), dynamic_shapes=rows)
    with tempfile.TemporaryDirectory() as folder:
        torch.export.save(program, Path(folder) / "model.pt2")
        return (Path(folder) / "model.pt2").read_bytes()


WRITERS: dict[str, Callable[[Path, int, int], float]] = {
    "onnx": write_onnx, "python": write_python, "pytorch": write_pytorch, "emulated": write_emulated,
}  # fmt: skip


class Findings(msgspec.Struct):
    """Result of a run. All but `changes`, `answers` and `unavailable` must be 0 or empty."""

    changes: int = 0
    answers: int = 0
    stale: int = 0
    """Answers of a content that READY had replaced."""
    misnamed: int = 0
    """Answers whose content hash is not that of their content."""
    errors: dict[str, int] = {}
    """Requests without an answer, by the first words of the error."""
    failed_loads: list[str] = []
    unavailable: int = 0
    """With `--unload`: requests that were rejected while the model was unloaded."""


class ChangingModel:
    """The contents that have been written, and which of them READY has been told for."""

    def __init__(self, folder: Path, runtime: str, filling: int) -> None:
        self.values: list[float] = []
        self.hashes: list[str] = []
        self.ready = 0
        """Index of the last content that is READY."""
        self.ended = asyncio.Event()
        """Set when a request ends."""
        self._repeats = runtime == "pytorch"
        self._write = WRITERS[runtime]
        self._folder = folder
        self._filling = filling

    def write_next(self) -> None:
        self.values.append(self._write(self._folder, len(self.values), self._filling))
        for path in self._folder.iterdir():
            os.utime(path, ns=(FIXED_NS, FIXED_NS))

    def is_stale(self, value: float, content_hash: str, oldest: int) -> bool:
        """Return whether no content from index `oldest` on has this value and may have this hash."""
        return value not in self.values[oldest:] or (not self._repeats and content_hash in self.hashes[:oldest])

    def is_misnamed(self, value: float, content_hash: str) -> bool:
        """Return whether a content that is READY has this hash and another value."""
        known = [index for index, known_hash in enumerate(self.hashes) if known_hash == content_hash]
        return bool(known) and all(self.values[index] != value for index in known)


async def keep_asking(
    client: AsyncClient, model: ChangingModel, findings: Findings, strict: bool, names: tuple[str, ...]
) -> None:
    """Send one request after the other. `strict`: the connection is that of the loads."""
    x, errors = np.zeros((1, 4), np.float32), Counter[str]()
    number = 0
    while True:
        number += 1
        name, sent_at = names[number % len(names)], model.ready
        try:
            reply = await client.predict_full(name, x, timeout=TIMEOUT_S, content_hash=True)
        except UnknownModel:
            findings.unavailable += 1
            await asyncio.sleep(0.005)
            continue
        except HorologeError as error:
            errors[f"{type(error).__name__}: {error}"[:100]] += 1
            findings.errors = {text: findings.errors.get(text, 0) + count for text, count in errors.items()}
            errors.clear()
            model.ended.set()
            await asyncio.sleep(0.005)
            continue
        findings.answers += 1
        model.ended.set()
        if name == MODEL:
            (content_hash,), oldest = reply.content_hashes, model.ready if strict else sent_at
            value = float(reply.value[0, 0])
            findings.misnamed += model.is_misnamed(value, content_hash)
            findings.stale += model.is_stale(value, content_hash, oldest)


async def change(client: AsyncClient, model: ChangingModel, findings: Findings, unload: bool) -> None:
    """Write the next content and load it."""
    if unload:
        await client.admit(MODEL, admitted=False)
    model.write_next()
    try:
        (state,) = await client.admit(MODEL, timeout=TIMEOUT_S)
    except HorologeError as error:
        findings.failed_loads.append(str(error))
        return
    model.hashes.append(state.spec.content_hash)
    model.ready = len(model.values) - 1
    findings.changes += 1


async def wait_for_answers(model: ChangingModel, findings: Findings, options: argparse.Namespace) -> None:
    """Wait for the pause, and until more answers have come than requests were in flight."""
    wanted = findings.answers + options.in_flight + 1
    await asyncio.sleep(options.pause)
    while findings.answers < wanted and not findings.errors:
        model.ended.clear()
        await model.ended.wait()


async def stop_clients(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel the tasks of the clients. Raises RuntimeError if one of them has failed."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if faults := [task.exception() for task in tasks if not task.cancelled()]:
        raise RuntimeError("a client failed") from faults[0]


async def run(endpoint: str, model: ChangingModel, options: argparse.Namespace) -> Findings:
    findings = Findings()
    names = (MODEL, OTHER) if options.rotate else (MODEL,)
    async with AsyncClient(endpoint) as first, AsyncClient(endpoint) as second:
        (state,) = await first.models(MODEL)
        model.hashes.append(state.spec.content_hash)
        tasks = [
            asyncio.create_task(keep_asking(client, model, findings, client is first, names))
            for client in (first, second)
            for _ in range(options.in_flight // 2)
        ]
        for number in range(1, options.changes + 1):
            await wait_for_answers(model, findings, options)
            await change(first, model, findings, options.unload)
            if number % max(1, options.changes // 20) == 0:
                print(f"{number} changes: {findings}", file=sys.stderr, flush=True)
        await wait_for_answers(model, findings, options)
        await stop_clients(tasks)
    if not options.unload and findings.unavailable:
        findings.errors["UnknownModel"] = findings.unavailable
    return findings


def serve_and_run(options: argparse.Namespace, folder: Path) -> Findings:
    """Write the repository, start the server, and run."""
    filling = FILLING_BYTES if options.rotate else 0
    folders = [folder / "models" / name / "1" for name in (MODEL, OTHER)]
    for path in folders if options.rotate else folders[:1]:
        path.mkdir(parents=True)
        WRITERS[options.runtime](path, 0, filling)
    model = ChangingModel(folders[0], options.runtime, filling)
    model.write_next()
    further = ["--set", "worker.pages_bytes=16MiB"] if options.rotate else []
    with running_server(options, folder, further) as (endpoint, _):
        return asyncio.run(run(endpoint, model, options))


@contextmanager
def running_server(
    options: argparse.Namespace, folder: Path, further: Sequence[str] = (), states: Mapping[str, str] = {}
) -> Iterator[tuple[str, int]]:
    """Run `horologe up` in a folder. The value is its endpoint and its process id. `states`: environment variables."""
    ports = ["--http", "127.0.0.1:0", "--client", "tcp://127.0.0.1:0", "--metrics", "off"]
    command = [sys.executable, "-m", "horologe_cli.main", "up", "--json", "--workers", str(options.workers), *ports]
    command += [*(["--split"] if options.split else []), *further]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **states}
        )
    try:
        assert server.stdout is not None
        if not (line := server.stdout.readline()):
            raise SystemExit((folder / "log").read_text())
        yield json.loads(line)["clients"][0], server.pid
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)


def report(options: argparse.Namespace, findings: msgspec.Struct) -> None:
    """Print the result, and write it to the file of `--json`."""
    document = {"options": vars(options) | {"json": None}, "result": msgspec.to_builtins(findings)}
    print(json.dumps(document["result"], indent=1))
    if options.json:
        options.json.write_text(json.dumps(document, indent=1, default=str))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runtime", choices=WRITERS, default="onnx")
    parser.add_argument("--changes", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--split", action="store_true", help="one process per service")
    parser.add_argument("--rotate", action="store_true", help="two models that do not fit into memory together")
    parser.add_argument("--unload", action="store_true", help="unload the model before each change")
    parser.add_argument("--in-flight", type=int, default=8, help="requests in flight")
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between changes, at least")
    parser.add_argument("--json", type=Path, help="file for the result")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        findings = serve_and_run(options, Path(folder))
    report(options, findings)
    clean = (findings.stale, findings.misnamed, findings.errors, findings.failed_loads) == (0, 0, {}, [])
    sys.exit(0 if clean and findings.changes == options.changes else 1)


if __name__ == "__main__":
    main()
