"""`horologe keys --secrets`: the keys as Kubernetes Secrets on standard output."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

from typer.testing import CliRunner

from horologe_cli.main import app

if TYPE_CHECKING:
    from pathlib import Path


def test_the_output_is_a_list_of_secrets_and_nothing_else(tmp_path: Path) -> None:
    command = ["keys", str(tmp_path), "--client", "alice", "--secrets", "mine"]
    outputs = [CliRunner().invoke(app, command) for _ in range(2)]
    assert [output.exit_code for output in outputs] == [0, 0]
    assert outputs[0].stdout == outputs[1].stdout  # existing keys are kept
    secrets = {item["metadata"]["name"]: item["data"] for item in json.loads(outputs[0].stdout)["items"]}
    assert set(secrets) == {"mine-service", "mine-peers", "mine-clients", "mine-management", "mine-http"}
    assert set(secrets["mine-clients"]) == {"alice.key"}
    assert base64.b64decode(secrets["mine-http"]["keys.toml"]) == (tmp_path / "http" / "keys.toml").read_bytes()
    assert set(secrets["mine-http"]) == {"keys.toml"}


def test_a_folder_with_keys_gets_only_those_that_are_named(tmp_path: Path) -> None:
    """A key that nobody asked for would permit what nobody wanted."""
    CliRunner().invoke(app, ["keys", str(tmp_path), "--client", "alice", "--manager", "carol"])
    CliRunner().invoke(app, ["keys", str(tmp_path), "--secrets", "mine"])
    CliRunner().invoke(app, ["keys", str(tmp_path), "--client", "bob"])
    secret = {
        group: {path.stem for path in (tmp_path / group).glob("*.key_secret")} for group in ("clients", "management")
    }
    assert secret == {"clients": {"alice", "bob"}, "management": {"carol"}}
