"""`horologe keys`: the key file, which keeps what users have written, and single keys that are rotated and removed."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from typer.testing import CliRunner

from horologe_cli.main import app
from horologe_frontend.auth import load_keys, read_keys
from horologe_frontend.core.access import EVERYTHING, Access, KeyEntry

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result


def keys(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["keys", str(folder), *options])


def secret(folder: Path, name: str) -> str:
    return (folder / "http" / f"{name}.secret").read_text().strip()


def holders(folder: Path, *secrets: str) -> list[str]:
    """Return the name of the holder of each key, empty for one that is not accepted."""
    access = Access()
    load_keys(access, str(folder / "http" / "keys.toml"))
    names = []
    for key in secrets:
        try:
            names.append(access.authenticate(b"Bearer " + key.encode()).name)
        except Exception:
            names.append("")
    return names


def test_the_keys_of_a_new_folder(tmp_path: Path) -> None:
    assert keys(tmp_path, "--client", "alice", "--manager", "carol").exit_code == 0
    assert holders(tmp_path, secret(tmp_path, "alice"), secret(tmp_path, "carol"), "x") == ["alice", "carol", ""]
    entries = read_keys(str(tmp_path / "http" / "keys.toml"))
    assert {name: (entry.infer, entry.observe, entry.manage) for name, entry in entries.items()} == {
        "alice": (("*",), True, False),
        "carol": (("*",), True, True),
    }
    for file in (tmp_path / "http").iterdir():
        assert os.stat(file).st_mode & 0o777 == 0o600
        assert file.suffix != ".toml" or secret(tmp_path, "alice") not in file.read_text()
    before = (tmp_path / "http" / "keys.toml").read_bytes()
    assert "all keys exist already" in keys(tmp_path, "--client", "alice").output
    assert (tmp_path / "http" / "keys.toml").read_bytes() == before


def test_single_keys_are_rotated_and_removed_and_the_rest_stays(tmp_path: Path) -> None:
    keys(tmp_path, "--client", "alice", "--client", "bob")
    file = tmp_path / "http" / "keys.toml"
    edited = file.read_text().replace('infer = ["*"]', 'infer = ["digits*"] # only these', 1) + "rate = 5\n"
    file.write_text(edited)
    first, bobs = secret(tmp_path, "alice"), secret(tmp_path, "bob")
    keys(tmp_path, "--rotate", "alice")
    second = secret(tmp_path, "alice")
    assert holders(tmp_path, first, second, bobs) == ["alice", "alice", "bob"]
    keys(tmp_path, "--rotate", "alice")
    third = secret(tmp_path, "alice")
    assert holders(tmp_path, first, second, third) == ["", "alice", "alice"]
    keys(tmp_path, "--retire", "alice")
    assert holders(tmp_path, second, third) == ["", "alice"]
    assert "# only these" in file.read_text()
    entries = read_keys(str(file))
    assert (entries["alice"].infer, entries["manager"].rate) == (("digits*",), 5)
    assert keys(tmp_path, "--remove", "alice").exit_code == 0
    assert holders(tmp_path, third, bobs) == ["", "bob"]
    assert not list(tmp_path.glob("*/alice*"))
    missing = keys(tmp_path, "--rotate", "alice")
    assert missing.exit_code == 2
    assert "got no key 'alice', wanted one of bob" in missing.output


def test_a_wrong_folder_gets_no_keys(tmp_path: Path) -> None:
    assert keys(tmp_path / "wrong", "--remove", "alice").exit_code == 2
    assert not (tmp_path / "wrong").exists()


def test_the_lists_of_version_0_2_0_are_converted(tmp_path: Path) -> None:
    keys(tmp_path, "--client", "alice", "--manager", "carol")
    http = tmp_path / "http"
    for file in http.iterdir():
        file.unlink()
    hashed = hashlib.sha256(b"three").hexdigest()
    (http / "clients.txt").write_text(f"# ours\none\n\ntwo\nsha256:{hashed}\n")
    (http / "management.txt").write_text("four\n")
    assert keys(tmp_path).exit_code == 0
    assert holders(tmp_path, "one", "two", "three", "four") == ["client", "client-2", "client-3", "manager"]
    entries = read_keys(str(http / "keys.toml"))
    assert entries["manager"].manage
    assert not entries["client"].manage
    assert entries["alice"] == KeyEntry(infer=("*",), observe=True)
    assert entries["carol"] == EVERYTHING
    assert sorted(file.name for file in http.iterdir()) == [
        "client-2.secret",
        "client.secret",
        "keys.toml",
        "manager.secret",
    ]


def test_a_key_file_that_is_none_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "http").mkdir()
    (tmp_path / "http" / "keys.toml").write_text("not toml")
    result = keys(tmp_path)
    assert result.exit_code == 2
    assert "keys.toml" in result.output
    assert (tmp_path / "http" / "keys.toml").read_text() == "not toml"
