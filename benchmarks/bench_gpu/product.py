"""The whole server on a GPU under the load of three kinds of models: see gpu_product.py."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bench.server_process import answers, free_port
from bench.service_processes import ServiceProcesses, one_of_each
from bench_gpu.figures import Row, row
from bench_gpu.nets import NETS, TINY, exported, exported_lengths
from gpu import machine, report
from horologe_load.load_processes import Load, LoadProcesses
from horologe_load.model_server import ModelServer, load_model, read_metadata
from horologe_load.samples import summarize
from sharing import PIPES, mps_daemon

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
SHARES, SLOS_MS = (10.0, 25.0, 50.0, 75.0, 100.0), (10, 25, 50, 100, 250)
CLIENTS, LENGTHS, READY_S = 16, 64, 300.0
MANIFESTS = {
    "resnet50": "",
    "transformer": "padded = true\nmax_length = {length}\nprofile_length = {length}\n[[inputs]]\nname = 'words'\n"
    "datatype = 'INT64'\nshape = [-1, -1]\nwarmup = 1\n",
    "python": "gpu_memory = '2GiB'\nbatch_sizes = [1, 2, 4, 8, 16]\n"
    "inputs = [{{ name = 'x', datatype = 'FP32', shape = [-1, 1024] }}]\n"
    "outputs = [{{ name = 'y', datatype = 'FP32', shape = [-1, 1024] }}]\n",
}
PYTHON = """
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

class Model:
    def __init__(self):
        layers = [layer for _ in range({layers}) for layer in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())]
        self.net = torch.nn.Sequential(*layers).to(DEVICE)

    def predict_batch(self, inputs):
        with torch.inference_mode():
            return {{"y": self.net(torch.tensor(inputs["x"], device=DEVICE)).cpu().numpy()}}
"""


def make_models(folder: Path, tiny: bool) -> int:
    """Write the three models to a repository. Return the longest input of the transformer."""
    length = 32 if tiny else 128
    sizes = {"width": 16, "blocks": 1, "heads": 2, "words": 100} if tiny else {}
    for name, manifest in MANIFESTS.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        (version / "model.toml").write_text(manifest.format(length=length))
    torch.export.save(exported((TINY if tiny else NETS)["resnet50"], False), folder / "resnet50/1/model.pt2")
    torch.export.save(exported_lengths(length, **sizes), folder / "transformer/1/model.pt2")
    (folder / "python/1/model.py").write_text(PYTHON.format(layers=2 if tiny else 16))
    return length


def inputs_of(name: str, length: int, tiny: bool) -> list[dict[str, NDArray[Any]]]:
    """Return rows to send in turn. Short texts are as likely as long ones, as in `horologe bench`."""
    rng = np.random.default_rng(1)
    if name == "resnet50":
        side = 32 if tiny else 224
        return [{"image": rng.random((1, 3, side, side), np.float32)} for _ in range(8)]
    if name == "python":
        return [{"x": rng.random((1, 1024), np.float32)} for _ in range(8)]
    lengths = np.exp(rng.uniform(np.log(4), np.log(length), LENGTHS)).astype(int)
    return [{"words": rng.integers(1, 100, (1, size))} for size in lengths]


@contextlib.contextmanager
def server(folder: Path, share: float, pretend: bool) -> Iterator[str]:
    """Run the services with a worker on a share of the GPU. Yield the URL when all models are ready."""
    port = free_port()
    services = one_of_each(folder, port, 1, 1, 1, middle=False)
    worker = services["worker-0"]
    # 8 GiB of pages: weights of ResNet-50 and BERT, and 2 GiB of the Python model.
    own = ["worker.device=cuda", f"worker.share_percent={share:g}", f"worker.pages_bytes={4 if pretend else 8}GiB"]
    own += ["worker.io_cache_bytes=64MiB"] if pretend else []
    module = "bench_gpu.pretend_worker" if pretend else worker.module
    services["worker-0"] = worker._replace(module=module, settings=(*worker.settings, *own))
    with ServiceProcesses(folder, services) as running:
        running.wait_ready()
        end_s = time.monotonic() + READY_S
        for name in MANIFESTS:
            while not answers(f"http://127.0.0.1:{port}/v2/models/{name}/ready")():
                if time.monotonic() > end_s:
                    raise RuntimeError(f"{name} is not ready: {running.read_log('worker-0')[-2000:]}")
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"


def measure(url: str, share: float, slo_ms: int, options: argparse.Namespace, length: int) -> Iterator[Row]:
    """Load all models at the same time. Yield a row for each: its goodput and latencies."""

    def run(name: str) -> Row:
        address = ModelServer(url, name)
        model = load_model(address, read_metadata(address), inputs_of(name, length, options.cpu), slo_ms * 1_000_000)
        with LoadProcesses(model) as generator:
            generator.run(Load(clients=2, seconds=options.seconds / 5))  # connections, caches, graphs of lengths
            result = generator.run(Load(clients=CLIENTS, seconds=options.seconds))
        summary = summarize(result.samples, result.seconds, slo_ms)
        notes = {"in time/s": summary.in_time / result.seconds, "late": summary.late, "refused": summary.refused}
        notes |= {"failed": summary.failed + summary.unanswered}
        return row(f"{share:g}% of the GPU", f"{name}, SLO {slo_ms} ms", result.samples.latencies_ns(), **notes)

    with ThreadPoolExecutor(len(MANIFESTS)) as threads:
        yield from threads.map(run, MANIFESTS)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the whole server on a GPU.")
    parser.add_argument("--cpu", action="store_true", help="run tiny networks on an emulated device")
    parser.add_argument("--shares", default=",".join(f"{share:g}" for share in SHARES), help="percentages of the GPU")
    parser.add_argument("--slos", default=",".join(map(str, SLOS_MS)), help="milliseconds")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of every measurement")
    parser.add_argument("--json", type=Path, help="write machine and rows here")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    parser.add_argument("--revision", default="", help="revision to report, if git is not available")
    options = parser.parse_args()
    if not options.cpu and not torch.cuda.is_available():
        parser.error("no CUDA device (--cpu runs the same code on an emulated one)")
    return options


def main() -> int:
    """Measure, print the table, and return the exit code."""
    options = parse_arguments()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")])
    facts = machine(SimpleNamespace(pretend=options.cpu, half=False), options.revision)  # type: ignore[arg-type]
    shares = [float(text) for text in options.shares.split(",")]
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        length = make_models(folder / "models", options.cpu)
        if options.cpu:
            (folder / "control").touch()
            os.environ[PIPES] = str(folder)
        elif min(shares) < 100:
            os.environ |= stack.enter_context(mps_daemon())
        for share in shares:
            with server(folder, share, options.cpu) as url:
                for slo_ms in map(int, options.slos.split(",")):
                    rows += measure(url, share, slo_ms, options, length)
                    print(f"{share:g}%, SLO {slo_ms} ms", file=sys.stderr, flush=True)
            text = report(facts, rows)  # after every share, in case the run is cut off
            if options.markdown:
                options.markdown.write_text(text + "\n")
            if options.json:
                document = {"machine": facts, "rows": [entry._asdict() for entry in rows]}
                options.json.write_text(json.dumps(document, indent=1))
    print(text)
    return 0
