"""`horologe keys`: create, rotate and remove keys."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Annotated, Any

import typer

from horologe_cli.output import ExitCode, Json, console, fail, print_json

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
Rotated = Annotated[
    str, typer.Option(help="Make a new bearer key for this client. Its last one stays valid.", metavar="NAME")
]
Retired = Annotated[str, typer.Option(help="Accept only the newest bearer key of this client.", metavar="NAME")]
Removed = Annotated[str, typer.Option(help="Remove all keys of this client.", metavar="NAME")]
SecretsPrefix = Annotated[
    str,
    typer.Option(help="Print Kubernetes Secrets with these keys, whose names begin with PREFIX.", metavar="PREFIX"),
]
SECRET_FILES = {
    "service": "*.key*",
    "peers": "*.key*",
    "clients": "*.key",
    "management": "*.key",
    "http": "*.toml",
}
"""Folders of `horologe keys` -> files that services read. The secret keys of clients stay with the clients."""


def keys(
    folder: Annotated[Path, typer.Argument(help="Folder for the keys. Existing keys are kept.", metavar="DIR")],
    client: Clients = None,
    manager: Managers = None,
    worker: WorkerFolder = None,
    secrets: SecretsPrefix = "",
    rotate: Rotated = "",
    retire: Retired = "",
    remove: Removed = "",
    json: Json = False,
) -> None:
    """Create keys. They encrypt links over the network, and decide who may connect and what for.

    A new folder gets a client and a manager. A folder with keys gets only those of --client and --manager. What each
    may do is in DIR/http/keys.toml: edit it to permit single models, and to limit the requests per second.

    \b
    Examples:
      horologe keys ./keys
      horologe keys ./keys --client alice --client bob --manager carol
      horologe keys ./keys --rotate alice       # then give her ./keys/http/alice.secret, and later
      horologe keys ./keys --retire alice       # accept only the new one
      horologe keys ./keys --remove bob
      horologe keys ./keys --worker ./worker-keys
      horologe keys ./keys --secrets horologe-keys | kubectl apply -f -
    Then start services with `--set links.keys=./keys`, and clients with `keys="./keys"` or a pair of ./keys/clients.
    """
    from horologe_cli.bearer_keys import BearerKeys, make_all_keys, remove_client
    from horologe_common.transport.keys import copy_worker_keys

    try:
        is_new = not (folder / "service" / "service.key_secret").exists()
        if is_new and (rotate or retire or remove):
            fail(f"keys: {folder}: got no keys, wanted a folder of `horologe keys`", ExitCode.USAGE)
        clients, managers = client or ["client"] * is_new, manager or ["manager"] * is_new
        paths = make_all_keys(folder, _checked_names(clients), _checked_names(managers))
        bearer = BearerKeys(folder)
        if rotate:
            bearer.rotate(rotate)
        if retire:
            bearer.retire(retire)
        bearer.save()
        paths += bearer.changed
        if remove:
            remove_client(folder, remove)
        paths += copy_worker_keys(folder, worker) if worker else []
        if secrets:
            print_json(secret_manifests(folder, secrets))
            return
    except OSError as error:
        fail(f"keys: {error.filename or folder}: {error.strerror or error}", ExitCode.USAGE)
    except ValueError as error:
        fail(f"keys: {error}", ExitCode.USAGE)
    if json:
        print_json({"folder": str(folder), "made": [str(path) for path in paths]})
        return
    lines = [f"wrote {path}" for path in paths] + [f"removed the keys of {remove}"] * bool(remove)
    for line in lines or [f"{folder}: all keys exist already"]:
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
