"""Options of `horologe demo`: the load, and the running system to measure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from horologe_cli.output import Keys


class DemoLoad(NamedTuple):
    """The load of the demo."""

    slo_ms: Annotated[float, typer.Option("--slo-ms", min=1.0, help="Deadline of each request.", metavar="MS")] = 100.0
    learn_s: Annotated[
        float, typer.Option("--learn", min=0.0, help="Duration of the mixed traffic first.", metavar="S")
    ] = 10.0
    step_s: Annotated[
        float, typer.Option("--step", min=0.2, help="Duration of each load step in seconds.", metavar="S")
    ] = 1.5
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the arrival times.")] = 1


class RunningSystem(NamedTuple):
    """Addresses and keys of a system. `keys`: a folder of `horologe keys`; empty if the system needs none."""

    endpoint: Annotated[
        str, typer.Option(help="SDK endpoint of a running system. Measure it, and start none.", metavar="URL")
    ] = ""
    http: Annotated[str, typer.Option(help="HTTP address of the running system.", metavar="URL")] = (
        "http://127.0.0.1:8000"
    )
    keys: Keys = ""

    def headers(self) -> dict[str, str]:
        """Return the headers of HTTP requests: the bearer key of clients, if there is one."""
        file = Path(self.keys, "http", "client.secret")
        return {"Authorization": f"Bearer {file.read_text().strip()}"} if self.keys and file.is_file() else {}
