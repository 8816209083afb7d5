"""Keys: the files of `horologe keys`, who holds them, and the endpoints that need them.

| file | belongs to | permits |
| --- | --- | --- |
| `service/service.key_secret` | frontend, selector, controller, profiler, tuner, edge | to accept connections |
| `peers/ROLE.key_secret` | the process of this role | to connect to services, and to act in its own role |
| `clients/NAME.key_secret` | a client | to use models |
| `management/NAME.key_secret` | an operator | also to load and unload models, and to change applications |
| `http/keys.toml` | frontend, edge | to accept bearer keys, and what each client may do |
| `http/NAME.secret` | a client or an operator | the bearer key for HTTP and gRPC |

The public half of a CURVE pair is in the file `*.key`.
"""

from __future__ import annotations

import ipaddress
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import zmq
import zmq.auth
from zmq.auth.thread import ThreadAuthenticator

from horologe_common.service.log import logger
from horologe_common.service.settings import SettingsError
from horologe_common.status import describe_error

if TYPE_CHECKING:
    from collections.abc import Mapping

MANAGER = "management"
log = logger("links")
ROLES = {
    "edge": ("frontend", "selector", "controller"),
    "frontend": ("frontend",),
    "selector": ("selector",),
    "profiler": ("profiler",),
    "tuner": ("tuner",),
    "worker": ("worker",),
}
"""Processes that connect to services -> the roles of their cores."""


def make_keys(
    folder: Path, clients: tuple[str, ...] = ("client",), managers: tuple[str, ...] = ("manager",)
) -> list[Path]:
    """Create all key pairs that do not exist, readable by the owner only. Return the new files."""
    pairs = [("service", "service"), *(("peers", role) for role in ROLES)]
    pairs += [*(("clients", name) for name in clients), *((MANAGER, name) for name in managers)]
    created = []
    for group, name in pairs:
        (folder / group).mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (folder / group / f"{name}.key_secret").exists():
            created += [Path(file) for file in zmq.auth.create_certificates(folder / group, name)]
    for file in created:
        file.chmod(0o600)
    return created


def copy_worker_keys(folder: Path, target: Path) -> list[Path]:
    """Copy the files that a worker needs, and no others, from a folder of `make_keys`. Return the copies."""
    copies = []
    for name in ("service/service.key", "peers/worker.key", "peers/worker.key_secret"):
        (target / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        copies.append(Path(shutil.copy(folder / name, target / name)))
    return copies


def load_keys(file: Path) -> tuple[bytes, bytes]:
    """Return (public, secret) of a `.key_secret` file. Raises `SettingsError`."""
    try:
        public, secret = zmq.auth.load_certificate(file)
    except (OSError, ValueError) as error:
        raise SettingsError(f"links.keys: {file}: {error}; `horologe keys` creates missing keys") from error
    if secret is None:
        raise SettingsError(f"links.keys: {file}: got a public key, wanted a secret one")
    return public, secret


def service_keys(folder: Path) -> tuple[bytes, bytes]:
    """Return (public, secret) of all bound sockets. Raises `SettingsError`."""
    return load_keys(folder / "service" / "service.key_secret")


def service_public_key(folder: Path) -> bytes:
    """Return the public key of all bound sockets. Raises `SettingsError`."""
    file = folder / "service" / "service.key"
    try:
        return zmq.auth.load_certificate(file)[0]
    except (OSError, ValueError) as error:
        raise SettingsError(f"links.keys: {file}: {error}") from error


class KeyHolders:
    """Accepts connections with known keys (ZAP, RFC 27), and names their holders. Raises `SettingsError`.

    Keys that were added to or removed from the folder count for the connections that are made from then on.
    """

    def __init__(self, context: zmq.Context[Any], folder: Path) -> None:
        self._folders = [folder / group for group in ("peers", "clients", MANAGER)]
        self._seen: list[int] = []
        self._read_keys()
        self._authenticator = ThreadAuthenticator(context)
        self._authenticator.start()
        for domain in self._accepted:
            self._authenticator.configure_curve_callback(domain, self)

    def _read_keys(self) -> None:
        """Read the keys, if files were added or removed since they were read. Raises `SettingsError`."""
        seen = [folder.stat().st_mtime_ns if folder.is_dir() else 0 for folder in self._folders]
        if seen == self._seen:
            return
        peers, clients, managers = map(_public_keys, self._folders)
        self._seen = seen
        self._roles, self._managers = peers, managers
        self._accepted = {"internal": peers, "clients": {**clients, **managers}}

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether a socket of `domain` accepts a key. Part of pyzmq's interface of a credentials provider.

        It is called for each new connection, on the authenticator's thread.
        """
        try:
            self._read_keys()
        except (OSError, SettingsError) as error:
            log.error("changed keys not used", reason=describe_error(error))
        return key.decode() in self._accepted[domain]

    def peer_roles(self, frame: zmq.Frame) -> tuple[str, ...]:
        """Return the roles that the sender of a frame may act in; empty if its key was not accepted for any."""
        return ROLES.get(self._roles.get(_user_id(frame), ""), ())

    def is_manager(self, frame: zmq.Frame) -> bool:
        """Return whether the key of the client that sent a frame permits management."""
        return _user_id(frame) in self._managers

    def name_of(self, frame: zmq.Frame) -> str:
        """Return the name of the key of the client that sent a frame; empty without one."""
        return self._accepted["clients"].get(_user_id(frame), "")

    def stop(self) -> None:
        """Accept no more connections."""
        self._authenticator.stop()


def _public_keys(folder: Path) -> Mapping[str, str]:
    """Return the names of the keys in a folder by key."""
    try:
        return {zmq.auth.load_certificate(file)[0].decode(): file.stem for file in sorted(folder.glob("*.key"))}
    except (OSError, ValueError) as error:
        raise SettingsError(f"links.keys: {folder}: {error}") from error


def _user_id(frame: zmq.Frame) -> str:
    """Return the public key of the connection over which a frame has arrived: libzmq's User-Id of the ZAP reply."""
    return str(frame.get("User-Id"))


def is_local(endpoint: str) -> bool:
    """Return whether only processes of this machine can connect: Unix sockets, or TCP on a loopback address."""
    parts = urlsplit(endpoint)
    return is_private(endpoint) or (parts.scheme == "tcp" and is_loopback_host(parts.hostname or ""))


def is_private(endpoint: str) -> bool:
    """Return whether file permissions decide who can connect. An abstract Unix socket (`ipc://@name`) has none."""
    return endpoint.startswith(("inproc://", "unix://", "ipc://")) and not endpoint.startswith("ipc://@")


def is_loopback_host(host: str) -> bool:
    """Return whether a host name is `localhost`, or an address on the loopback interface."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
