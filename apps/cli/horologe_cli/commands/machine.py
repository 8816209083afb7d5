"""`horologe doctor` and `horologe keys`: check this machine, and create keys."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Annotated, Any

import typer

from horologe_cli.output import ExitCode, Json, console, fail, print_json
from horologe_sim.report.tables import Cell, Table

LEVEL_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}
"""Levels of a finding, from best to worst, with their colours."""
Clients = Annotated[
    list[str] | None,
    typer.Option(help="Name of a client to create a key pair for. Repeat for several clients.", metavar="NAME"),
]
Managers = Annotated[
    list[str] | None, typer.Option(help="The same for a client that may load and unload models.", metavar="NAME")
]
WorkerFolder = Annotated[
    Path | None, typer.Option(help="Also copy the keys of a worker, and no others, to this folder.", metavar="DIR")
]
SecretsPrefix = Annotated[
    str,
    typer.Option(help="Print Kubernetes Secrets with these keys, whose names begin with PREFIX.", metavar="PREFIX"),
]
SECRET_FILES = {
    "service": "*.key*",
    "peers": "*.key*",
    "clients": "*.key",
    "management": "*.key",
    "http": "*.txt",
}
"""Folders of `horologe keys` -> files that services read. The secret keys of clients stay with the clients."""


def doctor(
    workers: Annotated[int, typer.Option(min=0, help="Number of workers to check for. 0: the default.")] = 0,
    json: Json = False,
) -> None:
    """Check this machine for causes of unpredictable latency, and print a fix for each.

    \b
    Examples:
      horologe doctor
      horologe doctor --json | jq '.findings[] | select(.level != "ok")'
    The exit code is 1 if Horologe could not run on this machine at all.
    """
    from horologe_cli.doctor import checks

    findings = checks.run_checks(workers)
    worst = max((finding.level for finding in findings), key=list(LEVEL_STYLES).index)
    if json:
        print_json({"level": worst, "findings": [finding._asdict() for finding in findings]})
    else:
        table = Table(("", "", ""), left=3)
        for finding in findings:
            table.add_row(Cell(finding.level, LEVEL_STYLES[finding.level]), finding.subject, finding.found)
            if finding.hint:
                table.add_row("", "", Cell(finding.hint, "dim"))
        table.print(console())
    raise SystemExit(int(ExitCode.FAILED if worst == "fail" else ExitCode.OK))


def keys(
    folder: Annotated[Path, typer.Argument(help="Folder for the keys. Existing keys are kept.", metavar="DIR")],
    client: Clients = None,
    manager: Managers = None,
    worker: WorkerFolder = None,
    secrets: SecretsPrefix = "",
    json: Json = False,
) -> None:
    """Create keys. They encrypt links over the network, and decide who may connect and what for.

    A new folder gets a client and a manager. A folder with keys gets only those of --client and --manager.

    \b
    Examples:
      horologe keys ./keys
      horologe keys ./keys --client alice --client bob --manager carol
      horologe keys ./keys --worker ./worker-keys
      horologe keys ./keys --secrets horologe-keys | kubectl apply -f -
    Then start services with `--set links.keys=./keys`, and clients with `keys="./keys"` or a pair of ./keys/clients.
    """
    from horologe_common.transport.keys import copy_worker_keys, make_keys

    try:
        is_new = not (folder / "service" / "service.key_secret").exists()
        clients, managers = client or ["client"] * is_new, manager or ["manager"] * is_new
        paths = make_keys(folder, _checked_names(clients), _checked_names(managers))
        paths += copy_worker_keys(folder, worker) if worker else []
        if secrets:
            print_json(secret_manifests(folder, secrets))
            return
    except OSError as error:
        fail(f"keys: {error.filename or folder}: {error.strerror or error}", ExitCode.USAGE)
    if json:
        print_json({"folder": str(folder), "made": [str(path) for path in paths]})
        return
    for line in [f"created {path}" for path in paths] or [f"{folder}: all keys exist already"]:
        console().print(line, markup=False, soft_wrap=True)


def secret_manifests(folder: Path, prefix: str) -> dict[str, Any]:
    """Return a List with one Secret, `PREFIX-GROUP`, for each folder of keys, for the chart in deploy/helm.

    Raises OSError.
    """
    secrets = []
    for group, pattern in SECRET_FILES.items():
        files = {
            file.name: base64.b64encode(file.read_bytes()).decode() for file in sorted((folder / group).glob(pattern))
        }
        metadata = {"name": f"{prefix}-{group}", "labels": {"app.kubernetes.io/name": "horologe"}}
        secrets.append({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": files})
    return {"apiVersion": "v1", "kind": "List", "items": secrets}


def _checked_names(names: list[str]) -> tuple[str, ...]:
    """Return the names of clients. End the command if one of them is no name of a file."""
    for name in names:
        if not name or any(character in name for character in "/\\.") or name.isspace():
            fail(f"--client, --manager: got {name!r}, wanted a name without '/' and '.'", ExitCode.USAGE)
    return tuple(names)
