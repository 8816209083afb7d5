"""CURVE keys: the files, the peers that they admit, and the endpoints that need them.

`<folder>/service/service.key[_secret]` is shared by all services; `<folder>/clients/*.key[_secret]` belong to clients.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import zmq
import zmq.auth
from zmq.auth.thread import ThreadAuthenticator

from horologe_common.service.settings import SettingsError

if TYPE_CHECKING:
    from pathlib import Path


def make_keys(folder: Path, clients: tuple[str, ...] = ("client",)) -> list[Path]:
    """Create the services' key pair and one per client, readable by the owner only. Keep existing files."""
    created = []
    for group, name in [("service", "service"), *(("clients", client) for client in clients)]:
        (folder / group).mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (folder / group / f"{name}.key_secret").exists():
            for file in zmq.auth.create_certificates(folder / group, name):
                created.append(folder / group / file)
                (folder / group / file).chmod(0o600)
    return created


def load_keys(file: Path) -> tuple[bytes, bytes]:
    """Return (public, secret) of a `.key_secret` file. Raises `SettingsError`."""
    try:
        public, secret = zmq.auth.load_certificate(file)
    except (OSError, ValueError) as error:
        raise SettingsError(f"links.keys: {file}: {error}") from error
    if secret is None:
        raise SettingsError(f"links.keys: {file}: got a public key, wanted a secret one")
    return public, secret


def service_keys(folder: Path) -> tuple[bytes, bytes]:
    """Return (public, secret) of the services. Raises `SettingsError`."""
    return load_keys(folder / "service" / "service.key_secret")


def start_authenticator(context: zmq.Context[Any], folder: Path) -> ThreadAuthenticator:
    """Admit services to `internal` sockets, and clients to the `clients` socket (ZAP, RFC 27), until `stop()`."""
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve(domain="internal", location=str(folder / "service"))
    authenticator.configure_curve(domain="clients", location=str(folder / "clients"))
    return authenticator


def is_loopback(endpoint: str) -> bool:
    """Return whether an endpoint is local to this machine: ipc, inproc, or TCP on a loopback address."""
    parts = urlsplit(endpoint)
    if parts.scheme != "tcp":
        return True
    host = parts.hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
