"""Options of `horologe up`. `horologe demo` shares those of the processes."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer


class ProcessOptions(NamedTuple):
    """The processes of a system, and their settings."""

    workers: Annotated[
        int, typer.Option(min=0, help="Number of worker processes. 0: one less than the CPU cores, at most 4.")
    ] = 0
    split: Annotated[
        bool, typer.Option("--split", help="Run frontend, selector and controller as separate processes.")
    ] = False
    scheduler: Annotated[
        str, typer.Option(help="horologe, clockwork, orloj, edf, ... See docs/settings.md.", metavar="NAME")
    ] = ""
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting. Repeat for several settings.", metavar="SECTION.FIELD=VALUE"),
    ] = None


class UpOptions(NamedTuple):
    """The models, the addresses and the optional services of `horologe up`."""

    models: Annotated[str, typer.Option(help="Folder of the model repository.", metavar="DIR")] = ""
    http: Annotated[str, typer.Option(help="HTTP address. Port 0: any free port.", metavar="HOST:PORT")] = ""
    clients: Annotated[
        list[str] | None,
        typer.Option("--client", help="ZeroMQ endpoint for clients. Repeat for several endpoints.", metavar="ENDPOINT"),
    ] = None
    metrics: Annotated[str, typer.Option(help="Address for Prometheus, or off.", metavar="HOST:PORT")] = ""
    profiler: Annotated[
        bool, typer.Option(help="Run the profiler, which measures requests by application and length.")
    ] = True
    tuner: Annotated[bool, typer.Option(help="Run the tuner, which carries out applied plans of pipelines.")] = True
    insecure: Annotated[bool, typer.Option("--insecure", help="Permit addresses beyond this machine without keys.")] = (
        False
    )
    config: Annotated[str, typer.Option(help="TOML file with settings.", metavar="FILE")] = ""
