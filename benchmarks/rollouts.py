"""Reloads and promotions of versions under load: answers of the wrong version, lost requests, and memory.

Starts `horologe up` on a model with two versions, and keeps requests without a version in flight on two connections.
It writes new files of a version and loads the model (a reload), and promotes the other version, or rolls back, in
turns. Every content answers with a number of its own. On the connection that gets the answer of a change, no later
answer may be of an earlier content; on the other one no answer to a request that was sent after it. At the end, the
resident memory of all processes is compared with that after the first changes. The exit code is 0 only if nothing was
lost or wrong, and the memory has grown by at most a twentieth.

    python benchmarks/rollouts.py --reloads 1000 --promotions 100
    python benchmarks/rollouts.py --runtime python --split --workers 2 --reloads 50 --promotions 20
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np

from changed_models import TIMEOUT_S, WRITERS, report, running_server, stop_clients
from horologe import AsyncClient
from horologe_common.status import HorologeError

MODEL = "rolling"
WARM_UP = 0.1
"""Part of the changes after which the memory counts as that before."""
GROWTH = 1.05
"""Largest ratio of the memory after all changes to that before."""


class Findings(msgspec.Struct):
    """Result of a run. `wrong`, `errors` and `failed` must be 0 or empty, and `rss_after` within `GROWTH`."""

    reloads: int = 0
    promotions: int = 0
    answers: int = 0
    wrong: int = 0
    """Answers of a version or content that did not answer any more."""
    errors: dict[str, int] = {}
    """Requests without an answer, by the first words of the error."""
    failed: list[str] = []
    """Changes that failed."""
    rss_before: int = 0
    rss_after: int = 0
    """Resident bytes of all processes of the server."""


class RollingModel:
    """Contents of the two versions, and the value of each content that requests without a version have reached."""

    def __init__(self, folder: Path, runtime: str) -> None:
        self._folder, self._write = folder, WRITERS[runtime]
        self.values: dict[str, float] = {}
        self.current = "2"
        self.reached: list[float] = []
        """Value that all requests get since each change, in their order."""
        self.upcoming: float | None = None
        """Value that requests may get while a change has no answer."""
        self._written = 0

    def write(self, version: str) -> None:
        """Write a new content of a version."""
        self._written += 1
        (self._folder / version).mkdir(parents=True, exist_ok=True)
        self.values[version] = self._write(self._folder / version, self._written, 0)

    def is_wrong(self, value: float, since: int) -> bool:
        """Return whether no content that requests reached since that change has this value."""
        return value not in (*self.reached[since:], self.upcoming)


async def keep_asking(client: AsyncClient, model: RollingModel, findings: Findings, strict: bool) -> None:
    """Send one request after the other. `strict`: the connection is that of the changes."""
    x = np.zeros((1, 4), np.float32)
    while True:
        sent_at = len(model.reached) - 1
        try:
            value = float((await client.predict(MODEL, x, timeout=TIMEOUT_S))[0, 0])
        except HorologeError as error:
            text = f"{type(error).__name__}: {error}"[:100]
            findings.errors[text] = findings.errors.get(text, 0) + 1
            await asyncio.sleep(0.01)
            continue
        findings.answers += 1
        findings.wrong += model.is_wrong(value, len(model.reached) - 1 if strict else sent_at)


async def reload(client: AsyncClient, model: RollingModel, findings: Findings, version: str) -> None:
    model.write(version)
    model.upcoming = model.values[model.current]
    await client.admit(MODEL, timeout=TIMEOUT_S)
    findings.reloads += 1


async def switch(client: AsyncClient, model: RollingModel, findings: Findings) -> None:
    """Promote the other version. Every third time, roll back instead, which has the same effect."""
    version = "1" if model.current == "2" else "2"
    model.upcoming = model.values[version]
    command = "rollback" if findings.promotions % 3 == 2 else "promote"
    states = await client.rollout(MODEL, command, version if command == "promote" else "", timeout=TIMEOUT_S)
    model.current = version
    findings.promotions += 1
    parts = {state.spec.version: state.traffic for state in states}
    if parts[version] != 1.0:
        findings.failed.append(f"{command}: {parts}")


async def change(client: AsyncClient, model: RollingModel, findings: Findings, options: argparse.Namespace) -> None:
    """Make all changes, and measure the memory."""
    total = options.reloads + options.promotions
    for number in range(1, total + 1):
        await asyncio.sleep(options.pause)
        is_switch = number * options.promotions // total > (number - 1) * options.promotions // total
        try:
            if is_switch:
                await switch(client, model, findings)
            else:
                await reload(client, model, findings, str(1 + number % 2))
            model.reached.append(model.values[model.current])
        except HorologeError as error:
            findings.failed.append(str(error))
        model.upcoming = None
        if number == max(2, round(total * WARM_UP)):
            findings.rss_before = await settled_rss(options.pid)
        if number % max(1, total // 20) == 0:
            print(f"{number} changes: {findings}", file=sys.stderr, flush=True)
    findings.rss_after = await settled_rss(options.pid)


async def settled_rss(pid: int) -> int:
    """Return the resident memory after a second, in which freed memory is given back."""
    await asyncio.sleep(1)
    return sum(resident_bytes(process) for process in process_tree(pid))


def process_tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    return [pid, *(descendant for child in children for descendant in process_tree(child))]


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process.

    The proportional set size would change with each other program that maps the same libraries.
    """
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Rss:"):
                return int(line.split()[1]) << 10
    return 0


async def run(endpoint: str, model: RollingModel, options: argparse.Namespace) -> Findings:
    findings = Findings()
    async with AsyncClient(endpoint) as first, AsyncClient(endpoint) as second:
        model.reached.append(model.values[model.current])
        tasks = [
            asyncio.create_task(keep_asking(client, model, findings, client is first))
            for client in (first, second)
            for _ in range(options.in_flight // 2)
        ]
        await change(first, model, findings, options)
        await stop_clients(tasks)
    return findings


def serve_and_run(options: argparse.Namespace, folder: Path) -> Findings:
    """Write the repository, start the server, and run."""
    model = RollingModel(folder / "models" / MODEL, options.runtime)
    for version in ("1", "2"):
        model.write(version)
    states = {
        f"HOROLOGE_{name}": str(folder / "state") for name in ("CONTROLLER_STATE", "SELECTOR_STATE", "WORKER_CACHE")
    }
    with running_server(options, folder, states=states) as (endpoint, options.pid):
        return asyncio.run(run(endpoint, model, options))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runtime", choices=("onnx", "python"), default="onnx")
    parser.add_argument("--reloads", type=int, default=1000)
    parser.add_argument("--promotions", type=int, default=100)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--split", action="store_true", help="one process per service")
    parser.add_argument("--in-flight", type=int, default=8, help="requests in flight")
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between changes")
    parser.add_argument("--json", type=Path, help="file for the result")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        findings = serve_and_run(options, Path(folder))
    report(options, findings)
    print(f"memory after / before: {findings.rss_after / findings.rss_before:.3f}, wanted at most {GROWTH}")
    clean = (findings.wrong, findings.errors, findings.failed) == (0, {}, [])
    sys.exit(0 if clean and findings.answers and findings.rss_after <= GROWTH * findings.rss_before else 1)


if __name__ == "__main__":
    main()
