"""Bearer keys in a folder of `horologe keys`: `http/keys.toml` for the servers, `http/NAME.secret` for each client.

tomlkit keeps what users have written into the file, with their comments.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomlkit
from tomlkit.exceptions import ParseError

from horologe_common.transport.keys import MANAGER, make_keys

if TYPE_CHECKING:
    from collections.abc import Iterable

KEY_BYTES = 32
HEAD = """\
# What each key may do: over HTTP, over gRPC, and with the key of the SDK of the same name. Changes count at once.
# infer: names of models, pipelines and applications, or patterns such as "digits*". rate: requests per second.
"""
LISTS = {"client": "clients.txt", "manager": "management.txt"}
"""Names of keys -> the lists of version 0.2.0, which are converted."""


class BearerKeys:
    """The key file of a folder. Changes are written by `save`. Raises ValueError for a file that is no key file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "http"
        self.file = self._folder / "keys.toml"
        is_new = not self.file.exists()
        try:
            self._document: Any = tomlkit.parse(HEAD if is_new else self.file.read_text())
        except ParseError as error:
            raise ValueError(f"{self.file}: {error}") from error
        self._keys = self._document.setdefault("keys", tomlkit.table(is_super_table=True))
        self.changed: list[Path] = []
        if is_new:
            self._convert_lists(folder)

    def __contains__(self, name: str) -> bool:
        return name in self._keys

    def add(self, name: str, manages: bool) -> None:
        """Add a key that may use and read everything, and manage it if `manages`, unless there is one."""
        if name not in self._keys:
            self._add_entry(name, [self._write_secret(name, secrets.token_urlsafe(KEY_BYTES))], manages)

    def rotate(self, name: str) -> None:
        """Give the client a new key. The last one is accepted too, until the next `rotate`, or `retire`."""
        entry = self._entry(name)
        entry["hashes"] = [self._write_secret(name, secrets.token_urlsafe(KEY_BYTES)), *entry.get("hashes", [])[:1]]

    def retire(self, name: str) -> None:
        """Accept only the newest key of the client."""
        entry = self._entry(name)
        entry["hashes"] = entry.get("hashes", [])[:1]

    def remove(self, name: str) -> None:
        """Accept no key of the client any more."""
        self._entry(name)
        del self._keys[name]
        (self._folder / f"{name}.secret").unlink(missing_ok=True)

    def save(self) -> None:
        """Write the file, if it differs."""
        content = tomlkit.dumps(self._document)
        if not self.file.exists() or self.file.read_text() != content:
            self._write(self.file, content)
            for name in LISTS.values():
                (self._folder / name).unlink(missing_ok=True)

    def _entry(self, name: str) -> Any:
        if name not in self._keys:
            raise ValueError(f"{self.file}: got no key {name!r}, wanted one of {', '.join(self._keys)}")
        return self._keys[name]

    def _add_entry(self, name: str, hashes: list[str], manages: bool) -> None:
        entry = tomlkit.table()
        if hashes:
            entry["hashes"] = hashes
        entry.update({"infer": ["*"], "observe": True, "manage": manages})
        self._keys[name] = entry

    def _convert_lists(self, folder: Path) -> None:
        """Add the keys of the lists of version 0.2.0, and entries for the present keys of the SDK."""
        for kind, list_name in LISTS.items():
            file = self._folder / list_name
            lines = [line.strip() for line in file.read_text().splitlines()] if file.is_file() else []
            for number, line in enumerate(line for line in lines if line and not line.startswith("#")):
                name = f"{kind}-{number + 1}" if number else kind
                is_hash = line.startswith("sha256:")
                self._add_entry(name, [line if is_hash else self._write_secret(name, line)], kind == "manager")
        for group in ("clients", MANAGER):
            for name in sorted(file.stem for file in (folder / group).glob("*.key")):
                if name not in self._keys:
                    self._add_entry(name, [], group == MANAGER)

    def _write_secret(self, name: str, key: str) -> str:
        """Write the key for its client. Return its hash."""
        self._write(self._folder / f"{name}.secret", f"{key}\n")
        return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"

    def _write(self, file: Path, content: str) -> None:
        """Replace a file at once: services read it while it changes."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = file.with_name(f".{file.name}.part")
        part.unlink(missing_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as output:
            output.write(content)
        part.replace(file)
        self.changed.append(file)


def make_all_keys(
    folder: Path, clients: Iterable[str] = ("client",), managers: Iterable[str] = ("manager",)
) -> list[Path]:
    """Create the keys that do not exist, of services, clients and managers. Return the written files.

    Raises OSError, and ValueError for a file that is no key file.
    """
    bearer = BearerKeys(folder)
    files = make_keys(folder, tuple(clients), tuple(managers))
    for names, manages in ((clients, False), (managers, True)):
        for name in names:
            bearer.add(name, manages)
    bearer.save()
    return files + bearer.changed


def remove_client(folder: Path, name: str) -> None:
    """Remove the bearer key of a client, and its keys of the SDK. Raises OSError and ValueError."""
    bearer = BearerKeys(folder)
    bearer.remove(name)
    bearer.save()
    for group in ("clients", MANAGER):
        for suffix in ("key", "key_secret"):
            (folder / group / f"{name}.{suffix}").unlink(missing_ok=True)
