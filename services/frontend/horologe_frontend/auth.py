"""The key file, and addresses that need keys."""

from __future__ import annotations

import re
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import TYPE_CHECKING

import msgspec

from horologe_common.service.settings import SettingsError
from horologe_common.service.user_files import read_toml
from horologe_common.setting_ranges import NAME_PATTERN
from horologe_common.status import describe_error
from horologe_common.transport.keys import is_loopback_host
from horologe_frontend.core.access import KeyEntry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_frontend.core.access import Access
    from horologe_frontend.http.settings import HttpSettings
    from horologe_frontend.tls import TlsSettings


def check_open(http: HttpSettings, tls: TlsSettings, host: str | None = None, setting: str = "http.host") -> None:
    """Raise `SettingsError` for an address that is not loopback without keys, unless `allow_open` is set.

    Certificates of clients count as keys. `host`: address of another server with the same keys, named by `setting`.
    Default: that of the HTTP server.
    """
    host = http.host if host is None else host
    if not (http.keys_file or tls.client_ca_file or http.allow_open or is_loopback_host(host)):
        raise SettingsError(
            f"setting {setting}: {host or '*'} is not loopback and no keys are set; set http.keys_file, or "
            "http.allow_open = true (`horologe up --insecure`) to let every host use and manage all models"
        )


def load_keys(access: Access, file: str) -> None:
    """Accept the keys of a key file, and no others. Raise `SettingsError`, and change nothing, if it is invalid."""
    access.replace_keys(read_keys(file))


def read_keys(file: str) -> dict[str, KeyEntry]:
    """Return the entries of a key file by name. Raise `SettingsError` if it is invalid, or holds no entry.

    The error shows no value of the file: somebody may have written a key where a hash belongs.
    """
    try:
        tables = read_toml(Path(file))
        entries = {name: _read_entry(name, table) for name, table in tables.pop("keys", {}).items()}
        if tables or not entries:
            raise ValueError(f"got {', '.join(tables) or 'no key'}, wanted tables [keys.NAME]")
        _check_hashes(entries)
    except (OSError, ValueError, AttributeError) as error:
        hint = "; `horologe keys DIR` converts the lists of 0.2.0" if isinstance(error, TOMLDecodeError) else ""
        raise SettingsError(f"setting http.keys_file: {file}: {describe_error(error)}{hint}") from error
    return entries


def _check_hashes(entries: Mapping[str, KeyEntry]) -> None:
    owners: dict[str, str] = {}
    for name, entry in entries.items():
        for text in entry.hashes:
            if (other := owners.setdefault(text, name)) != name:
                raise ValueError(f"keys.{name}.hashes: got a hash of {other!r}, wanted a key of its own")


def _read_entry(name: str, table: object) -> KeyEntry:
    if not re.fullmatch(NAME_PATTERN, name):
        raise ValueError(f"keys.{name}: got this name, wanted letters, digits, '.', '_' and '-'")
    try:
        return msgspec.convert(table, KeyEntry)
    except msgspec.ValidationError as error:
        raise ValueError(f"keys.{name}: {error}") from error
